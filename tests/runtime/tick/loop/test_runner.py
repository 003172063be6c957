"""The loop drives any runner: here one without engines, beside the flow model's and in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.faulty_engine import Faults, FaultyEngine
from helpers.generations import Inbox, make
from numpy.typing import NDArray

from runtime.base.errors import EngineError
from runtime.devices.device import Event, Stream
from runtime.engines.engine import EngineSet
from runtime.engines.launch_cache import LaunchCounts
from runtime.engines.loading import open_engines
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.events import Cancelled, Failed, Finished, Started
from runtime.tick.loop.tick_loop import TickLoop
from runtime.tick.runner import BucketSpan, Launched, LaunchFailures, Runner, RunnerPart
from runtime.tick.scheduling.slot import Slot, Submission

BUCKET = 7


@dataclass(frozen=True)
class Work:
    """What was prepared for a generation of the counting runner."""

    request: GenerationRequest


@dataclass(frozen=True, eq=False)
class CountingPart:
    """The slots that count one step."""

    slots: tuple[Slot, ...]
    frames: tuple[int, ...] = (BUCKET,)
    variants: tuple[str, ...] = ("count",)
    num_executes: int = 1

    @property
    def num_rows(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, eq=False)
class CountingLaunch:
    """Nothing runs on a device."""

    failed: LaunchFailures = field(default_factory=LaunchFailures)
    bad: tuple[tuple[Slot, int], ...] = ()
    begin: Event | None = None

    def spans(self, stream: Stream, first: Event) -> Sequence[BucketSpan]:
        return ()

    def non_finite(self) -> tuple[tuple[Slot, int], ...]:
        return self.bad


@dataclass(eq=False)
class CountingRunner:
    """Counts a slot's steps; the result is that number. `on_launch` may return another launch."""

    on_launch: Callable[[CountingPart], CountingLaunch | None] = lambda part: None
    counts: dict[Slot, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    launch_counts: LaunchCounts = field(default_factory=LaunchCounts)

    def admit(self, slot: Slot) -> None:
        self.counts[slot] = 0

    def update(self, slot: Slot) -> None:
        self.calls.append("update")

    def vacate(self, slot: Slot) -> None:
        del self.counts[slot]

    def plan(self) -> CountingPart | None:
        return CountingPart(tuple(self.counts)) if self.counts else None

    def launch(self, part: CountingPart) -> CountingLaunch:
        return self.on_launch(part) or CountingLaunch()

    def commit(self, part: CountingPart) -> None:
        for slot in part.slots:
            if slot in self.counts:
                self.counts[slot] += 1

    def read_out(self, slots: Sequence[Slot], ready: Event) -> tuple[list[NDArray[Any]], Event]:
        return [np.array([self.counts.pop(slot)]) for slot in slots], ready

    def snapshot(self, slot: Slot) -> tuple[dict[str, NDArray[Any]], bool]:
        return {}, False

    def use(self, engines: EngineSet) -> None:
        self.calls.append("use")

    def close(self) -> None:
        self.calls.append("close")


def test_the_counting_runner_satisfies_the_protocol() -> None:
    runner: Runner[CountingPart] = CountingRunner()
    part: RunnerPart = CountingPart(())
    launched: Launched = CountingLaunch()
    assert runner.plan() is None
    assert (part.num_rows, launched.failed) == (0, [])


def push(loop: TickLoop, name: str, inbox: Inbox, steps: int = 3) -> None:
    """Let a generation of the last runner wait for a slot."""
    request = make(name, 16)
    loop._shared.registry.enter(request, inbox)
    loop._ticks.scheduler.waiting.push(Submission(name, loop._ticks._runners[-1], Work(request), BUCKET, steps))


def with_runner(loop: TickLoop, runner: CountingRunner, *, alone: bool = False) -> TickLoop:
    loop._ticks._runners = (runner,) if alone else (*loop._ticks._runners, runner)
    return loop


def run(loop: TickLoop) -> None:
    while loop.tick() is not None:
        pass


def test_a_loop_of_another_runner_alone_delivers_in_the_tick_of_the_last_step(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    denoise = loop._ticks._denoise
    with_runner(loop, CountingRunner(), alone=True)
    for name, steps in (("a", 2), ("b", 3)):
        push(loop, name, inbox, steps)
    records = list(iter(loop.tick, None))
    assert [record.finished for record in records] == [(), ("a",), ("b",)]
    assert [(record.slots, record.frames, record.engine_ms) for record in records[:2]] == [(2, (BUCKET,), 0.0)] * 2
    assert (inbox.latents("a"), inbox.latents("b")) == (2, 3)
    assert inbox.terminal("b").tick == inbox.of("b", Started)[0].tick + 2
    denoise.close()


def test_parts_of_two_runners_are_launched_in_the_same_tick(loops: Loops) -> None:
    loop, inbox = with_runner(loops(), CountingRunner()), Inbox()
    loop.submit(make("latents", 16, steps=3), inbox)
    push(loop, "count", inbox)
    record = loop.tick()
    assert record is not None
    assert (record.slots, record.rows, record.executes) == (2, 2, 2)
    assert (record.frames, record.variants) == ((16, BUCKET), ("plain", "count"))
    run(loop)
    assert inbox.terminal("latents").tick == inbox.terminal("count").tick
    assert inbox.latents("count") == 3


def test_an_error_of_another_runner_fails_only_its_own_slots(loops: Loops) -> None:
    error = EngineError("cannot count")
    loop, inbox = (
        with_runner(loops(), CountingRunner(lambda part: CountingLaunch(LaunchFailures([(part.slots, error)])))),
        Inbox(),
    )
    loop.submit(make("latents", 16), inbox)
    push(loop, "count", inbox)
    run(loop)
    assert inbox.terminal("count") == Failed("count", error)
    assert isinstance(inbox.terminal("latents"), Finished)


def test_an_error_of_the_flow_model_leaves_another_runner_alone(loops: Loops) -> None:
    base = loops()
    engines = open_engines(base.deployment, base.device)
    spoiled = EngineSet(FaultyEngine(engines.decoder, Faults(fail_at=frozenset({1}))), engines.rows, engines.steps)
    loop, inbox = TickLoop(spoiled, base.bundle, base.deployment, base.device), Inbox()
    with_runner(loop, CountingRunner())
    loop.submit(make("latents", 16), inbox)
    push(loop, "count", inbox)
    run(loop)
    loop.close()
    assert isinstance(inbox.terminal("latents"), Failed)
    assert inbox.latents("count") == 3


def test_a_cancel_during_the_launch_counts_before_the_commit(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    with_runner(loop, CountingRunner(lambda part: loop.cancel("a")))
    for name in "ab":
        push(loop, name, inbox, steps=1)
    run(loop)
    assert isinstance(inbox.terminal("a"), Cancelled)
    assert inbox.latents("b") == 1


def test_a_slot_that_is_not_finite_is_removed_alone(loops: Loops) -> None:
    bad = CountingRunner(lambda part: CountingLaunch(bad=((part.slots[0], 0),)) if len(part.slots) == 2 else None)
    loop, inbox = with_runner(loops(), bad), Inbox()
    for name in "ab":
        push(loop, name, inbox)
    run(loop)
    assert isinstance(inbox.terminal("a"), Failed)
    assert inbox.latents("b") == 3
    assert loop.stats().outcomes["nonfinite"] == 1


@pytest.mark.parametrize("depth", [1, 3])
def test_slots_of_all_runners_count_against_the_depth(depth: int, loops: Loops) -> None:
    loop, inbox = with_runner(loops(depth=depth), CountingRunner()), Inbox()
    for index in range(3):
        push(loop, f"count{index}", inbox)
        loop.submit(make(f"latents{index}", 16), inbox)
    record = loop.tick()
    assert record is not None
    assert record.slots == depth
    run(loop)
    assert loop.stats().outcomes["ok"] == 6


def test_every_runner_takes_swapped_engines_and_is_closed(loops: Loops) -> None:
    loop, runner = loops(), CountingRunner()
    with_runner(loop, runner)
    reply = loop.swap(open_engines(loop.deployment, loop.device))
    loop.tick()
    reply.result(0)
    loop.close()
    assert runner.calls == ["use", "close"]
