"""Launches are found again by what they bake in, captured when they come back, and closed only when they are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from runtime.denoise.launch_cache import Launch, LaunchCache, LaunchKey
from runtime.denoise.row_layout import Execute
from runtime.devices.device import HostDevice, Replay, Stream
from runtime.errors import CaptureError, EngineDeadError, EngineError


@dataclass
class Recording:
    """An execution that notes what is asked of it."""

    calls: list[str]

    def launch(self, stream: Stream) -> None:
        self.calls.append("launch")

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
    base = LaunchKey(16, slot_count, (Execute(0, slot_count, 4),), (1, 1), frozenset(), None, 0, (0,), 0)
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
    assert made.run(key()) == ["warm_up", "warm_up"]
    assert made.run(key()) == ["capture", "launch", "launch", "replay"]
    assert made.run(key()) == ["replay"]
    counts = made.cache.counts
    assert (counts.bound, counts.plain, counts.captured, counts.replayed) == (1, 2, 1, 2)


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
        assert [made.run(which) for _ in range(4)][2:] == [["launch", "launch"]] * 2
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
    assert made.run(key()) == ["warm_up", "release", "release", "launch", "launch"]
    assert made.run(key()) == ["launch", "launch"]
    assert "launched plainly: no memory" in caplog.text


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
