"""Ticks on the simulated TensorRT-RTX: none waits for a compiler, and no graph keeps fallback kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from conftest import Built, Loops, captured, resized
from helpers.backends import SIMULATED_RTX, Backend
from helpers.generations import Inbox, make, run_all
from simulator.fixture import Machine

from runtime.engines.loading import open_engines, settle_kernels
from runtime.tick.loop.common_ticks import common_ticks
from runtime.tick.loop.tick_loop import TickLoop

FRAMES = 32
# Where a tick waits, the test fails after this time.
MOST_S = 60.0


@pytest.fixture
def backend() -> Backend:
    return SIMULATED_RTX


@pytest.fixture
def loop(loops: Loops, built: Built, backend: Backend) -> TickLoop:
    return loops(resized(built(max_rows=16, backend=backend), 3, 8))


@contextmanager
def compiler_busy(loop: TickLoop) -> Iterator[None]:
    """Kernels that are asked for in the block are compiled behind it."""
    go_on = threading.Event()
    busy = loop.engines.decoder._specializer.submit(lambda: go_on.wait(MOST_S))  # type: ignore[attr-defined]
    try:
        yield
        assert not busy.done(), "a tick waited for the compiler"
    finally:
        go_on.set()


def prepare(loop: TickLoop) -> None:
    """As a server does before it is ready."""
    for ticks in common_ticks([make("a", FRAMES)], loop.bundle, loop.deployment):
        run_all(loop, *ticks.generations())
        assert settle_kernels("tensorrt-rtx")
        run_all(loop, *ticks.generations())


def come_and_go(loop: TickLoop) -> list[int]:
    """Per tick, how many launches did not replay, while one to three generations are in flight."""
    not_replayed, inbox = [], Inbox()
    for index in range(6):
        loop.submit(make(f"{index}", FRAMES, steps=4 + index % 3), inbox)
        for _ in range(2):
            record = loop.tick()
            assert record is not None
            not_replayed.append(len(record.frames) - record.replayed + record.captured)
    while loop.tick() is not None:
        pass
    return not_replayed


def test_common_ticks_have_their_kernels_and_replay(loop: TickLoop, machine: Machine) -> None:
    prepare(loop)
    num_compiled, num_fallback = len(machine.compiled), machine.counters["fallback_executes"]
    assert sum(come_and_go(loop)) == 0
    assert len(machine.compiled) == num_compiled
    assert machine.counters["fallback_executes"] == num_fallback
    assert machine.counters["graph_launches"] > 0


def test_ticks_of_a_new_shape_are_plain_until_it_has_kernels(loop: TickLoop, machine: Machine) -> None:
    generations = [make(name, FRAMES, steps=12) for name in "abc"]
    with compiler_busy(loop):
        before = run_all(loop, *generations)
        counts = loop.launch_counts
        assert (counts.captured, counts.replayed, counts.failed) == (0, 0, 0)
        assert machine.counters["fallback_executes"] >= 36
    settle_kernels("tensorrt-rtx")
    num_fallback = machine.counters["fallback_executes"]
    after = run_all(loop, *[make(name, FRAMES, steps=12) for name in "abc"])
    counts = loop.launch_counts
    assert counts.captured > 0
    assert counts.replayed > 0
    assert machine.counters["fallback_executes"] == num_fallback
    for name in "abc":
        np.testing.assert_allclose(after.latents(name), before.latents(name), rtol=1e-5, atol=1e-5)


def test_no_tick_compiles_and_no_graph_has_fallback_kernels(loop: TickLoop, machine: Machine) -> None:
    """Also where generations of other lengths, which nothing has prepared, come and go."""
    prepare(loop)
    for frames in (16, 64, FRAMES):
        run_all(loop, *[make(f"{frames}{name}", frames, steps=9) for name in "ab"])
    settle_kernels("tensorrt-rtx")
    for frames in (16, 64, FRAMES):
        run_all(loop, *[make(f"{frames}{name}", frames, steps=9) for name in "ab"])
    assert {thread.partition("_")[0] for _, thread in machine.compiled} == {"kernels"}
    assert machine.counters["frozen_fallbacks"] == machine.counters["slow_replays"] == 0


def test_without_capture_a_shape_s_kernels_are_used_too(loops: Loops, built: Built, backend: Backend,
                                                        machine: Machine) -> None:  # fmt: skip
    loop = loops(resized(built(max_rows=16, backend=backend), 3, 8))
    deployment = captured(loop.deployment, False)
    plain = TickLoop(loop.engines, loop.bundle, deployment, loop.device)
    prepare(plain)
    num_fallback = machine.counters["fallback_executes"]
    run_all(plain, make("x", FRAMES))
    assert machine.counters["fallback_executes"] == num_fallback
    assert plain.launch_counts.captured == 0


def test_ticks_do_not_wait_for_the_compiler_when_engines_are_replaced(loop: TickLoop, machine: Machine) -> None:
    run_all(loop, make("a", FRAMES, steps=9))
    with_new = open_engines(loop.deployment, loop.device)
    with compiler_busy(loop):
        run_all(loop, make("b", 16, steps=9))
        swapped = loop.swap(with_new)
        run_all(loop, make("c", FRAMES, steps=9))
        assert swapped.done()
    settle_kernels("tensorrt-rtx")
    run_all(loop, make("d", FRAMES, steps=9))
    assert machine.counters["frozen_fallbacks"] == 0


def test_where_an_execute_cannot_be_captured_ticks_are_plain_with_kernels_of_their_own(
    loop: TickLoop, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.faults["uncapturable"] = True
    prepare(loop)
    num_fallback = machine.counters["fallback_executes"]
    run_all(loop, make("x", FRAMES))
    counts = loop.launch_counts
    assert (counts.captured, counts.failed) == (0, 0)
    assert machine.counters["fallback_executes"] == num_fallback
