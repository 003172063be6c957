"""NVTX ranges: on a GPU, ticks and phases as the record has them; on the CPU, none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from conftest import Loops
from contract.conftest import installed
from helpers.backends import SIMULATED, Backend
from helpers.generations import GUIDED, Inbox, make
from helpers.paths import ROOT
from simulator.fixture import Machine

from runtime.devices.device import HostDevice
from runtime.tick.clock import PhaseClock, clock_of


@pytest.fixture
def backend() -> Backend:
    return SIMULATED[0]


def test_ranges_are_the_phases_of_the_record(loops: Loops, machine: Machine) -> None:
    import nvtx

    loop = loops()
    loop.submit(make("a", steps=5, **GUIDED), Inbox())
    domain = nvtx.get_domain("tickrt")
    while (before := len(domain.shown)) is not None and (record := loop.tick()) is not None:
        assert domain.shown[before:] == [(0, "tick"), *((1, span.phase) for span in record.spans)]
        assert domain.depth == 0
    assert domain.shown[-3:] == [(0, "tick"), (1, "inbox"), (1, "schedule")]
    assert domain.depth == 0


def test_a_tick_that_is_refused_closes_its_ranges(loops: Loops, machine: Machine) -> None:
    import nvtx

    loop = loops()
    loop.submit(make("a"), Inbox())
    machine.faults = {"enqueue_false_at": [1]}
    assert loop.tick() is not None
    assert nvtx.get_domain("tickrt").depth == 0


def test_the_cpu_shows_none_even_with_the_package(machine: Machine) -> None:
    assert importlib.util.find_spec("nvtx") is not None
    assert type(clock_of(HostDevice())) is PhaseClock


@pytest.mark.builder
def test_the_real_package_takes_our_calls() -> None:
    """In a process of its own, with a domain that really is one: without a tool, `get_domain` gives a dummy."""
    program = (
        "import nvtx; from nvtx._lib import Domain; nvtx.get_domain = Domain\n"
        "from runtime.tick.clock import nvtx_clock; clock = nvtx_clock()\n"
        "clock.begin('inbox'); clock.begin('wait'); clock.end()\n"
        "print([phase for phase, _ in clock.marks])"
    )
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(installed('nvtx')), str(ROOT)]}\n{program}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['inbox', 'wait', '']\n"), done.stderr
