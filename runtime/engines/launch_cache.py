"""Bound launches, found again by what they bake in; on a device with graphs, captured once they prove to come back."""

from __future__ import annotations

import logging
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from time import perf_counter
from typing import Any

from runtime.devices.device import Device, Event, Replay, Stream
from runtime.engines.context import End, end_now
from runtime.engines.engine import Execution
from runtime.errors import CaptureError, OutOfMemoryError, TickError
from runtime.failures import UnitOfWork, failure_of

logger = logging.getLogger(__name__)

# A tick's own launches, one per length, are never retired before they have run.
LEAST_KEPT = 8
TIMES_WEIGHT = 0.1  # of the newest time in the mean one

Call = Callable[[Stream], None]


class LaunchState(Enum):
    """How far a launch is on its way to a captured graph. It holds resources of its own while WARM or CAPTURED."""

    NEW = auto()  # has not run
    PLAIN = auto()  # has run plainly; is warmed up next
    WARM = auto()  # has run with resources of its own; is captured next
    CAPTURED = auto()  # is replayed
    REFUSED = auto()  # could not be warmed up or captured: runs plainly for good


@dataclass(slots=True, eq=False)
class Launch:
    """A tick's executions of one kind, bound, in order: rows (where needed), decoder, step.

    key: everything that a captured graph bakes in. `writes` names the double-buffered states whose other side it
    writes. before, decoder, after: what the next run calls, decoder in between two events; of a captured graph, all of
    it is there. plain_runs: how often it has run plainly. making: what its warm-up needs, beside the ticks.
    """

    key: Any
    rows: Execution | None
    decoders: tuple[Execution, ...]
    step: Execution
    writes: tuple[str, ...] = ()
    replay: Replay | None = None
    plain_runs: int = 0
    making: Future[None] | None = None
    state: LaunchState = LaunchState.NEW
    is_retired: bool = False
    before: tuple[Call, ...] = ()
    decoder: tuple[Call, ...] = ()
    after: tuple[Call, ...] = ()

    def __post_init__(self) -> None:
        self.set_plain()

    @property
    def executions(self) -> tuple[Execution, ...]:
        """All of them, in order."""
        return (*(() if self.rows is None else (self.rows,)), *self.decoders, self.step)

    @property
    def calls(self) -> tuple[Call, ...]:
        """What the next run calls, in order."""
        return (*self.before, *self.decoder, *self.after)

    @property
    def holds_resources(self) -> bool:
        """Whether its executions have resources that no others have."""
        return self.state in (LaunchState.WARM, LaunchState.CAPTURED)

    def make(self) -> None:
        """Make what a warm-up needs, in any thread. Raises EngineError."""
        for execution in self.executions:
            execution.make()

    def set_plain(self) -> None:
        """Launch each execution."""
        self.before = () if self.rows is None else (self.rows.launch,)
        self.decoder = tuple(execution.launch for execution in self.decoders)
        self.after = (self.step.launch,)

    def set_warm_up(self, failed: Callable[[TickError], None]) -> None:
        """Run each execution with resources of its own: what a capture needs to have happened before.

        Where one has none, `failed` is called, and the executions run plainly.
        """
        self.state = LaunchState.WARM
        self.before, self.decoder, self.after = (), (partial(self._warm_up, failed),), ()

    def set_replay(self, replay: Replay) -> None:
        """Launch the captured graph of all executions."""
        self.replay, self.state = replay, LaunchState.CAPTURED
        self.before, self.decoder, self.after = (), (replay.launch,), ()

    def give_up(self) -> None:
        """Launch each execution from now on, without resources of its own."""
        self._release()
        self.state = LaunchState.REFUSED
        self.set_plain()

    def close(self) -> None:
        """Release the graph and what it held. Its last run must be done."""
        if self.replay is not None:
            self.replay.close()
            self.replay = None
        self._release()

    def _warm_up(self, failed: Callable[[TickError], None], stream: Stream) -> None:
        """Of what ran before one fails, nothing has changed the state."""
        with UnitOfWork("the warm-up of a tick", failed):
            for execution in self.executions:
                execution.warm_up(stream)
            return
        for execution in self.executions:
            execution.launch(stream)

    def _release(self) -> None:
        if self.holds_resources or self.making is not None:
            for execution in self.executions:
                execution.release()


