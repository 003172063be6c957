"""Every technique can be switched off alone: the work that it saves is done again, and the latents are the same."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from conftest import Built, Loops, resized
from helpers.backends import CPU, REAL, SIMULATED, Backend
from helpers.generations import FEATURES, GUIDED, Inbox, make, run_all
from simulator.fixture import Machine

from profiling.bench.slow_parts import (
    BATCHED_STEP,
    EVENT_WAIT,
    FROZEN_CONDITIONS,
    TECHNIQUES,
    ExecutionSequence,
    parts_without,
)
from profiling.bench.workload import with_runtime
from runtime.devices.device import Stream
from runtime.tick.loop.tick_loop import TickLoop

OFF: dict[str, Any] = {
    "fused_guidance": False, EVENT_WAIT: False, "capture": False, BATCHED_STEP: False, FROZEN_CONDITIONS: False,
    "ticks_in_flight": 1,
}  # fmt: skip
CAPTURED, PLAIN = SIMULATED[:2]
# Lines of 16 frames are no multiple of 256 bytes in any field but the latents.
NAMES = ("plain", "guided_all", "rcfg_initialize", "two_conditions", "two_negatives", "everything", "dcw_double", "sde")


@pytest.fixture(params=[CPU, CAPTURED, *REAL], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


@pytest.fixture
def made(loops: Loops, built: Built, backend: Backend) -> Callable[..., TickLoop]:
    """`made(batched_step=False)`: a loop of this backend without that technique."""

    def open_loop(**changes: Any) -> TickLoop:
        deployment = resized(built(max_rows=16, backend=backend), 8, 16)
        without = changes.keys() & set(TECHNIQUES)
        switched = {name: value for name, value in changes.items() if name not in without}
        return loops(with_runtime(deployment, **switched), parts=parts_without(without))

    return open_loop


def requests() -> list[Any]:
    """Eight generations of all kinds, long enough for their ticks to be captured."""
    return [make(name, **{"steps": 9 + index, **FEATURES[name]}) for index, name in enumerate(NAMES)]


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, Any]]:
    """By backend the latents with every technique."""
    return {}


@pytest.fixture
def expected(known: dict[str, dict[str, Any]], made: Callable[..., TickLoop], backend: Backend) -> dict[str, Any]:
    """By name the latents with every technique, made once for all switches; copied, as they outlive the device."""
    if str(backend) not in known:
        inbox = run_all(made(), *requests())
        known[str(backend)] = {name: inbox.latents(name).copy() for name in NAMES}
    return known[str(backend)]


@pytest.mark.parametrize("switch", [*OFF, "all"])
def test_latents_are_the_same_without_it(switch: str, made: Callable[..., TickLoop], expected: dict[str, Any]) -> None:
    found = run_all(made(**(OFF if switch == "all" else {switch: OFF[switch]})), *requests())
    for name in NAMES:
        np.testing.assert_allclose(found.latents(name), expected[name], atol=2e-5, err_msg=name)


def counted(loop: TickLoop, machine: Machine) -> dict[str, float]:
    """What the simulated GPU does per tick of four guided generations, once launches are captured."""
    for index in range(4):
        loop.submit(make(f"{index}", steps=60, **GUIDED), Inbox())
    for _ in range(10):
        assert loop.tick() is not None
    before = machine.counters.copy()
    for _ in range(4):
        loop.tick()
    done = machine.counters - before
    return {name: done[name] / 4 for name in ("host_waits", "graph_launches", "launches")}


@pytest.mark.parametrize(
    ("backend", "without", "more"),
    [
        (PLAIN, BATCHED_STEP, {"launches": 8 - 1}),  # a step for each of eight slots, and uploads
        (PLAIN, EVENT_WAIT, {"host_waits": 3 - 1}),  # of three executes
        (CAPTURED, EVENT_WAIT, {"host_waits": 0, "graph_launches": 0}),  # one wait behind the one graph
        (PLAIN, FROZEN_CONDITIONS, {"launches": 16}),  # the tokens and the padding of each of eight rows
        (CAPTURED, FROZEN_CONDITIONS, {"launches": 16, "graph_launches": 0}),
    ],
    ids=str,
    indirect=["backend"],
)
def test_without_a_technique_the_device_does_what_it_saves(
    made: Callable[..., TickLoop], machine: Machine, without: str, more: dict[str, float]
) -> None:
    fast, slow = counted(made(), machine), counted(made(**{without: False}), machine)
    assert all(slow[name] - fast[name] >= least for name, least in more.items()), (fast, slow)
    assert fast["host_waits"] == 1


def test_executes_that_count_as_one_are_ready_once_all_are_and_none_is_left_out() -> None:
    done: list[tuple[str, int]] = []

    def execution(number: int, ready: bool) -> Any:
        note = lambda name: lambda *stream: (done.append((name, number)), ready)[1]  # noqa: E731
        return SimpleNamespace(**{name: note(name) for name in ("prepare", "launch", "warm_up", "release")})

    stream = cast(Stream, None)
    for ready in (False, True):
        sequence = ExecutionSequence([execution(0, True), execution(1, ready), execution(2, True)])
        assert sequence.prepare(stream) is ready
    assert done == [("prepare", number) for number in (0, 1, 2)] * 2, "each prepares, also behind one that is not ready"
    done.clear()
    sequence.warm_up(stream)
    sequence.launch(stream)
    sequence.release()
    assert done == [(name, number) for name in ("warm_up", "launch", "release") for number in (0, 1, 2)]
