"""The GPU as a device: pinned uploads, memory in stream order, streams, events and captured graphs."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from runtime.devices import cuda_calls as cudart
from runtime.devices.cuda_calls import Gpu, probe
from runtime.devices.device import Event, Stream, Tensor
from runtime.devices.memory import Arena, UploadRing, host_array
from runtime.errors import CaptureError, EngineDeadError, EngineError, TickError

__all__ = ["CudaDevice", "CudaEvent", "CudaReplay", "CudaStream", "Gpu", "probe"]

logger = logging.getLogger(__name__)

DEVICE_CHUNK_BYTES = 64 << 20
PINNED_CHUNK_BYTES = 4 << 20
# An upload of every slot's noise, at 8 slot_count of 240 s, is 12 MiB a tick; two ticks are in flight.
RING_BYTES = 32 << 20
RING_SEGMENTS = 8
# So many at a time that a loop has all it will need after its first ticks.
EVENT_BATCH = 32


class CudaEvent:
    """A point in a stream's work. Its CUDA event goes back to the device when nobody refers to this any more."""

    __slots__ = ("_home", "handle")

    def __init__(self, handle: int, home: deque[int]) -> None:
        self.handle = handle
        self._home = home

    def __del__(self) -> None:
        # A stream that was told to wait for it waits for what it stood for then, whatever it stands for next.
        self._home.append(self.handle)

    @property
    def is_done(self) -> bool:
        """Whether the stream has passed it; never blocks. Raises EngineDeadError."""
        return cudart.is_done(self.handle)

    def wait(self) -> None:
        """Block the host until the stream has passed it. Raises EngineDeadError."""
        cudart.wait(self.handle)


