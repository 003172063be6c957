"""The simulated device: streams whose work runs as late as the rules allow, events, captures, graphs, and the rules.

Packages `cuda` and `tensorrt` beside this module are made of it. What the real device would refuse raises
`RefusedError` (the packages turn it into a status or False); what it would silently do wrong raises `RuleBroken`,
which is also kept: `finish()` raises it again, so that nobody can swallow it.

Options (keyword of `reset`, or environment for child processes):
    late           SIMULATED_LATE          work runs only when somebody waits for it (default), else at once
    gpu_name       SIMULATED_GPU_NAME      "Simulated GPU"
    cc             SIMULATED_CC            "9.0"
    sm_count       SIMULATED_SM_COUNT      132
    memory_bytes   SIMULATED_MEMORY_BYTES  device memory; more is refused
    devices        SIMULATED_DEVICES       1
    no_driver      SIMULATED_NO_DRIVER     there is none
    driver         SIMULATED_DRIVER        the newest CUDA version that the driver knows: 13000
    faults         SIMULATED_FAULTS        JSON: {"oom_at_allocation": [3], "async_error_at": [7], ...}; the first one
                                           counts 1; `strikes(name)` counts and asks. "async_error": 700
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simulated_memory import POISON, Access, Allocation, Lent, Memory, RuleBroken

__all__ = ["Machine", "RefusedError", "RuleBroken", "machine", "reset"]

SUCCESS, INVALID_VALUE, MEMORY_ALLOCATION = 0, 1, 2
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 400, 600, 700
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED = 900, 901, 903
CAPTURE_ISOLATION, CAPTURE_IMPLICIT, CAPTURED_EVENT, CAPTURE_WRONG_THREAD = 905, 906, 907, 908
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
LEGACY_STREAMS = (0, 1)
OLDEST_DRIVER = 13000
# An event that is asked this often without anybody waiting gets done: time passes, even on a lazy device.
PATIENCE = 1000

Range = tuple[int, int]
Clock = dict[int, int]
_options: dict[str, Any] = {}


class RefusedError(Exception):
    """A call that CUDA answers with an error; `code` is the cudaError_t."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(f"cudaError {code}: {why}")
        self.code = code


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """Something that was put on a stream: what it does, and which bytes it touches.

    `poison` is host memory that is unreadable until it ran; `sources` is host memory that must not change until then.
    `check` runs whenever it is launched, also as part of a graph.
    """

    run: Callable[[], None]
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    what: str
    poison: tuple[Range, ...] = ()
    sources: tuple[Range, ...] = ()
    check: Callable[[], None] | None = None


@dataclass(eq=False, slots=True)
class Record:
    """One time that an event was recorded."""

    stream: int
    number: int
    clock: Clock
    capture: Capture | None = None
    at_s: float | None = None
    queries: int = 0


@dataclass(eq=False, slots=True)
class Event:
    """An event; without a record it counts as done."""

    is_timed: bool
    record: Record | None = None


@dataclass(eq=False, slots=True)
class Capture:
    """What a stream recorded instead of running, and why it is no good any more."""

    mode: int
    thread: int
    works: list[Work] = field(default_factory=list)
    broken: str = ""


@dataclass(eq=False, slots=True)
class Graph:
    """A captured sequence; `executable` once it is instantiated; `running` counts launches that are not done."""

    works: tuple[Work, ...]
    executable: bool = False
    running: int = 0


@dataclass(eq=False, slots=True)
class Stream:
    """Work in order: (number, what to do) of what has not run."""

    handle: int
    queue: deque[tuple[int, Callable[[], None]]] = field(default_factory=deque)
    number: int = 0
    clock: Clock = field(default_factory=dict)
    capture: Capture | None = None
    is_destroyed: bool = False


def _option(name: str, default: Any) -> Any:
    value = os.environ.get(f"SIMULATED_{name.upper()}")
    if value is None:
        return default
    return json.loads(value) if name == "faults" else type(default)(int(value) if isinstance(default, bool) else value)