@dataclass(slots=True)
class HostTimes:
    """Seconds that the tick thread spends on runs and on captures, as running means: what a graph costs and saves."""

    plain_s: float = 0.0
    warm_up_s: float = 0.0
    capture_s: float = 0.0
    replay_s: float = 0.0

    def note(self, name: str, seconds: float) -> None:
        """One more of a kind."""
        mean_s = getattr(self, name)
        setattr(self, name, seconds if mean_s == 0.0 else mean_s + TIMES_WEIGHT * (seconds - mean_s))

    def runs_before_capture(self) -> float:
        """How often a launch runs plainly before it is captured: as often as would have paid for its graph.

        Whatever comes then, it costs at most twice what it would have cost to know it before. 1 where nothing has been
        measured; infinite where a graph saves nothing.
        """
        if not (self.plain_s and self.replay_s and self.capture_s):
            return 1
        saved_s, creation_s = self.plain_s - self.replay_s, self.warm_up_s + self.capture_s
        return math.ceil(creation_s / saved_s) if saved_s > 0.0 else math.inf


@dataclass(slots=True)
class LaunchCounts:
    """How often launches were bound, captured, replayed, run plainly, evicted, and could not be captured."""

    bound: int = 0
    captured: int = 0
    replayed: int = 0
    plain: int = 0
    evicted: int = 0
    failed: int = 0

    def since(self, earlier: LaunchCounts) -> LaunchCounts:
        """What has been added since `earlier`."""
        return LaunchCounts(
            self.bound - earlier.bound,
            self.captured - earlier.captured,
            self.replayed - earlier.replayed,
            self.plain - earlier.plain,
            self.evicted - earlier.evicted,
            self.failed - earlier.failed,
        )

    def __add__(self, other: LaunchCounts) -> LaunchCounts:
        return LaunchCounts(*[getattr(self, name) + getattr(other, name) for name in self.__slots__])