class CudaStream:
    """Work in order, independent of the legacy default stream. One thread at a time puts work on it."""

    def __init__(self, device: CudaDevice, handle: int) -> None:
        self._device = device
        self.handle = handle

    def __del__(self) -> None:
        # Work that is pending goes on; whoever gets the stream next comes after it.
        self._device.idle_streams.append(self.handle)

    def record(self) -> CudaEvent:
        """An event after all work launched so far. Raises EngineError."""
        return self._device.record(self.handle)

    def wait(self, event: Event) -> None:
        """Whatever is launched from now on starts after the event. Raises EngineError."""
        assert isinstance(event, CudaEvent)
        cudart.make_wait(self.handle, event.handle)

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events that are done. Raises EngineError."""
        assert isinstance(begin, CudaEvent)
        assert isinstance(end, CudaEvent)
        return cudart.elapsed_ms(begin.handle, end.handle)


class CudaReplay:
    """A captured graph, ready to launch."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on the stream. Raises EngineError."""
        if self._handle is None:
            raise EngineError("a captured graph is launched after it was closed")
        cudart.launch_graph(self._handle, stream.handle)

    def close(self) -> None:
        """Release the graph; nothing of it may still be running. Raises EngineError."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            cudart.close_graph(handle)


@dataclass(frozen=True, slots=True)
class _Everything:
    """All that was launched on any stream up to some point."""

    events: tuple[CudaEvent, ...]

    @property
    def is_done(self) -> bool:
        return all(event.is_done for event in self.events)

    def wait(self) -> None:
        for event in self.events:
            event.wait()


class CudaDevice:
    """The first GPU. Raises EngineError where there is none, with what is missing.

    zeros, staging, stream and capture may be called from any thread; while one thread captures, the others wait.
    """

    kind = "cuda"

    def __init__(self, *, ring_bytes: int = RING_BYTES, chunk_bytes: int = DEVICE_CHUNK_BYTES) -> None:
        self.gpu = probe()
        self.allocations = 0
        self.idle_streams: deque[int] = deque()
        self._ring_bytes = ring_bytes
        self._rings: dict[int, tuple[UploadRing, NDArray[np.uint8]]] = {}
        self._streams: list[int] = []
        self._events: list[int] = []
        self._idle_events: deque[int] = deque()
        self._lock = threading.RLock()
        self._captured: int | None = None
        self._is_closed = False
        self._zeroed: CudaEvent | None = None
        cudart.open_first()
        self._memory = Arena(cudart.take_device, chunk_bytes)
        self._pinned = Arena(cudart.take_pinned, PINNED_CHUNK_BYTES, self._everything)
        self._zeroing = self.stream()
        self._main = self.stream()

    @property
    def main(self) -> CudaStream:
        """The stream on which ticks run."""
        return self._main

    @property
    def is_capturing(self) -> bool:
        """Whether a capture is going on: what its thread launches on its stream becomes part of the graph."""
        return self._captured is not None

    @property
    def free_bytes(self) -> int:
        """Device memory that nobody has taken, other programs included. Raises EngineError."""
        return cudart.free_bytes()

    def stream(self) -> CudaStream:
        """A stream that nobody else uses. Raises EngineError."""
        with self._lock:
            self._refuse_in_capture("a stream is made")
            try:
                return CudaStream(self, self.idle_streams.popleft())
            except IndexError:
                self._streams.append(cudart.new_stream())
            stream = CudaStream(self, self._streams[-1])
            if self._zeroed is not None:
                stream.wait(self._zeroed)
            return stream

    def record(self, stream: int) -> CudaEvent:
        """An event after all that was launched on the stream with this handle so far. Raises EngineError."""
        if stream == self._captured:
            raise EngineError("an event is recorded in a capture: the host could never see it")
        try:
            event = CudaEvent(self._idle_events.pop(), self._idle_events)
        except IndexError:
            more = [cudart.new_event() for _ in range(EVENT_BATCH)]
            self._events += more
            self._idle_events.extend(more[1:])
            event = CudaEvent(more[0], self._idle_events)
        cudart.record(event.handle, stream)
        return event

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Zero-filled device memory, 256-byte aligned. Raises OutOfMemoryError, EngineError.

        It may have been another tensor's, which pending work still uses: it is zeroed after everything that was
        launched so far, and whatever is launched from now on, on any stream, comes after that. The host does not wait.
        """
        kind = np.dtype(dtype)
        with self._lock:
            self._refuse_in_capture("memory is taken")
            self.allocations += 1
            block = self._memory.take(prod(shape) * kind.itemsize)
            for event in self._everything().events:
                self._zeroing.wait(event)
            cudart.zero(block.address, block.size_bytes, self._zeroing.handle)
            self._zeroed = self._zeroing.record()
            for handle in self._streams:
                cudart.make_wait(handle, self._zeroed.handle)
        return Tensor(block.address, shape, kind, block)

    def staging(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Zero-filled pinned memory; pending work that still fills it keeps it from being given out again.

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
        """Plain zero-filled host memory of a tensor's shape: uploads go through the pinned ring in any case."""
        self.allocations += 1
        return np.zeros(tensor.shape, tensor.dtype)

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        """Copy host to device, in stream order; `source` may be written again as soon as this returns.

        Raises ValueError for another shape, EngineError.
        """
        self._check_copy(target, source, stream)
        if source.dtype != target.dtype or not source.flags.c_contiguous:
            self.allocations += 1
            given, source = source, np.empty(target.shape, target.dtype)
            np.copyto(source, given)
        ring, memory = self._ring(stream)
        values, done = source.reshape(-1).view(np.uint8), 0
        while done < values.size:
            offset, size = ring.place(values.size - done)
            piece = memory[offset : offset + size]
            np.copyto(piece, values[done : done + size])
            cudart.copy_to_device(target.address + done, piece.ctypes.data, size, stream.handle)
            done += size

    def download(self, target: NDArray[Any], source: Tensor, stream: Stream) -> None:
        """Copy device to host, in stream order. Into memory that is not `staging`, the host waits for the copy.

        Raises ValueError for another shape, dtype or layout, EngineError.
        """
        self._check_copy(source, target, stream)
        if target.dtype != source.dtype or not target.flags.c_contiguous:
            raise ValueError(f"a download of {source.dtype} needs a contiguous array of that dtype")
        cudart.copy_to_host(target.ctypes.data, source.address, source.size_bytes, stream.handle)

    def capture(self, stream: Stream, work: Callable[[], None]) -> CudaReplay:
        """What `work` launches on the stream, as a graph.

        Raises CaptureError where that cannot be (no error is left behind, the stream is as before), EngineDeadError.
        """
        with self._lock:
            self._refuse_in_capture("a capture is begun")
            self._captured = stream.handle
            try:
                return CudaReplay(cudart.capture(stream.handle, work))
            except EngineDeadError:
                raise
            except TickError as error:
                raise CaptureError(f"what was launched cannot be a captured graph: {error}") from error
            finally:
                self._captured = None

    def close(self) -> None:
        """Wait for everything and release it. Pinned memory that somebody still reads stays until the process ends.

        Raises EngineError, but not for a context that is dead: all that it held went with it.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._release()
            except EngineDeadError as error:
                logger.warning("the GPU is not released but left to the end of the process: %s", error)

    def _refuse_in_capture(self, what: str) -> None:
        """Other threads wait for the end of a capture; the one that captures must not do this."""
        if self._captured is not None:
            raise EngineError(f"{what} while a stream captures; do it before the capture")

    def _check_copy(self, tensor: Tensor, array: NDArray[Any], stream: Stream) -> None:
        if array.shape != tensor.shape:
            raise ValueError(f"a copy between {tensor.shape} on the device and {array.shape} on the host")
        if stream.handle == self._captured:
            # The graph would copy from this place of the ring, or into this array, whenever it is launched.
            raise EngineError("a copy from or to the host is launched in a capture; launch it outside")

    def _ring(self, stream: Stream) -> tuple[UploadRing, NDArray[np.uint8]]:
        """The stream's part of the pinned memory that uploads go through, made on first use."""
        if stream.handle not in self._rings:
            # Whoever uploads on another stream than the ticks' waits for the result anyway.
            size_bytes = self._ring_bytes if stream.handle == self._main.handle else self._ring_bytes // 8
            ring = UploadRing(size_bytes, RING_SEGMENTS, lambda: self.record(stream.handle))
            self._rings[stream.handle] = (ring, self.staging((size_bytes,), np.uint8))
        return self._rings[stream.handle]

    def _everything(self) -> _Everything:
        return _Everything(tuple(self.record(handle) for handle in self._streams))

    def _release(self) -> None:
        self._rings.clear()
        for stream in self._streams:
            cudart.close_stream(stream)
        for event in self._events:
            cudart.close_event(event)
        for address in (address for addresses in self._memory.release() for address in addresses):
            cudart.free_device(address)
        for address in self._pinned.release()[0]:
            cudart.free_pinned(address)
