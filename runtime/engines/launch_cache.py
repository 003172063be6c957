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

from runtime.base.errors import OutOfMemoryError, TickError, UnitOfWork
from runtime.devices.device import Device, Event, Level, Replay, Stream
from runtime.engines.engine import Execution

logger = logging.getLogger(__name__)

# A tick's own launches, one per length, are never retired before they have run.
LEAST_KEPT = 8
TIMES_WEIGHT = 0.1  # of the newest time in the mean one

Call = Callable[[Stream], None]
Beside = Callable[[Callable[[], None]], Future[None]]


def at_once(work: Callable[[], None]) -> Future[None]:
    """In this thread. Raises EngineDeadError."""
    done = Future[None]()
    with UnitOfWork("work beside the ticks", done.set_exception):
        work()
        done.set_result(None)
    return done


class LaunchState(Enum):
    """How far a launch is on its way to a captured graph. It holds resources of its own while WARM or CAPTURED."""

    NEW = auto()  # has not run
    PLAIN = auto()  # has run plainly; is made and warmed up next
    WARM = auto()  # has run with resources of its own; is captured next, and runs plainly until then
    CAPTURED = auto()  # is replayed
    REFUSED = auto()  # could not be warmed up or captured: runs plainly for good


@dataclass(slots=True, eq=False)
class Launch:
    """A tick's executions of one kind, bound, in order: rows (where needed), decoder, step.

    key: everything that a captured graph bakes in. `writes` names the double-buffered states whose other side it
    writes. before, decoder, after: what the next run calls, decoder in between two events; of a captured graph, all of
    it is there. plain_runs: how often it has run plainly. job: what makes what its next state needs. warmed: behind its
    warm-up. creation_s, creation_bytes: what its jobs took of their thread's time and of the device's memory.
    """

    key: Any
    rows: Execution | None
    decoders: tuple[Execution, ...]
    step: Execution
    writes: tuple[str, ...] = ()
    replay: Replay | None = None
    plain_runs: int = 0
    job: Future[None] | None = None
    warmed: Event | None = None
    creation_s: float = 0.0
    creation_bytes: int = 0
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
        """Launch each execution, with what executions share."""
        self.before = () if self.rows is None else (self.rows.launch,)
        self.decoder = tuple(execution.launch for execution in self.decoders)
        self.after = (self.step.launch,)

    def set_warm_up(self, failed: Callable[[TickError], None]) -> None:
        """Run each execution with resources of its own: what a capture needs to have happened before.

        Where one has none, `failed` is called, and the executions run plainly.
        """
        self.state, self.job = LaunchState.WARM, None
        self.before, self.decoder, self.after = (), (partial(self._warm_up, failed),), ()

    def capture(self, device: Device, stream: Stream) -> None:
        """Capture all executions from a stream, in any thread, while launches go on. Raises CaptureError."""

        def launch_all() -> None:
            for execution in self.executions:
                execution.warm_up(stream)

        self.replay = device.capture(stream, launch_all)

    def set_replay(self) -> None:
        """Launch the captured graph of all executions."""
        assert self.replay is not None
        self.state, self.job, self.warmed = LaunchState.CAPTURED, None, None
        self.before, self.decoder, self.after = (), (self.replay.launch,), ()

    def give_up(self) -> None:
        """Launch each execution from now on, without resources of its own."""
        self._release()
        self.job = None
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
            self.warmed = stream.record()
            return
        for execution in self.executions:
            execution.launch(stream)

    def _release(self) -> None:
        if self.holds_resources or self.job is not None:
            for execution in self.executions:
                execution.release()


@dataclass(slots=True)
class HostTimes:
    """Seconds that a run takes the tick thread, and a graph its maker, as running means: what graphs cost and save."""

    plain_s: float = 0.0
    warm_up_s: float = 0.0
    creation_s: float = 0.0
    replay_s: float = 0.0

    def note(self, name: str, seconds: float) -> None:
        """One more of a kind."""
        mean_s = getattr(self, name)
        setattr(self, name, seconds if mean_s == 0.0 else mean_s + TIMES_WEIGHT * (seconds - mean_s))

    def runs_before_capture(self) -> float:
        """How often a launch runs plainly before it is captured: as often as would have paid for its graph.

        It costs at most twice what it would have cost to know it before. 1 where nothing has been
        measured; infinite where a graph saves nothing.
        """
        if not (self.plain_s and self.replay_s and self.creation_s):
            return 1
        saved_s, cost_s = self.plain_s - self.replay_s, self.warm_up_s + self.creation_s
        return math.ceil(cost_s / saved_s) if saved_s > 0.0 else math.inf


@dataclass(slots=True)
class LaunchCounts:
    """How often launches were bound, captured, replayed, run plainly, evicted, and could not be captured.

    creation_s, creation_bytes: what all captured graphs took of their maker's time, and by how much the device's free
    memory fell meanwhile (also by what others took or returned then).
    """

    bound: int = 0
    captured: int = 0
    replayed: int = 0
    plain: int = 0
    evicted: int = 0
    failed: int = 0
    creation_s: float = 0.0
    creation_bytes: int = 0

    def since(self, earlier: LaunchCounts) -> LaunchCounts:
        """What has been added since `earlier`."""
        return LaunchCounts(*[getattr(self, name) - getattr(earlier, name) for name in self.__slots__])

    def __add__(self, other: LaunchCounts) -> LaunchCounts:
        return LaunchCounts(*[getattr(self, name) + getattr(other, name) for name in self.__slots__])


