"""Launches are found again by what they bake in, captured when they come back, and closed only when they are done."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.live_slots import condition, deployment, live_slot

from runtime.base.errors import CaptureError, EngineDeadError, EngineError, OutOfMemoryError
from runtime.config.deployment import Deployment
from runtime.devices.device import HostDevice, Replay, Stream
from runtime.engines.launch_cache import Launch, LaunchCache
from runtime.tick.denoise.prepared import PreparedGeneration
from runtime.tick.denoise.row_layout import Execute, LaunchKey, LayoutRules, LiveSlot, RowLayout
from runtime.tick.scheduling.slot import Slot


@dataclass
class Recording:
    """An execution that notes what is asked of it."""

    calls: list[str]
    is_ready: bool = True
    makes_fail: bool = False

    def prepare(self, stream: Stream) -> bool:
        return self.is_ready

    def launch(self, stream: Stream) -> None:
        self.calls.append("launch")

    def make(self) -> None:
        if self.makes_fail:
            raise OutOfMemoryError("no context")
        self.calls.append("make")

    def warm_up(self, stream: Stream) -> None:
        self.calls.append("warm_up")

    def release(self) -> None:
        self.calls.append("release")


@dataclass
class Graph:
    calls: list[str]

    def launch(self, stream: Stream) -> None:
        self.calls.append("replay")

    def close(self) -> None:
        self.calls.append("close")


@dataclass
class Pending:
    is_done: bool = False

    def wait(self) -> None:
        self.is_done = True


@dataclass
class SlowStream:
    """Events are done once the test waits for them."""

    handle: int = 0
    events: list[Pending] = field(default_factory=list)

    def record(self) -> Pending:
        self.events.append(Pending())
        return self.events[-1]

    def wait(self, event: Any) -> None:
        raise AssertionError("nothing waits here")

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        return 0.0


@dataclass
class GraphDevice(HostDevice):
    """The host, with graphs."""

    calls: list[str] = field(default_factory=list)
    fails: bool = False

    def capture(self, stream: Stream, work: Callable[[], None]) -> Replay:  # type: ignore[override]
        if self.fails:
            raise CaptureError("not capturable")
        self.calls.append("capture")
        work()
        return Graph(self.calls)


def key(slot_count: int = 1, **changes: Any) -> LaunchKey:
    base = LaunchKey(16, slot_count, (Execute(0, slot_count, 4),), (1, 1), frozenset(), None, 0, False, (0,), 0)
    return base._replace(**changes)


class Cache:
    """A cache on a device with graphs, and what its launches were asked to do."""

    def __init__(self, *, limit: int = 4, captures: bool = True, fails: bool = False) -> None:
        self.device, self.stream = GraphDevice(fails=fails), SlowStream()
        self.calls = self.device.calls
        self.cache = LaunchCache(self.device, self.stream, limit, captures)

    def get(self, which: LaunchKey) -> Launch:
        return self.cache.get(which, lambda: self.bind(which))

    def bind(self, which: LaunchKey) -> Launch:
        self.calls.append("bind")
        return Launch(which, None, (Recording(self.calls),), Recording(self.calls), ("latents",))

    def run(self, which: LaunchKey) -> list[str]:
        """What one run of this key asks for."""
        self.calls.clear()
        launch = self.get(which)
        self.cache.before_run(launch)
        for call in (*launch.before, *launch.decoder, *launch.after):
            call(self.stream)
        return list(self.calls)


def test_first_plain_then_with_resources_of_its_own_then_captured_then_replayed() -> None:
    made = Cache()
    assert made.run(key()) == ["bind", "launch", "launch"]
    assert made.run(key()) == ["make", "make", "warm_up", "warm_up"]
    assert made.run(key()) == ["capture", "warm_up", "warm_up", "replay"]
    assert made.run(key()) == ["replay"]
    counts = made.cache.counts
    assert (counts.bound, counts.plain, counts.captured, counts.replayed) == (1, 2, 1, 2)


def test_a_launch_whose_executions_are_not_ready_runs_plainly_and_is_not_captured() -> None:
    made = Cache()
    made.run(key())
    launch = made.get(key())
    (decoder,) = launch.decoders
    assert isinstance(decoder, Recording)
    decoder.is_ready = False
    plain = ["launch", "launch"]
    assert [made.run(key()) for _ in range(3)] == [["make", "make", *plain], plain, plain]
    decoder.is_ready = True
    assert made.run(key()) == ["warm_up", "warm_up"]
    decoder.is_ready = False
    assert made.run(key()) == ["launch", "launch"]
    decoder.is_ready = True
    assert made.run(key()) == ["capture", "warm_up", "warm_up", "replay"]
    assert made.cache.counts.plain == 6


@dataclass
class Jobs:
    """What is made and ended beside the ticks, once the test says so."""

    waiting: list[tuple[Callable[[], None], Future[None]]] = field(default_factory=list)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        self.waiting.append((work, Future()))
        return self.waiting[-1][1]

    def run(self) -> None:
        for work, future in self.waiting:
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)
        self.waiting.clear()


def measured(made: Cache, *, plain_s: float = 0.003, creation_s: float = 0.01, replay_s: float = 0.001) -> None:
    """One key that is captured, and took these times."""
    for seconds in (1.0, creation_s, replay_s):  # what runs first is loaded
        made.run(key(9))
        made.cache.note(made.get(key(9)), seconds)
    made.run(key(8))
    made.cache.note(made.get(key(8)), plain_s)
    made.cache.times.creation_s = 0.001


@pytest.mark.parametrize(
    ("times", "runs"),
    [
        ({}, 6),
        ({"plain_s": 0.001}, math.inf),
        ({"creation_s": 0.2}, 101),
        ({"replay_s": 0.0029, "creation_s": 0.0}, 10),
    ],
)
def test_a_key_is_captured_once_it_has_come_back_as_often_as_pays_for_its_graph(
    times: dict[str, float], runs: float
) -> None:
    made, jobs = Cache(limit=200), Jobs()
    made.cache.beside = jobs.submit
    measured(made, **times)
    made.cache.bound_captures()
    assert made.cache.runs_before_capture == runs
    for _ in range(min(int(runs) if runs < math.inf else 300, 300)):
        assert "warm_up" not in made.run(key())
    assert jobs.waiting == []
    assert made.run(key()) == ["launch", "launch"], "what it needs is made beside the ticks"
    if runs == math.inf:
        assert jobs.waiting == []
        return
    assert made.run(key()) == ["launch", "launch"]
    assert len(jobs.waiting) == 1
    made.calls.clear()
    jobs.run()
    assert made.calls == ["make", "make"]
    assert made.run(key()) == ["warm_up", "warm_up"]
    assert [made.run(key()) for _ in range(3)] == [["launch", "launch"]] * 3, "the graph is made beside the ticks"
    assert len(jobs.waiting) == 1
    made.calls.clear()
    jobs.run()
    assert made.calls == ["capture", "warm_up", "warm_up"]
    assert made.run(key()) == ["replay"]
    assert made.cache.counts.captured == 2


def test_a_key_that_does_not_come_back_costs_nothing() -> None:
    made, jobs = Cache(limit=400), Jobs()
    made.cache.beside = jobs.submit
    measured(made, creation_s=0.2)
    made.cache.bound_captures()
    for number in range(50):
        for _ in range(4):  # of a generation of 8 steps, on one of two sides
            assert not {"make", "warm_up", "capture"} & set(made.run(key(generation=number + 1)))
    assert (jobs.waiting, made.cache.counts.captured) == ([], 1)


def test_what_cannot_be_made_runs_plainly_for_good_and_bounds_the_launches() -> None:
    made, jobs = Cache(limit=200), Jobs()
    made.cache.beside = jobs.submit
    measured(made)
    made.cache.bound_captures()
    made.run(key())
    (decoder,) = made.get(key()).decoders
    assert isinstance(decoder, Recording)
    decoder.makes_fail = True
    for _ in range(7):
        made.run(key())
    jobs.run()
    assert made.run(key()) == ["release", "release", "launch", "launch"]
    assert [made.run(key()) for _ in range(3)] == [["launch", "launch"]] * 3
    assert (made.cache.counts.failed, made.cache.limit) == (1, 8)


def captured_beside(made: Cache, jobs: Jobs) -> Launch:
    """A launch whose graph waits to be made beside the ticks."""
    made.cache.beside = jobs.submit
    made.cache.bound_captures()
    for _ in range(2):
        made.run(key())
    jobs.run()
    for _ in range(2):
        made.run(key())
    assert len(jobs.waiting) == 1
    return made.get(key())


def test_a_graph_that_cannot_be_made_beside_the_ticks_leaves_plain_launches(caplog: pytest.LogCaptureFixture) -> None:
    made, jobs = Cache(fails=True), Jobs()
    captured_beside(made, jobs)
    jobs.run()
    assert made.run(key()) == ["release", "release", "launch", "launch"]
    assert [made.run(key()) for _ in range(3)] == [["launch", "launch"]] * 3
    assert (made.cache.counts.failed, len(caplog.records), jobs.waiting) == (1, 1, [])


def test_a_device_that_dies_while_a_graph_is_made_ends_the_ticks() -> None:
    made, jobs = Cache(), Jobs()
    launch = captured_beside(made, jobs)

    def die(stream: Stream) -> None:
        raise EngineDeadError("illegal address")

    object.__setattr__(launch.step, "warm_up", die)
    jobs.run()
    with pytest.raises(EngineDeadError):
        made.run(key())


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_launch_that_goes_while_its_graph_is_made_is_closed_behind_that(is_begun: bool) -> None:
    """Jobs run one after the other, so that nothing is closed while it is captured."""
    made, jobs = Cache(), Jobs()
    captured_beside(made, jobs)
    made.calls.clear()
    if is_begun:
        jobs.run()
    made.cache.close()
    assert [call for call in made.calls if call in ("close", "release")] == []
    jobs.run()
    expected = ["capture", "warm_up", "warm_up", "close"] if is_begun else []
    assert made.calls == [*expected, "release", "release"]


def test_what_graphs_took_is_counted() -> None:
    made = Cache()
    made.device.free_bytes = 1000
    made.run(key())
    decoder: Any = made.get(key()).decoders[0]

    def make() -> None:
        made.device.free_bytes -= 300

    decoder.make = make
    for _ in range(2):
        assert made.cache.counts.creation_bytes == 0
        made.run(key())
    assert (made.cache.counts.captured, made.cache.counts.creation_bytes) == (1, 300)
    assert made.cache.counts.creation_s == made.cache.times.creation_s > 0.0


def test_before_the_bound_nothing_depends_on_times() -> None:
    made = Cache()
    measured(made, creation_s=100.0)
    assert [made.run(key())[-1] for _ in range(3)] == ["launch", "warm_up", "replay"]


def test_without_capture_it_is_bound_once_and_launched_plainly() -> None:
    made = Cache(captures=False)
    assert [made.run(key()) for _ in range(4)] == [["bind", "launch", "launch"], *[["launch", "launch"]] * 3]
    assert made.cache.counts.captured == 0


@pytest.mark.parametrize(
    "change",
    [
        {"frames": 18}, {"slot_count": 2}, {"executes": (Execute(0, 1, 8),)}, {"widths": (2, 1)},
        {"step": frozenset({"dcw"})}, {"rows": frozenset({"gain"})}, {"sides": (1,)}, {"generation": 1},
    ],
)  # fmt: skip
def test_anything_that_a_graph_bakes_in_makes_another_launch(change: dict[str, Any]) -> None:
    made = Cache()
    for _ in range(3):
        made.run(key())
    assert made.cache.can_reuse(key())
    assert not made.cache.can_reuse(key(**change))
    assert made.run(key(**change))[0] == "bind"


def test_a_launch_that_cannot_be_captured_runs_plainly_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = Cache(fails=True)
    for which in (key(1), key(2)):
        runs = [made.run(which) for _ in range(4)]
        assert runs[2:] == [["release", "release", "launch", "launch"], ["launch", "launch"]]
    assert made.cache.counts.failed == 2
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1 == len(caplog.records)


def test_the_least_recently_used_goes_first_and_is_closed_when_it_is_done() -> None:
    made = Cache(limit=2)
    for which in (key(1), key(2)):
        for _ in range(3):
            made.run(which)
    made.run(key(1))
    made.run(key(3))
    assert not made.cache.can_reuse(key(2))
    assert "close" not in made.calls
    assert made.cache.counts.evicted == 1
    for event in made.stream.events:
        event.wait()
    assert made.run(key(1)) == ["close", "release", "release", "replay"]


def test_dropping_leaves_the_others() -> None:
    made = Cache()
    made.run(key(1))
    made.run(key(2, frames=32))
    made.cache.drop(lambda which: which.frames == 32)
    assert made.cache.can_reuse(key(1))
    assert not made.cache.can_reuse(key(2, frames=32))


def test_closing_closes_everything() -> None:
    made = Cache()
    for _ in range(3):
        made.run(key())
    made.calls.clear()
    made.cache.close()
    assert made.calls == ["close", "release", "release"]
    assert len(made.cache) == 0


def test_a_warm_up_that_fails_falls_back_to_plain_launches(caplog: pytest.LogCaptureFixture) -> None:
    made = Cache()
    made.run(key())

    def fail(stream: Stream) -> None:
        raise EngineError("no memory")

    object.__setattr__(made.get(key()).step, "warm_up", fail)
    assert made.run(key()) == ["make", "make", "warm_up", "release", "release", "launch", "launch"]
    assert made.run(key()) == ["launch", "launch"]
    assert "launched plainly: no memory" in caplog.text
    assert made.cache.counts.failed == 1


@pytest.mark.parametrize(("error", "kept"), [(OutOfMemoryError("no memory"), 10), (EngineError("refused"), 64)])
def test_without_memory_no_more_launches_are_kept_than_were_captured(error: EngineError, kept: int) -> None:
    """Those that are evicted leave their resources to the next."""
    made = Cache(limit=64)
    for frames in range(10):
        for _ in range(3):
            made.run(key(frames=frames))
    made.run(key(frames=10))

    def fail(stream: Stream) -> None:
        raise error

    object.__setattr__(made.get(key(frames=10)).step, "warm_up", fail)
    made.run(key(frames=10))
    assert made.cache.limit == kept
    made.run(key(frames=11))
    assert len(made.cache) == min(kept, 12)


def test_a_device_that_died_while_warming_up_is_not_used_again() -> None:
    made = Cache()
    made.run(key())

    def die(stream: Stream) -> None:
        raise EngineDeadError("illegal address")

    object.__setattr__(made.get(key()).step, "warm_up", die)
    with pytest.raises(EngineDeadError):
        made.run(key())


def test_an_evicted_launch_is_marked_as_retired() -> None:
    made = Cache(limit=1)
    first = made.get(key(1))
    made.run(key(2))
    assert first.is_retired
    assert not made.get(key(2)).is_retired


# Ticks of 0.2 s (ACE-Step at 240 s, 8 rows): 20 minutes at each load make an hour.
TICKS, DEPTH, STEPS, LENGTHS, TOKENS = 6000, 8, 8, (16, 32, 64), (60, 160)


@cache
def prepared(frames: int, tokens: int) -> PreparedGeneration:
    return live_slot(frames=frames, conditions=(condition(tokens),), steps=STEPS).work


def replayed_share(load: float, deployment: Deployment, ticks: int = TICKS) -> float:
    """The share of ticks that replay the graphs of all their lengths, from the start on, while generations arrive as a
    Poisson process."""
    random, made = np.random.default_rng(0), Cache(limit=deployment.runtime.captured_graphs)
    rules = LayoutRules(deployment, True, 1)
    live: dict[int, list[LiveSlot]] = {frames: [] for frames in LENGTHS}
    layouts: dict[int, RowLayout | None] = dict.fromkeys(LENGTHS)
    sides, waiting, num_replayed, num_ticks = Counter[int](), deque[tuple[int, int]](), 0, 0
    while num_ticks < ticks:
        for _ in range(random.poisson(load * DEPTH / STEPS)):
            waiting.append((int(random.choice(LENGTHS)), int(random.integers(*TOKENS, endpoint=True))))
        while waiting and sum(map(len, live.values())) < DEPTH:
            work = prepared(*waiting.popleft())
            frames = work.request.frames
            index = min(set(range(DEPTH)) - {item.slot.index for item in live[frames]})
            live[frames].append(LiveSlot(Slot("", None, work, frames, STEPS, index=index), work, False))
            live[frames].sort(key=lambda item: item.slot.index)
            layouts[frames] = rules.lay_out(frames, live[frames], layouts[frames])
        counts, runs = replace(made.cache.counts), [frames for frames in LENGTHS if live[frames]]
        for frames in runs:
            layout = layouts[frames]
            assert layout is not None
            launch = made.get(key_of(layout, sides[frames]))
            made.cache.before_run(launch)
            sides[frames] = 1 - sides[frames]
            for item in live[frames]:
                item.slot.step += 1
            stays = [item for item in live[frames] if item.slot.step < STEPS]
            if stays and len(stays) < len(live[frames]):
                layouts[frames] = rules.lay_out(frames, stays, layout)
            live[frames] = stays
        added = made.cache.counts.since(counts)
        num_ticks += bool(runs)
        num_replayed += bool(runs) and added.captured == 0 and added.replayed == len(runs)
    return num_replayed / ticks


def key_of(layout: RowLayout, side: int) -> LaunchKey:
    rows = None if layout.is_identity else layout.row_features
    executes, widths = layout.executes, layout.widths
    return LaunchKey(
        layout.frames, layout.slot_count, executes, widths, layout.features, rows, 0, layout.has_rings, (side,), 0
    )


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9])
def test_over_an_hour_of_churn_ticks_on_a_gpu_replay(load: float) -> None:
    assert replayed_share(load, deployment(depth=DEPTH, target="tensorrt", tokens=256)) >= 0.97


def test_without_few_shapes_most_ticks_would_not_replay() -> None:
    """What the test above would see with the shapes of the CPU."""
    assert replayed_share(0.6, deployment(depth=DEPTH, tokens=256), ticks=1000) < 0.5