@dataclass(slots=True)
class LaunchCache:
    """The launches that were used last, at most `limit`. One that is evicted is closed, by `end`, once its last run is
    done.

    With `captures`, a launch runs plainly the first time, with resources of its own the second time, and from the third
    time on as a captured graph; plainly too as long as its executions are not prepared. After `bound_captures` only one
    that has come back as often as pays for its graph, and what it needs is made by `end`. Where its warm-up or its
    capture fails it runs plainly; where that is for want of memory, no more launches are kept than there was memory
    for.
    """

    device: Device
    stream: Stream
    limit: int
    captures: bool
    end: End = end_now
    counts: LaunchCounts = field(default_factory=LaunchCounts)
    times: HostTimes = field(default_factory=HostTimes)
    runs_before_capture: float = 1
    _is_bounded: bool = False
    _launches: OrderedDict[Any, Launch] = field(default_factory=OrderedDict)
    _retired: deque[tuple[Launch, Event]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._launches)

    def can_reuse(self, key: Any) -> bool:
        """Whether a launch is there that bakes in exactly this."""
        return key in self._launches

    def get(self, key: Any, bind: Callable[[], Launch]) -> Launch:
        """The launch for `key`, bound where there is none. Raises EngineError."""
        if self._retired:
            self._close_retired()
        if self.can_reuse(key):
            self._launches.move_to_end(key)
            return self._launches[key]
        launch = self._launches[key] = bind()
        self.counts.bound += 1
        while len(self._launches) > self.limit:
            self._retire(self._launches.popitem(last=False)[1])
        return launch

    def touch(self, launch: Launch) -> None:
        """Note that a launch is used again."""
        if self._retired:
            self._close_retired()
        self._launches.move_to_end(launch.key)

    def before_run(self, launch: Launch) -> None:
        """Choose how the launch runs now: plainly, as a warm-up, or as a captured graph."""
        if launch.state is LaunchState.NEW:
            launch.state = LaunchState.PLAIN
        elif self._may_advance(launch):
            self._advance(launch)
        if launch.state is not LaunchState.CAPTURED:
            self.counts.plain += 1
            launch.plain_runs += 1
        else:
            self.counts.replayed += 1

    def note(self, launch: Launch, seconds: float) -> None:
        """What the tick thread spent on a run."""
        names = {LaunchState.PLAIN: "plain_s", LaunchState.WARM: "warm_up_s", LaunchState.CAPTURED: "replay_s"}
        if launch.state in names and self.counts.plain > 1:  # what runs first is loaded
            self.times.note(names[launch.state], seconds)

    def bound_captures(self) -> None:
        """From now on capture what pays for it, by the times so far, and make what that needs beside the ticks."""
        self.runs_before_capture, self._is_bounded = self.times.runs_before_capture(), True

    def drop(self, is_stale: Callable[[Any], bool]) -> None:
        """Remove every launch whose key is stale; each is closed once its last run is done."""
        for key in [key for key in self._launches if is_stale(key)]:
            self._retire(self._launches.pop(key))

    def close(self) -> None:
        """Remove and close every launch. No work may be pending."""
        self.drop(lambda key: True)
        while self._retired:
            self._retired.popleft()[0].close()

    def _may_advance(self, launch: Launch) -> bool:
        """Whether it is on its way to a graph, has come back often enough, and has what it needs."""
        is_on_its_way = self.captures and launch.state in (LaunchState.PLAIN, LaunchState.WARM)
        return is_on_its_way and launch.plain_runs >= self.runs_before_capture and self._is_made(launch)

    def _is_made(self, launch: Launch) -> bool:
        """Whether a warm-up would find what it needs; begins to make it, beside the ticks, where they have clients."""
        if not self._is_bounded or launch.state is not LaunchState.PLAIN:
            return True
        if launch.making is None:
            launch.making = self.end(launch.make)
        if launch.making is None or not launch.making.done():
            return launch.making is None
        if (error := launch.making.exception()) is not None:
            self._failed(launch, failure_of(error, "the making of a captured graph"))
            return False
        return True

    def _advance(self, launch: Launch) -> None:
        """Warm up, then capture. All executions are asked, so that each begins what it lacks."""
        are_ready = [execution.prepare(self.stream) for execution in launch.executions]
        if not all(are_ready):
            launch.set_plain()
        elif launch.state is LaunchState.WARM:
            self._capture(launch)
        else:
            launch.set_warm_up(partial(self._failed, launch))

    def _capture(self, launch: Launch) -> None:
        def launch_all() -> None:
            for execution in launch.executions:
                execution.launch(self.stream)

        launch.set_plain()
        started_s = perf_counter()
        try:
            replay = self.device.capture(self.stream, launch_all)
        except CaptureError as error:
            self._failed(launch, error)
        else:
            if replay is not None:
                self.counts.captured += 1
                self.times.note("capture_s", perf_counter() - started_s)
                launch.set_replay(replay)

    def _failed(self, launch: Launch, error: TickError) -> None:
        launch.give_up()
        if self.counts.failed == 0:
            logger.warning("a tick cannot be captured as a graph and is launched plainly: %s", error)
        self.counts.failed += 1
        if any(isinstance(cause, OutOfMemoryError) for cause in (error, error.__cause__)):
            num_warm = sum(other.holds_resources for other in self._launches.values())
            self.limit = min(self.limit, max(num_warm, LEAST_KEPT))

    def _retire(self, launch: Launch) -> None:
        self.counts.evicted += 1
        launch.is_retired = True
        self._retired.append((launch, self.stream.record()))
        self._close_retired()

    def _close_retired(self) -> None:
        while self._retired and self._retired[0][1].is_done:
            self.end(self._retired.popleft()[0].close)
