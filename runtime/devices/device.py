"""The Device interface: memory, streams, events, captured graphs. HostDevice implements it for the CPU.

Work launched on a stream runs in order; an event marks a point in it. On the host a launch returns when it is done, so
every event is done when it is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Tensor:
    """Contiguous row-major device memory at `address`. `owner` keeps it alive.

    `host`: the same memory as an array where the host can access it, else None.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object
    host: NDArray[Any] | None = None

    @property
    def size_bytes(self) -> int:
        """Size of the tensor in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, *shape: int, start: int = 0) -> Tensor:
        """A tensor of this shape over the same memory, from element `start`; no copy."""
        count = prod(shape)
        if start + count > prod(self.shape):
            raise ValueError(f"view {shape} at {start} does not fit into {self.shape}")
        host = None if self.host is None else self.host.reshape(-1)[start : start + count].reshape(shape)
        return Tensor(self.address + start * self.dtype.itemsize, shape, self.dtype, self.owner, host)


class Event(Protocol):
    """A point in a stream's work."""

    @property
    def is_done(self) -> bool:
        """Whether the stream has passed it; never blocks."""

    def wait(self) -> None:
        """Block the host until the stream has passed it."""


class Stream(Protocol):
    """Work in order, with timed events. `handle` is the CUstream; 0 on the host."""

    handle: int

    def record(self) -> Event:
        """An event after all work launched so far."""

    def wait(self, event: Event) -> None:
        """Work launched from now on starts after the event; the host does not wait."""

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events that are done."""


class Replay(Protocol):
    """A captured graph: one launch of all work that was captured."""

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on the stream. Raises EngineError."""

    def close(self) -> None:
        """Release the graph, which must not be running."""


class Level(IntEnum):
    """How urgent a stream's work is, most urgent first. Devices with fewer levels fold them (CudaDevice says how).

    LIVE: audio that somebody waits for. TICK: ticks, and what they wait for, such as text encoders. BACKGROUND: other
    audio, kernels that are compiled.
    """

    LIVE = 0
    TICK = 1
    BACKGROUND = 2


class Device(Protocol):
    """Runs engines and holds their tensors. `allocations` counts the allocations made on it so far."""

    kind: str
    allocations: int

    @property
    def main(self) -> Stream:
        """The stream on which ticks run."""

    @property
    def beside(self) -> Stream:
        """The stream of what runs beside ticks: the planner's sequences."""

    @property
    def is_capturing(self) -> bool:
        """Whether work that this thread launches becomes part of a graph instead of running."""

    @property
    def free_bytes(self) -> int:
        """Free device memory; 0 where it is the host's."""

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Zero-filled device memory."""

    def staging(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Zero-filled host memory that a download fills without blocking the host: pinned on a GPU."""

    def mirror(self, tensor: Tensor) -> NDArray[Any]:
        """Host memory of a tensor's shape to write and upload: the tensor's own where the host can access it."""

    def stream(self, level: Level = Level.TICK) -> Stream:
        """A new stream; work of a more urgent level goes first where the device has levels."""

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        """Copy host to device, in stream order; `source` may be overwritten as soon as this returns."""

    def download(self, target: NDArray[Any], source: Tensor, stream: Stream) -> None:
        """Copy device to host, in stream order; `target` is valid once an event recorded after it is done."""

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy on the device, in stream order; the two have the same size and do not overlap."""

    def reserve_uploads(self, size_bytes: int) -> None:
        """Say how much the main stream may have to upload at once, before its first upload."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> Replay | None:
        """Capture the work that `work` launches on the stream as a graph; none of it runs. None on the host.

        Other threads go on meanwhile, on other streams. The graph may be launched on any stream once this stream has
        passed. Raises CaptureError where something cannot be captured; the stream is unchanged then.
        """

    def close(self) -> None:
        """Wait for all work and release everything."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """The time at which it was recorded; always done."""

    at_s: float

    @property
    def is_done(self) -> bool:
        """True: a launch on the host returns when it is done."""
        return True

    def wait(self) -> None:
        """Returns at once."""


class HostStream:
    """Work runs in the calling thread, when it is launched."""

    handle = 0

    def record(self) -> HostEvent:
        """An event with the current time."""
        return HostEvent(time.perf_counter())

    def wait(self, event: Event) -> None:
        """Returns at once."""

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events."""
        assert isinstance(begin, HostEvent)
        assert isinstance(end, HostEvent)
        return (end.at_s - begin.at_s) * 1e3


@dataclass
class HostDevice:
    """The CPU: tensors are numpy arrays, 256-byte aligned."""

    kind: str = "cpu"
    is_capturing: bool = False
    allocations: int = 0
    free_bytes: int = 0
    _stream: HostStream = field(default_factory=HostStream)

    @property
    def main(self) -> HostStream:
        """The one stream."""
        return self._stream

    beside = main

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Zero-filled memory."""
        array = self.staging(shape, dtype)
        return Tensor(array.ctypes.data, shape, array.dtype, array, array)

    def staging(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Zero-filled memory."""
        self.allocations += 1
        kind = np.dtype(dtype)
        size_bytes = prod(shape) * kind.itemsize
        raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT_BYTES
        return raw[start : start + size_bytes].view(kind).reshape(shape)

    def mirror(self, tensor: Tensor) -> NDArray[Any]:
        """The tensor's own memory."""
        assert tensor.host is not None
        return tensor.host

    def stream(self, level: Level = Level.TICK) -> HostStream:
        """The one stream."""
        return self._stream

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        """Copy, unless `source` is the target's own memory."""
        assert target.host is not None
        if target.address != source.ctypes.data:
            np.copyto(target.host, source)

    def download(self, target: NDArray[Any], source: Tensor, stream: Stream) -> None:
        """Copy."""
        assert source.host is not None
        np.copyto(target, source.host)

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Copy."""
        assert target.host is not None
        assert source.host is not None
        np.copyto(target.host, source.host)

    def reserve_uploads(self, size_bytes: int) -> None:
        """Does nothing: an upload is done when it returns."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> None:
        """None: the host has no graphs."""

    def close(self) -> None:
        """Does nothing: memory is freed with its owners."""