class Machine:
    """One simulated GPU and its driver. Every method may be called from any thread."""

    def __init__(self, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "late": True, "gpu_name": "Simulated GPU", "cc": "9.0", "sm_count": 132, "memory_bytes": 2 << 30,
            "devices": 1, "no_driver": False, "driver": 13000, "faults": {},
        }  # fmt: skip
        unknown = options.keys() - defaults.keys()
        assert not unknown, f"unknown options {sorted(unknown)}"
        for name, default in defaults.items():
            setattr(self, name, options.get(name, _option(name, default)))
        self.counters: Counter[str] = Counter()
        self.broken: list[RuleBroken] = []
        self.came_back: deque[tuple[int, int]] = deque()
        self.streams: dict[int, Stream] = {0: Stream(0)}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, Graph] = {}
        self.sticky = SUCCESS
        self._memory = Memory()
        self._lock = threading.RLock()
        self._host: Clock = {}
        self._errors: dict[int, int] = {}
        self._struck: Counter[str] = Counter()
        self._handles = itertools.count(0x51000, 0x10)

    # Rules and errors.

    def break_rule(self, message: str) -> None:
        """Raise RuleBroken, and keep it for `finish`."""
        error = RuleBroken(message)
        self.broken.append(error)
        raise error

    @property
    def last_error(self) -> int:
        """This thread's error that nobody cleared yet."""
        return self._errors.get(threading.get_ident(), SUCCESS)

    @last_error.setter
    def last_error(self, code: int) -> None:
        self._errors[threading.get_ident()] = code

    def strikes(self, fault: str) -> bool:
        """Count one occasion of a fault; whether it is one of those that the options list."""
        self._struck[fault] += 1
        return self._struck[fault] in self.faults.get(fault, ())

    def finish(self) -> None:
        """What must hold when a program is done: no broken rule, no error unseen, no capture open, no orphaned work."""
        if self.broken:
            raise self.broken[0]
        unseen = [code for code in self._errors.values() if code]
        assert not unseen or self.sticky, f"errors {unseen} were returned and nobody looked at them"
        for stream in self.streams.values():
            assert stream.capture is None, f"stream {stream.handle:#x} is still capturing"
            orphans = stream.is_destroyed and stream.queue
            assert not orphans or self.sticky, f"stream {stream.handle:#x} was destroyed before its work was done"
        for allocation in self._memory.living():
            assert allocation.guards_are_whole(), f"written outside of the memory at {allocation.address:#x}"

    def alive(self) -> dict[str, int]:
        """How many of each thing exist; a program that closed everything leaves none."""
        kinds = Counter(allocation.kind for allocation in self._memory.living())
        streams = sum(1 for stream in self.streams.values() if stream.handle and not stream.is_destroyed)
        counts = {"streams": streams, "events": len(self.events), "graphs": len(self.graphs), **kinds}
        return {name: count for name, count in counts.items() if count}

    # Memory.

    def allocate(self, size: int, kind: str) -> int:
        """Poisoned "device" or "pinned" memory. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self.unsafe_call(f"allocating {kind} memory")
            self.counters["allocations"] += 1
            self.counters[f"{kind}_allocations"] += 1
            too_much = kind == "device" and size > self.free_bytes
            if self.strikes("oom_at_allocation") or too_much:
                raise RefusedError(MEMORY_ALLOCATION, f"{size} bytes of {kind} memory")
            return self._memory.allocate(size, kind).address

    def free(self, address: int) -> None:
        """Give memory back. Raises RefusedError."""
        with self._lock:
            self.unsafe_call("freeing memory")
            allocation = self._memory.find(address)
            if allocation is None or allocation.address != address:
                return self.break_rule(f"{address:#x} is freed, but no allocation begins there")
            if allocation.is_freed:
                return self.break_rule(f"the memory at {address:#x} is freed twice")
            if allocation.pending and not self.sticky:
                self.break_rule(f"the memory at {address:#x} is freed while pending work uses it")
            if not allocation.guards_are_whole():
                self.break_rule(f"written outside of the memory at {address:#x}")
            self._memory.free(allocation)
            return None

    def memory(self, address: int, size: int, why: str) -> np.ndarray[Any, Any]:
        """The bytes behind an address, `[size]` uint8; for work that runs, not for hosts."""
        with self._lock:
            allocation = self._find(address, size, why)
            return allocation.bytes(address - allocation.address, size)

    @property
    def free_bytes(self) -> int:
        """Device memory that is left."""
        return int(self.memory_bytes) - self._memory.device_bytes

    def kind_of(self, address: int) -> str:
        """ "device", "pinned" or, for memory that was not allocated here, "pageable"."""
        allocation = self._memory.find(address)
        return "pageable" if allocation is None else allocation.kind

    def require_aligned(self, address: int, alignment_bytes: int, why: str) -> None:
        """Raise RuleBroken for an address that is not a multiple of the alignment."""
        if address % alignment_bytes:
            self.break_rule(f"{why}: misaligned address {address:#x}, must be a multiple of {alignment_bytes}")

    def lend(self, address: int, size: int) -> None:
        """Somebody who shares out an allocation has given this piece away; from now on only such pieces are touched."""
        with self._lock:
            allocation = self._find(address, size, "sharing out")
            allocation.lent = allocation.lent or Lent()
            self._take_back()
            allocation.lent.add(address - allocation.address, address - allocation.address + size)

    def _take_back(self) -> None:
        """Forget pieces that came back. (The garbage collector only notes them: it may be here at any point.)"""
        while self.came_back:
            address, size = self.came_back.popleft()
            allocation = self._memory.find(address)
            if allocation is not None and allocation.lent is not None and not allocation.is_freed:
                begin = address - allocation.address
                allocation.lent.remove(begin, begin + size)

    def _check_lent(self, allocation: Allocation, address: int, size: int, what: str) -> None:
        begin = address - allocation.address
        if allocation.lent is not None and not allocation.lent.covers(begin, begin + size):
            self.break_rule(f"{what}: stale address {address:#x}, its piece of the memory was given back")

    def _find(self, address: int, size: int, why: str) -> Allocation:
        allocation = self._memory.find(address)
        if allocation is None:
            self.break_rule(f"{why}: {address:#x} is not memory of this device")
        assert allocation is not None
        if allocation.is_freed:
            self.break_rule(f"{why}: stale address {address:#x}, its memory was freed")
        if address + size > allocation.address + allocation.size:
            end = address + size - allocation.address
            self.break_rule(
                f"{why}: outside its allocation, byte {end} of {allocation.size} at {allocation.address:#x}"
            )
        return allocation

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

        Ranges are (address, size). Exceptions of `work` other than RuleBroken are the simulator's own bugs.
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
            self.break_rule(f"{what}: error {self.last_error} of an earlier call was never looked at")

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
        """Number the work, check it against everybody else's, and let it run when its time comes."""
        self._advance(stream)
        used = [self._touch(stream, work) for work in works]
        sums = [self._checksums(work) for work in works]
        for address, size in (pair for work in works for pair in work.poison if self.late):
            self.memory(address, size, what).fill(POISON)

        def run() -> None:
            for work, allocations, checksums in zip(works, used, sums, strict=True):
                self._run(work, checksums)
                for allocation in allocations:
                    allocation.pending -= 1
            if done is not None:
                done()

        stream.queue.append((stream.number, run))
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
        """Check that everything that touched these bytes is ordered before this work, and write it into the history."""
        if work.check is not None:
            work.check()
        self._take_back()
        access = Access(stream.handle, stream.number, work.what)
        used = []
        for ranges, is_write in ((work.reads, False), (work.writes, True)):
            for address, size in ranges:
                allocation = self._find(address, size, work.what)
                self._check_lent(allocation, address, size, work.what)
                allocation.pending += 1
                used.append(allocation)
                begin = address - allocation.address
                for segment in allocation.history.span(begin, begin + size) if size else ():
                    others = [segment.write, *segment.reads.values()] if is_write else [segment.write]
                    self._check_order(stream, access, [other for other in others if other is not None])
                    if is_write:
                        segment.write = access
                        segment.reads.clear()
                    else:
                        segment.reads[stream.handle] = access
        return used

    def _check_order(self, stream: Stream, access: Access, others: list[Access]) -> None:
        for other in others:
            if other.stream != stream.handle and other.number > stream.clock.get(other.stream, 0):
                self.break_rule(
                    f"unordered access: '{access.what}' on stream {access.stream:#x} touches what '{other.what}' on "
                    f"stream {other.stream:#x} touches, and does not wait for it"
                )

    def _advance(self, stream: Stream) -> None:
        stream.number += 1
        _merge(stream.clock, self._host)
        stream.clock[stream.handle] = stream.number

    def _run_to(self, stream: Stream, number: int) -> None:
        while stream.queue and stream.queue[0][0] <= number:
            stream.queue.popleft()[1]()

    # Streams and events.

    def create_stream(self) -> int:
        """A non-blocking stream."""
        with self._lock:
            self.check_alive()
            handle = next(self._handles)
            self.streams[handle] = Stream(handle)
            return handle

    def stream(self, handle: int) -> Stream:
        """A stream that exists."""
        stream = self.streams.get(0 if handle in LEGACY_STREAMS else handle)
        if stream is None or stream.is_destroyed:
            self.break_rule(f"{handle:#x} is not a stream" + (", it was destroyed" if stream else ""))
        assert stream is not None
        return stream

    def destroy_stream(self, handle: int) -> None:
        """Nobody can put anything on it any more."""
        with self._lock:
            self.stream(handle).is_destroyed = True

    def synchronize(self, handle: int | None = None) -> None:
        """The host waits for everything on a stream, or on all. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            for stream in list(self.streams.values()) if handle is None else [self.stream(handle)]:
                self.unsafe_call("synchronizing", stream)
                self._run_to(stream, stream.number)
                _merge(self._host, stream.clock)
            self.counters["synchronizes"] += 1
            self.check_alive()

    def create_event(self, *, timed: bool) -> int:
        """An event that was not recorded yet."""
        with self._lock:
            self.check_alive()
            handle = next(self._handles)
            self.events[handle] = Event(timed)
            self.counters["events"] += 1
            return handle

    def event(self, handle: int) -> Event:
        """An event that exists."""
        if handle not in self.events:
            self.break_rule(f"{handle:#x} is not an event")
        return self.events[handle]

    def destroy_event(self, handle: int) -> None:
        """Waits that were put on streams stay."""
        with self._lock:
            self.event(handle)
            del self.events[handle]

    def record(self, event: int, handle: int) -> None:
        """A point after everything on the stream so far. Raises RefusedError."""
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

            stream.queue.append((stream.number, run))
            if not self.late:
                self._run_to(stream, stream.number)

    def stream_wait(self, handle: int, event: int) -> None:
        """What is put on the stream from now on runs after the event. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            stream, record = self.stream(handle), self.event(event).record
            if record is None:
                return
            if (stream.capture is None) != (record.capture is None):
                capture = stream.capture or record.capture
                assert capture is not None
                capture.broken = "an event crosses the border of the capture"
                raise RefusedError(CAPTURE_ISOLATION, capture.broken)
            if stream.capture is None:
                self._advance(stream)
                _merge(stream.clock, record.clock)
                other = self.streams[record.stream]
                stream.queue.append((stream.number, lambda: self._run_to(other, record.number)))

    def is_done(self, event: int) -> bool:
        """Whether the stream has passed an event. Raises RefusedError."""
        with self._lock:
            record = self._host_record(event, "querying an event")
            self.counters["queries"] += 1
            if record is None or record.at_s is not None:
                _merge(self._host, record.clock if record else {})
                return True
            record.queries += 1
            if record.queries > PATIENCE:
                self._run_to(self.streams[record.stream], record.number)
            return record.at_s is not None

    def run_until(self, event: int) -> None:
        """The host waits for an event. Raises RefusedError."""
        with self._lock:
            record = self._host_record(event, "waiting for an event")
            self.counters["host_waits"] += 1
            if record is not None:
                self._run_to(self.streams[record.stream], record.number)
                _merge(self._host, record.clock)
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

    # Captures and graphs.

    def is_capturing(self, stream: int) -> bool:
        """Whether what is put on the stream is recorded instead of run."""
        return self.stream(stream).capture is not None

    def capture_broken(self, stream: int, reason: str) -> None:
        """Something that cannot be captured was put on the stream: its capture is invalid from now on."""
        capture = self.stream(stream).capture
        if capture is not None:
            capture.broken = capture.broken or reason

    def unsafe_call(self, what: str, stream: Stream | None = None) -> None:
        """A call that a capture forbids: on its stream, in its thread (in any thread, where its mode is global)."""
        thread = threading.get_ident()
        for other in self.streams.values():
            capture = other.capture
            if capture is None:
                continue
            forbids = capture.mode == GLOBAL or (capture.mode == THREAD_LOCAL and capture.thread == thread)
            if forbids or other is stream:
                capture.broken = capture.broken or f"{what} during a capture"
                raise RefusedError(CAPTURE_UNSUPPORTED, capture.broken)

    def begin_capture(self, handle: int, mode: int) -> None:
        """Record what is put on the stream. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            stream = self.stream(handle)
            if stream.handle == 0:
                raise RefusedError(CAPTURE_UNSUPPORTED, "the legacy default stream cannot be captured")
            if stream.capture is not None:
                raise RefusedError(INVALID_VALUE, "the stream is capturing already")
            stream.capture = Capture(mode, threading.get_ident())

    def end_capture(self, handle: int) -> int:
        """The captured graph's handle. Raises RefusedError."""
        with self._lock:
            stream = self.stream(handle)
            capture = stream.capture
            if capture is None:
                raise RefusedError(INVALID_VALUE, "the stream is not capturing")
            if capture.mode != RELAXED and capture.thread != threading.get_ident():
                raise RefusedError(CAPTURE_WRONG_THREAD, "another thread began the capture")
            stream.capture = None
            if capture.broken:
                raise RefusedError(CAPTURE_INVALIDATED, capture.broken)
            return self._add_graph(Graph(tuple(capture.works)))

    def instantiate(self, handle: int) -> int:
        """An executable graph. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self.counters["instantiations"] += 1
            if self.strikes("oom_at_instantiation"):
                raise RefusedError(MEMORY_ALLOCATION, "instantiating a graph")
            return self._add_graph(Graph(self._graph(handle, executable=False).works, executable=True))

    def launch_graph(self, handle: int, stream: int) -> None:
        """Put a whole graph on a stream. Raises RefusedError."""
        with self._lock:
            self.check_alive()
            self._check_seen("launching a graph")
            graph = self._graph(handle, executable=True)
            target = self.stream(stream)
            if target.capture is not None:
                self.break_rule("a graph is launched into a capture; no code here means that")
            for address, _ in (pair for work in graph.works for pair in (*work.reads, *work.writes)):
                allocation = self._memory.find(address)
                if allocation is None or allocation.is_freed:
                    self.break_rule(f"a graph is launched after memory that it bakes in was freed ({address:#x})")
            graph.running += 1

            def done() -> None:
                graph.running -= 1

            self.counters["graph_launches"] += 1
            self._submit(target, graph.works, "graph", done)

    def destroy_graph(self, handle: int, *, executable: bool) -> None:
        """Release a graph, or an executable one that is not running."""
        with self._lock:
            if self._graph(handle, executable=executable).running and not self.sticky:
                self.break_rule("a graph is destroyed while it is running")
            del self.graphs[handle]

    def _add_graph(self, graph: Graph) -> int:
        handle = next(self._handles)
        self.graphs[handle] = graph
        return handle

    def _graph(self, handle: int, *, executable: bool) -> Graph:
        graph = self.graphs.get(handle)
        if graph is None or graph.executable != executable:
            self.break_rule(f"{handle:#x} is not {'an executable' if executable else 'a'} graph; was it destroyed?")
        assert graph is not None
        return graph

    def _check_legacy(self, handle: int) -> None:
        if handle not in LEGACY_STREAMS:
            return
        for stream in self.streams.values():
            if stream.capture is not None:
                stream.capture.broken = "the legacy default stream was used during the capture"
                raise RefusedError(CAPTURE_IMPLICIT, stream.capture.broken)

    def check_alive(self) -> None:
        """Raises RefusedError once an asynchronous error has killed the context, or without a driver."""
        if self.no_driver or self.driver < OLDEST_DRIVER:
            raise RefusedError(INSUFFICIENT_DRIVER)
        if self.devices == 0:
            raise RefusedError(NO_DEVICE)
        if self.sticky:
            raise RefusedError(self.sticky, "an earlier launch failed")


def _merge(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number


_machine: Machine | None = None


def machine() -> Machine:
    """The process's machine."""
    global _machine
    if _machine is None:
        _machine = Machine()
    return _machine


def reset(**options: Any) -> Machine:
    """A new machine in place of the old one."""
    global _machine
    _machine = Machine(**options)
    return _machine
