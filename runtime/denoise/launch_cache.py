"""Bound launches, found again by what they bake in; on a device with graphs, captured once they prove to come back."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from runtime.devices.device import Device, Event, Replay, Stream
from runtime.engines.engine import Execution
from runtime.errors import CaptureError, EngineError

logger = logging.getLogger(__name__)


class LaunchKey(NamedTuple):
    """Everything that a captured graph bakes in: shapes, engines, and which sides of the state are read."""

    frames: int
    slot_count: int
    executes: tuple[tuple[int, int, int], ...]
    widths: tuple[int, int]
    step: frozenset[str]
    rows: frozenset[str] | None
    sides: tuple[int, ...]
    generation: int


@dataclass(slots=True)
class Launch:
    """One tick's executions of a bucket, bound, in order: rows (where needed), decoder, step.

    `writes` names the double-buffered arrays whose other side it writes; `last` is an event after its last run.
    """

    rows: Execution | None
    decoder: tuple[Execution, ...]
    step: Execution
    writes: tuple[str, ...]
    replay: Replay | None = None
    is_warm: bool = False
    is_plain: bool = False
    last: Event | None = None

    def run(self, stream: Stream) -> tuple[Event, Event]:
        """Put everything on the stream. The events enclose the decoder; of a captured graph, all of it."""
        if self.replay is not None:
            begin = stream.record()
            self.replay.launch(stream)
            self.last = stream.record()
            return begin, self.last
        return self._each(stream, lambda execution: execution.launch(stream))

    def warm_up(self, stream: Stream) -> tuple[Event, Event]:
        """Run everything once with resources of its own: what a capture needs to have happened before."""
        self.is_warm = True
        try:
            return self._each(stream, lambda execution: execution.warm_up(stream))
        except EngineError:
            self._release()
            raise

    def capture(self, device: Device, stream: Stream) -> None:
        """Turn it into one graph. Raises CaptureError; it runs plainly then."""
        self.replay = device.capture(stream, lambda: self._launch_all(stream))

    def close(self) -> None:
        """Let go of the graph and of what it held. Its last run must be done."""
        if self.replay is not None:
            self.replay.close()
            self.replay = None
        self._release()

    def _release(self) -> None:
        if self.is_warm:
            self.is_warm = False
            for execution in self._executions():
                execution.release()

    def _executions(self) -> tuple[Execution, ...]:
        return (*(() if self.rows is None else (self.rows,)), *self.decoder, self.step)

    def _launch_all(self, stream: Stream) -> None:
        for execution in self._executions():
            execution.launch(stream)

    def _each(self, stream: Stream, start: Callable[[Execution], None]) -> tuple[Event, Event]:
        if self.rows is not None:
            start(self.rows)
        begin = stream.record()
        for execution in self.decoder:
            start(execution)
        end = stream.record()
        start(self.step)
        self.last = end
        return begin, end


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
        return LaunchCounts(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    def copy(self) -> LaunchCounts:
        """These counts, as of now."""
        return LaunchCounts(*(getattr(self, f.name) for f in fields(self)))


@dataclass(slots=True)
class LaunchCache:
    """The launches that were used last, at most `limit`. One that falls out is closed once its last run is done.

    With `captures`, a launch runs plainly the first time, with resources of its own the second time, and from the third
    time on as a captured graph.
    """

    device: Device
    stream: Stream
    limit: int
    captures: bool
    counts: LaunchCounts = field(default_factory=LaunchCounts)
    _launches: OrderedDict[LaunchKey, Launch] = field(default_factory=OrderedDict)
    _retired: deque[tuple[Launch, Event]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._launches)

    def can_reuse(self, key: LaunchKey) -> bool:
        """Whether a launch is there that bakes in exactly this."""
        return key in self._launches

    def get(self, key: LaunchKey, bind: Callable[[], Launch]) -> Launch:
        """The launch for `key`, bound where there is none. Raises EngineError."""
        self._close_retired()
        if self.can_reuse(key):
            self._launches.move_to_end(key)
        else:
            self._launches[key] = bind()
            self.counts.bound += 1
            if len(self._launches) > self.limit:
                self._retire(self._launches.popitem(last=False)[1])
        return self._launches[key]

    def run(self, launch: Launch) -> tuple[Event, Event]:
        """Run a launch in the way that is due. Raises EngineError."""
        if self.captures and launch.replay is None and not launch.is_plain:
            if launch.is_warm:
                self._capture(launch)
            elif launch.last is not None:
                self.counts.plain += 1
                return launch.warm_up(self.stream)
        if launch.replay is None:
            self.counts.plain += 1
        else:
            self.counts.replayed += 1
        return launch.run(self.stream)

    def drop(self, is_stale: Callable[[LaunchKey], bool]) -> None:
        """Let go of every launch whose key is stale."""
        for key in [key for key in self._launches if is_stale(key)]:
            self._retire(self._launches.pop(key))

    def close(self) -> None:
        """Let go of all. No work may be pending."""
        self.drop(lambda key: True)
        while self._retired:
            self._retired.popleft()[0].close()

    def _capture(self, launch: Launch) -> None:
        try:
            launch.capture(self.device, self.stream)
            self.counts.captured += 1
        except CaptureError as error:
            launch.is_plain = True
            if self.counts.failed == 0:
                logger.warning("a tick cannot be captured as a graph and is launched plainly: %s", error)
            self.counts.failed += 1

    def _retire(self, launch: Launch) -> None:
        self.counts.evicted += 1
        self._retired.append((launch, self.stream.record()))
        self._close_retired()

    def _close_retired(self) -> None:
        while self._retired and self._retired[0][1].is_done:
            self._retired.popleft()[0].close()
