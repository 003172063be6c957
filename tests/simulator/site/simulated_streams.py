"""Streams and events of the simulated machine: when work runs, and the check that accesses are ordered."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable

from simulated_driver import Driver
from simulated_memory import POISON, Access, Allocation
from simulated_parts import (
    CAPTURE_IMPLICIT,
    CAPTURE_INVALIDATED,
    CAPTURE_ISOLATION,
    CAPTURED_EVENT,
    ILLEGAL_ADDRESS,
    INVALID_HANDLE,
    LEAST_PRIORITY,
    LEGACY_STREAMS,
    NOT_READY,
    Event,
    Pending,
    Range,
    Record,
    RefusedError,
    Stream,
    Work,
    merge,
)  # fmt: skip

# An event completes after this many queries, also where the host never waits for it.
MAX_QUERIES = 1000
# So many waits of the host for a stream later, work of another one of the same priority has begun.
LATEST_WAITS = 2


class Streams(Driver):
    """Work runs in the order of its stream; events order it between streams and for the host."""

    # Work.

    def enqueue(
        self,
        stream: int,
        work: Callable[[], None],
        *,
        reads: Iterable[Range] = (),
        writes: Iterable[Range] = (),
        what: str,
        poison: Iterable[Range] = (),
        sources: Iterable[Range] = (),
        check: Callable[[], None] | None = None,
    ) -> bool:
        """Put work on a stream, or into its capture. False where the stream refuses it (`last_error` says why).

        Ranges are (address, size). Exceptions of `work` other than RuleBroken are errors of the simulator.
        """
        with self._lock:
            self._check_seen(what)
            item = Work(work, tuple(reads), tuple(writes), what, tuple(poison), tuple(sources), check)
            try:
                self._put(stream, item)
            except RefusedError as refused:
                self.last_error = refused.code
                return False
            return True

    def _check_seen(self, what: str) -> None:
        if self.last_error and not self.sticky:
            self.break_rule(f"{what}: error {self.last_error} of an earlier call was never checked")

    def _put(self, handle: int, work: Work) -> None:
        self.check_alive()
        stream = self.stream(handle)
        if stream.capture is None:
            self._check_legacy(handle)
            self.counters["launches"] += 1
            self._submit(stream, (work,), work.what)
            return
        if stream.capture.broken:
            raise RefusedError(CAPTURE_INVALIDATED, stream.capture.broken)
        self._take_back()
        for address, size in (*work.reads, *work.writes):
            self._check_lent(self._find(address, size, work.what), address, size, work.what)
        stream.capture.works.append(work)

    def _submit(
        self, stream: Stream, works: tuple[Work, ...], what: str, done: Callable[[], None] | None = None
    ) -> None:
        """Number the work, check its accesses against those of other streams, and queue it."""
        self._advance(stream)
        used = [self._touch(stream, work) for work in works]
        sums = [self._checksums(work) for work in works]
        for allocation in (allocation for allocations in used for allocation in allocations):
            allocation.pending += 1
        for address, size in (pair for work in works for pair in work.poison if self.late):
            self.memory(address, size, what).fill(POISON)

        def run() -> None:
            for work, allocations, checksums in zip(works, used, sums, strict=True):
                self._run(work, checksums)
                for allocation in allocations:
                    allocation.pending -= 1
            if done is not None:
                done()

        stream.queue.append(Pending(stream.number, run, self.counters["host_waits"]))
        if not self.late:
            self._run_to(stream, stream.number)

    def _run(self, work: Work, checksums: list[int]) -> None:
        if self.sticky:
            return
        if self.strikes("async_error_at"):
            self.sticky = self.faults.get("async_error", ILLEGAL_ADDRESS)
            return
        if self._checksums(work) != checksums:
            self.break_rule(f"{work.what}: pinned source changed while a copy was pending")
        for address, size in (*work.reads, *work.writes):
            self._find(address, size, work.what)
        work.run()
        self.counters["works"] += 1

    def _checksums(self, work: Work) -> list[int]:
        return [zlib.crc32(self.memory(address, size, work.what)) for address, size in work.sources]

    def _touch(self, stream: Stream, work: Work) -> list[Allocation]:
        """Check that earlier accesses to these bytes are ordered before this work, then record its own."""
        if work.check is not None:
            work.check()
        self._take_back()
        access = Access(stream.handle, stream.number, work.what)
        ranges = [(*pair, False) for pair in work.reads] + [(*pair, True) for pair in work.writes]
        used = []
        for address, size, is_write in ranges:
            allocation = self._find(address, size, work.what)
            self._check_lent(allocation, address, size, work.what)
            used.append(allocation)
            for segment in allocation.segments(address, size):
                others = [segment.write, *segment.reads.values()] if is_write else [segment.write]
                self._check_order(stream, access, [other for other in others if other is not None])
        for allocation, (address, size, is_write) in zip(used, ranges, strict=True):
            for segment in allocation.segments(address, size):
                segment.note(access, is_write=is_write)
        return used

    def _check_order(self, stream: Stream, access: Access, others: list[Access]) -> None:
        for other in others:
            if other.stream != stream.handle and other.number > stream.clock.get(other.stream, 0):
                self.break_rule(
                    f"unordered access: '{access.what}' on stream {access.stream:#x} uses what '{other.what}' on "
                    f"stream {other.stream:#x} uses, and does not wait for it"
                )

    def _advance(self, stream: Stream) -> None:
        stream.number += 1
        merge(stream.clock, self._host)
        stream.clock[stream.handle] = stream.number

    def _run_to(self, stream: Stream, number: int) -> None:
        """Run a stream's work up to a number; before each piece all work of higher priority that could begin, and that
        of the same priority which is old."""
        while stream.queue and stream.queue[0].number <= number:
            first = min(self._ahead(stream), key=lambda other: other.priority, default=stream)
            if (after := first.queue[0].after) is not None and first.queue[0].is_blocked:
                self._run_to(*after)
            else:
                first.queue.popleft().run()

    def _ahead(self, stream: Stream) -> list[Stream]:
        old = self.counters["host_waits"] - LATEST_WAITS
        return [
            other
            for other in self.streams.values()
            if other.queue and other is not stream and not other.queue[0].is_blocked
            if other.priority < stream.priority or (other.priority == stream.priority and other.queue[0].waits < old)
        ]

    def _check_legacy(self, handle: int) -> None:
        if handle not in LEGACY_STREAMS:
            return
        for stream in self.streams.values():
            if stream.capture is not None:
                stream.capture.broken = "the legacy default stream was used during the capture"
                raise RefusedError(CAPTURE_IMPLICIT, stream.capture.broken)

    # Streams and events.

    def create_stream(self, priority: int = LEAST_PRIORITY) -> int:
        """A non-blocking stream. CUDA moves a priority outside the device's range into it."""
        with self._lock:
            self.check_alive()
            handle = next(self._handles)
            self.streams[handle] = Stream(handle, min(max(priority, self.greatest_priority), LEAST_PRIORITY))
            return handle

    def stream(self, handle: int) -> Stream:
        """The stream of a handle. Raises RuleBroken where there is none."""
        stream = self.streams.get(0 if handle in LEGACY_STREAMS else handle)
        if stream is None or stream.is_destroyed:
            self.break_rule(f"{handle:#x} is not a stream" + (", it was destroyed" if stream else ""))
        assert stream is not None
        return stream

    def destroy_stream(self, handle: int) -> None:
        """Destroy a stream; later calls with its handle break a rule."""
        with self._lock:
            self.stream(handle).is_destroyed = True

    def synchronize(self, handle: int | None = None) -> None:
        """The host waits for everything on a stream, or on all. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            for stream in list(self.streams.values()) if handle is None else [self.stream(handle)]:
                self.unsafe_call("synchronizing", stream)
                self._run_to(stream, stream.number)
                merge(self._host, stream.clock)
            self.counters["synchronizes"] += 1
            self.check_alive()

    def create_event(self, *, timed: bool) -> int:
        """Create an event."""
        with self._lock:
            self.check_alive()
            handle = next(self._handles)
            self.events[handle] = Event(timed)
            self.counters["events"] += 1
            return handle

    def event(self, handle: int) -> Event:
        """The event of a handle. Raises RuleBroken where there is none."""
        if handle not in self.events:
            self.break_rule(f"{handle:#x} is not an event")
        return self.events[handle]

    def destroy_event(self, handle: int) -> None:
        """Destroy an event; waits for it that are on streams stay valid."""
        with self._lock:
            self.event(handle)
            del self.events[handle]

    def record(self, event: int, handle: int) -> None:
        """Record an event after all work on the stream so far. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            stream = self.stream(handle)
            if stream.capture is not None:
                if stream.capture.broken:
                    raise RefusedError(CAPTURE_INVALIDATED, stream.capture.broken)
                self.event(event).record = Record(handle, 0, {}, stream.capture)
                return
            self._check_legacy(handle)
            self._advance(stream)
            record = self.event(event).record = Record(stream.handle, stream.number, dict(stream.clock))

            def run() -> None:
                record.at_s = time.perf_counter()

            stream.queue.append(Pending(stream.number, run, self.counters["host_waits"]))
            if not self.late:
                self._run_to(stream, stream.number)

    def stream_wait(self, handle: int, event: int) -> None:
        """Later work on the stream runs after the event. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            stream, record = self.stream(handle), self.event(event).record
            if record is None:
                return
            if (stream.capture is None) != (record.capture is None):
                capture = stream.capture or record.capture
                assert capture is not None
                capture.broken = "an event connects captured work with other work"
                raise RefusedError(CAPTURE_ISOLATION, capture.broken)
            if stream.capture is None:
                self._advance(stream)
                merge(stream.clock, record.clock)
                other = self.streams[record.stream]
                stream.queue.append(
                    Pending(stream.number, lambda: None, self.counters["host_waits"], (other, record.number))
                )

    def is_done(self, event: int) -> bool:
        """Whether the stream has passed an event. Raises RefusedError."""
        with self._lock:
            record = self._host_record(event, "querying an event")
            self.counters["queries"] += 1
            if record is None or record.at_s is not None:
                merge(self._host, record.clock if record else {})
                return True
            record.queries += 1
            if record.queries > MAX_QUERIES:
                self._run_to(self.streams[record.stream], record.number)
            return record.at_s is not None

    def run_until(self, event: int) -> None:
        """The host waits for an event. Raises RefusedError."""
        with self._lock:
            record = self._host_record(event, "waiting for an event")
            self.counters["host_waits"] += 1
            if record is not None:
                self._run_to(self.streams[record.stream], record.number)
                merge(self._host, record.clock)
            self.check_alive()

    def elapsed_ms(self, begin: int, end: int) -> float:
        """Milliseconds between two events. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            pair = (self.event(begin), self.event(end))
            if not all(event.is_timed and event.record is not None for event in pair):
                raise RefusedError(INVALID_HANDLE, "events without times")
            times = [event.record.at_s for event in pair if event.record is not None]
            if None in times:
                raise RefusedError(NOT_READY, "an event is not done")
            return (times[1] - times[0]) * 1e3

    def _host_record(self, event: int, what: str) -> Record | None:
        self.check_alive()
        record = self.event(event).record
        if record is not None and record.capture is not None:
            record.capture.broken = f"{what} that was recorded in a capture"
            raise RefusedError(CAPTURED_EVENT, record.capture.broken)
        self.unsafe_call(what)
        return record