@dataclass(slots=True)
class LaunchCache:
    """The launches that were used last, at most `limit`. One that is evicted is closed, `beside`, once its last run is
    done.

    With `captures`, a launch runs plainly the first time, with resources of its own the second time, and from the third
    time on as a captured graph; plainly too as long as its executions are not prepared. After `bound_captures` only one
    that has come back as often as pays for its graph: what that needs and the graph itself are made `beside`, from a
    stream of its own, and handed over complete; until then it runs plainly. Where its warm-up or its capture fails it
    runs plainly for good; where that is for want of memory, no more launches are kept than there was memory for.
    """

    device: Device
    stream: Stream
    limit: int
    captures: bool
    beside: Beside = at_once
    counts: LaunchCounts = field(default_factory=LaunchCounts)
    times: HostTimes = field(default_factory=HostTimes)
    runs_before_capture: float = 1
    _capturing: Stream | None = None
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
        elif self.captures and launch.plain_runs >= self.runs_before_capture:
            self._advance(launch)
        if launch.state is not LaunchState.CAPTURED:
            self.counts.plain += 1
            launch.plain_runs += 1
        else:
            self.counts.replayed += 1

    def note(self, launch: Launch, seconds: float) -> None:
        """What the tick thread spent on a run: what a graph costs and saves, until captures are bounded by that."""
        if self._capturing is not None:
            return
        names = {LaunchState.PLAIN: "plain_s", LaunchState.WARM: "warm_up_s", LaunchState.CAPTURED: "replay_s"}
        if launch.state in names and self.counts.plain > 1:  # what runs first is loaded
            self.times.note(names[launch.state], seconds)

    def bound_captures(self) -> None:
        """From now on capture what pays for it, by the times so far, beside the ticks."""
        self.runs_before_capture = self.times.runs_before_capture()
        self._capturing = self._capturing or self.device.stream(Level.BACKGROUND)

    def drop(self, is_stale: Callable[[Any], bool]) -> None:
        """Remove every launch whose key is stale; each is closed once its last run is done."""
        for key in [key for key in self._launches if is_stale(key)]:
            self._retire(self._launches.pop(key))

    def close(self) -> None:
        """Remove and close every launch, `beside`. No work may be pending."""
        self.drop(lambda key: True)
        while self._retired:
            self.beside(self._retired.popleft()[0].close)

    def _advance(self, launch: Launch) -> None:
        """Warm up what is made, replay what is captured; plainly until then."""
        if launch.state is LaunchState.PLAIN:
            launch.set_plain()
            if self._has_done(launch, launch.make) and self._is_prepared(launch):
                launch.set_warm_up(partial(self._failed, launch))
        elif launch.state is LaunchState.WARM:
            launch.set_plain()
            may_capture = launch.job is not None or self._is_prepared(launch)
            if may_capture and self._has_done(launch, partial(self._capture, launch)):
                launch.set_replay()
                self._count_capture(launch)

    def _is_prepared(self, launch: Launch) -> bool:
        """All executions are asked, so that each begins what it lacks; not while another thread captures them."""
        are_ready = [execution.prepare(self.stream) for execution in launch.executions]
        return all(are_ready)

    def _has_done(self, launch: Launch, work: Callable[[], None]) -> bool:
        """Whether the work that a launch's next state needs is done, which is begun where it is not; where it has
        failed, the launch is given up."""
        if launch.job is None:
            run = at_once if self._capturing is None else self.beside
            launch.job = run(partial(self._measured, launch, work))
        if not launch.job.done():
            return False
        with UnitOfWork("the making of a captured graph", partial(self._failed, launch)):
            launch.job.result()
            return True
        return False

    def _measured(self, launch: Launch, work: Callable[[], None]) -> None:
        if launch.is_retired:  # nothing waits for it any more
            return
        if launch.warmed is not None and self._capturing is not None:
            # The maker of graphs waits, no tick: until the warm-up has run, whose contexts may be on one stream only.
            launch.warmed.wait()
        free_bytes, began_s = self.device.free_bytes, perf_counter()
        work()
        launch.creation_s += perf_counter() - began_s
        launch.creation_bytes += free_bytes - self.device.free_bytes

    def _capture(self, launch: Launch) -> None:
        stream = self._capturing or self.stream
        launch.capture(self.device, stream)
        if stream is not self.stream:
            # The maker of graphs waits: until the graph is on the device, for the stream of the ticks.
            stream.record().wait()

    def _count_capture(self, launch: Launch) -> None:
        self.counts.captured += 1
        self.counts.creation_s += launch.creation_s
        self.counts.creation_bytes += launch.creation_bytes
        self.times.note("creation_s", launch.creation_s)

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
            self.beside(self._retired.popleft()[0].close)
