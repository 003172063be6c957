"""The GPU as a device: memory, copies between host and device, streams, captures."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from runtime.base.errors import CaptureError, EngineDeadError, EngineError, TickError
from runtime.devices import cuda_calls
from runtime.devices.cuda_calls import probe
from runtime.devices.device import Event, Level, Stream, Tensor
from runtime.devices.memory import Arena, UploadRing, host_array

# Large enough that a loop has all its events after the first ticks.
EVENT_BATCH = 32


class CudaEvent:
    """A point in a stream's work. Its CUDA event returns to the pool with the last reference to this object."""

    __slots__ = ("_idle", "handle")

    def __init__(self, handle: int, idle: deque[int]) -> None:
        self.handle = handle
        self._idle = idle

    def __del__(self) -> None:
        # A stream that waits for the event keeps waiting for this recording, even when the event is recorded again.
        self._idle.append(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether the stream has passed it; never blocks. Raises EngineDeadError."""
        return cuda_calls.is_done(self.handle)

    def wait(self) -> None:
        """Block the host until the stream has passed it. Raises EngineDeadError."""
        cuda_calls.wait(self.handle)


class EventPool:
    """CUDA events, created in batches and reused."""

    def __init__(self) -> None:
        self._handles: list[int] = []
        self._idle: deque[int] = deque()

    def record(self, stream: int) -> CudaEvent:
        """An event after all work launched so far on the stream with this handle. Raises EngineError."""
        try:
            event = CudaEvent(self._idle.pop(), self._idle)
        except IndexError:
            created = [cuda_calls.new_event() for _ in range(EVENT_BATCH)]
            self._handles += created
            self._idle.extend(created[1:])
            event = CudaEvent(created[0], self._idle)
        cuda_calls.record(event.handle, stream)
        return event

    def close(self) -> None:
        """Destroy all CUDA events. Raises EngineError."""
        for handle in self._handles:
            cuda_calls.close_event(handle)


class CudaStream:
    """Work in order, independent of the legacy default stream. One thread at a time launches work on it.

    `idle`: where the handle goes with the last reference to this object.
    """

    def __init__(self, handle: int, idle: deque[int], record: Callable[[int], CudaEvent]) -> None:
        self.handle = handle
        self._idle, self._record = idle, record

    def __del__(self) -> None:
        # Pending work continues; the next user of the handle comes after it in stream order.
        self._idle.append(self.handle)

    def record(self) -> CudaEvent:
        """An event after all work launched so far. Raises EngineError."""
        return self._record(self.handle)

    def wait(self, event: Event) -> None:
        """Work launched from now on starts after the event. Raises EngineError."""
        assert isinstance(event, CudaEvent)
        cuda_calls.make_wait(self.handle, event.handle)

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events that are done. Raises EngineError."""
        assert isinstance(begin, CudaEvent)
        assert isinstance(end, CudaEvent)
        return cuda_calls.elapsed_ms(begin.handle, end.handle)


class CudaReplay:
    """A captured graph that can be launched."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on the stream. Raises EngineError."""
        if self._handle is None:
            raise EngineError("a captured graph is launched after it was closed")
        cuda_calls.launch_graph(self._handle, stream.handle)

    def close(self) -> None:
        """Release the graph, which must not be running. Raises EngineError."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            cuda_calls.close_graph(handle)


@dataclass(frozen=True, slots=True)
class AllStreamsEvent:
    """The point that every stream of a device had reached when this was recorded."""

    events: tuple[CudaEvent, ...]

    @property
    def is_done(self) -> bool:
        """Whether every stream has passed it; never blocks. Raises EngineDeadError."""
        return all(event.is_done for event in self.events)

    def wait(self) -> None:
        """Block the host until every stream has passed it. Raises EngineDeadError."""
        for event in self.events:
            event.wait()


__all__ = ["CudaDevice", "probe"]

logger = logging.getLogger(__name__)

DEVICE_CHUNK_BYTES = 64 << 20
PINNED_CHUNK_BYTES = 4 << 20
# The noise of 8 slots of 240 s is 12 MiB per tick, and two ticks are in flight.
RING_BYTES = 32 << 20
RING_SEGMENTS = 8


@dataclass(frozen=True, slots=True)
class _Capture:
    """A stream that captures: its handle, an event behind what was launched on it before, and the thread."""

    stream: int
    before: CudaEvent
    thread: int


class CudaDevice:
    """The first GPU. Raises EngineError that says what is missing where there is none.

    Streams have the priority of their level. A GPU with two priorities has the greater one for LIVE alone: ticks share
    the other one with BACKGROUND, because a gap in what is played is heard. With one priority there are no levels.

    Any thread may call zeros, staging, stream and capture. Captures wait for each other, and nothing else for them.
    """

    kind = "cuda"

    def __init__(self, *, ring_bytes: int = RING_BYTES, chunk_bytes: int = DEVICE_CHUNK_BYTES) -> None:
        self.gpu = probe()
        self.allocations = 0
        self._ring_bytes = ring_bytes
        self._rings: dict[int, tuple[UploadRing, NDArray[np.uint8]]] = {}
        self._streams: list[int] = []
        self._idle_streams: dict[Level, deque[int]] = {level: deque() for level in Level}
        self._events = EventPool()
        # Held while streams and memory are taken; reentrant, because an arena calls back.
        self._lock = threading.RLock()
        # Held for a whole capture, while the garbage collector is off.
        self._capture_lock = threading.Lock()
        self._captured: _Capture | None = None
        self._beside: CudaStream | None = None
        self._is_closed = False
        self._zeroed: CudaEvent | None = None
        cuda_calls.open_first()
        least, greatest = cuda_calls.stream_priorities()
        middle = min(least, max(least - 1, greatest + 1))
        self._priorities = {Level.LIVE: greatest, Level.TICK: middle, Level.BACKGROUND: least}
        self._memory = Arena(cuda_calls.take_device, chunk_bytes, shrink=self._give_back)
        self._pinned = Arena(cuda_calls.take_pinned, PINNED_CHUNK_BYTES, self._record_all)
        # All streams wait for it, also the most urgent ones.
        self._zeroing = self.stream(Level.LIVE)
        self._main = self._new_stream(Level.TICK)

    @property
    def main(self) -> CudaStream:
        """The stream on which ticks run."""
        return self._main

    @property
    def beside(self) -> CudaStream:
        """The stream of what runs beside ticks, made when it is first asked for. Raises EngineError."""
        with self._lock:
            if self._beside is None:
                self._beside = self.stream(Level.TICK)
            return self._beside

    @property
    def is_capturing(self) -> bool:
        """Whether this thread captures a stream: work that it launches there becomes part of a graph."""
        capture = self._captured
        return capture is not None and capture.thread == threading.get_ident()

    @property
    def free_bytes(self) -> int:
        """Free device memory; what other programs use is not free. Raises EngineError."""
        return cuda_calls.free_bytes()

    def stream(self, level: Level = Level.TICK) -> CudaStream:
        """A stream that has no other user. Raises EngineError."""
        with self._lock:
            self._refuse_in_capture("a stream is made")
            try:
                return CudaStream(self._idle_streams[level].popleft(), self._idle_streams[level], self._record)
            except IndexError:
                return self._new_stream(level)

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Zero-filled device memory, 256-byte aligned. Raises OutOfMemoryError, EngineError.

        Pending work may still use the memory's previous tensor: it is zeroed after all work launched so far, and work
        launched from now on, on any stream, starts after that. The host does not wait.
        """
        kind = np.dtype(dtype)
        with self._lock:
            self._refuse_in_capture("memory is taken")
            self.allocations += 1
            block = self._memory.take(prod(shape) * kind.itemsize)
            # The device waits here, not the host: the old owner's work, then zeros, then the new owner's work.
            for event in self._record_all().events:
                self._zeroing.wait(event)
            cuda_calls.zero(block.address, block.size_bytes, self._zeroing.handle)
            self._zeroed = self._zeroing.record()
            for handle in self._streams:
                if not self._is_captured(handle):  # that one waits when its capture is over
                    cuda_calls.make_wait(handle, self._zeroed.handle)
        return Tensor(block.address, shape, kind, block)

    def staging(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Zero-filled pinned memory; it is not reused while pending work still writes to it.

        Raises OutOfMemoryError, EngineError.
        """
        with self._lock:
            self._refuse_in_capture("memory is taken")
            self.allocations += 1
            block = self._pinned.take(prod(shape) * np.dtype(dtype).itemsize)
        array = host_array(block, shape, dtype)
        array[...] = 0
        return array

    def mirror(self, tensor: Tensor) -> NDArray[Any]:
        """Zero-filled host memory of a tensor's shape; not pinned, because uploads go through the pinned ring."""
        self.allocations += 1
        return np.zeros(tensor.shape, tensor.dtype)

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        """Copy host to device, in stream order; `source` may be overwritten as soon as this returns.

        Raises ValueError for another shape, EngineError.
        """
        self._check_copy(target, source, stream)
        if source.dtype != target.dtype or not source.flags.c_contiguous:
            self.allocations += 1
            converted = np.empty(target.shape, target.dtype)
            np.copyto(converted, source)
            source = converted
        ring, memory = self._ring(stream)
        values, done = source.reshape(-1).view(np.uint8), 0
        while done < values.size:
            offset, size = ring.place(values.size - done)
            piece = memory[offset : offset + size]
            np.copyto(piece, values[done : done + size])
            cuda_calls.copy_to_device(target.address + done, piece.ctypes.data, size, stream.handle)
            done += size

    def download(self, target: NDArray[Any], source: Tensor, stream: Stream) -> None:
        """Copy device to host, in stream order; the host waits where `target` is not pinned (`staging`).

        Raises ValueError for another shape, dtype or layout, EngineError.
        """
        self._check_copy(source, target, stream)
        if target.dtype != source.dtype or not target.flags.c_contiguous:
            raise ValueError(f"a download of {source.dtype} needs a contiguous array of that dtype")
        cuda_calls.copy_to_host(target.ctypes.data, source.address, source.size_bytes, stream.handle)

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy on the device, in stream order. Raises ValueError for another size, EngineError."""
        if target.size_bytes != source.size_bytes:
            raise ValueError(f"a copy of {source.size_bytes} bytes into {target.size_bytes}")
        cuda_calls.copy_on_device(target.address, source.address, source.size_bytes, stream.handle)

    def reserve_uploads(self, size_bytes: int) -> None:
        """Have a ring of at least this size for the main stream; it is made with the first upload."""
        self._ring_bytes = max(self._ring_bytes, size_bytes)

    def capture(self, stream: Stream, work: Callable[[], None]) -> CudaReplay:
        """Capture the work that `work` launches on the stream as a graph; none of it runs.

        Raises CaptureError where something cannot be captured (CUDA's error is cleared, the stream is unchanged),
        EngineDeadError.
        """
        self._refuse_in_capture("a capture is begun")
        with self._capture_lock:
            with self._lock:
                self._captured = _Capture(stream.handle, self._record(stream.handle), threading.get_ident())
            try:
                return CudaReplay(cuda_calls.capture(stream.handle, work))
            except EngineDeadError:
                raise
            except TickError as error:
                raise CaptureError(f"the launched work cannot be captured: {error}") from error
            finally:
                self._end_capture(stream)

    def close(self) -> None:
        """Wait for all work, release everything. Pinned memory that is still referenced stays until the process ends.

        Raises EngineError, but not EngineDeadError: a lost context has released everything already.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._release()
            except EngineDeadError as error:
                logger.warning("the GPU's memory is released when the process ends: %s", error)

    def _new_stream(self, level: Level) -> CudaStream:
        self._streams.append(cuda_calls.new_stream(self._priorities[level]))
        stream = CudaStream(self._streams[-1], self._idle_streams[level], self._record)
        if self._zeroed is not None:
            stream.wait(self._zeroed)
        return stream

    def _give_back(self, addresses: Sequence[int]) -> None:
        """Free device memory that no tensor has, once all work that may still use it has run. Raises EngineError."""
        self._record_all().wait()
        for address in addresses:
            cuda_calls.free_device(address)

    def _end_capture(self, stream: Stream) -> None:
        with self._lock:
            self._captured = None
            if self._zeroed is not None:
                cuda_calls.make_wait(stream.handle, self._zeroed.handle)

    def _is_captured(self, stream: int) -> bool:
        capture = self._captured
        return capture is not None and capture.stream == stream

    def _refuse_in_capture(self, what: str) -> None:
        """Raise EngineError in the capturing thread."""
        if self.is_capturing:
            raise EngineError(f"{what} while a stream captures; do it before the capture")

    def _check_copy(self, tensor: Tensor, array: NDArray[Any], stream: Stream) -> None:
        if array.shape != tensor.shape:
            raise ValueError(f"a copy between {tensor.shape} on the device and {array.shape} on the host")
        if self._is_captured(stream.handle):
            # Every launch of the graph would copy from this place in the ring, or into this array.
            raise EngineError("a copy from or to the host is launched in a capture; launch it outside")

    def _ring(self, stream: Stream) -> tuple[UploadRing, NDArray[np.uint8]]:
        """The stream's own ring of pinned memory for uploads, created on first use."""
        if stream.handle not in self._rings:
            # Work outside the tick waits for its result anyway: a smaller ring is enough.
            size_bytes = self._ring_bytes if stream.handle == self._main.handle else self._ring_bytes // 8
            ring = UploadRing(size_bytes, RING_SEGMENTS, lambda: self._record(stream.handle))
            self._rings[stream.handle] = (ring, self.staging((size_bytes,), np.uint8))
        return self._rings[stream.handle]

    def _record(self, stream: int) -> CudaEvent:
        if self._is_captured(stream):
            raise EngineError("an event is recorded in a capture: the host could never wait for it")
        return self._events.record(stream)

    def _record_all(self) -> AllStreamsEvent:
        """Where a stream captures, all its work so far was launched before it began."""
        others = [self._record(handle) for handle in self._streams if not self._is_captured(handle)]
        return AllStreamsEvent((*others, *(() if self._captured is None else (self._captured.before,))))

    def _release(self) -> None:
        self._rings.clear()
        for stream in self._streams:
            cuda_calls.close_stream(stream)
        self._events.close()
        for address in (address for addresses in self._memory.release() for address in addresses):
            cuda_calls.free_device(address)
        for address in self._pinned.release()[0]:
            cuda_calls.free_pinned(address)
