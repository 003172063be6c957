"""Memory, streams, events and captured graphs behind one interface; this module's device is the host itself.

Work launched on a stream runs in order; an event says when it is done. On the host a launch returns when it is done,
so every event is done when it is recorded: the tick loop is the same, it only never finds anything to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Tensor:
    """Device memory with a shape: `address` is the device's; `host` the same memory as an array where the host can
    see it.

    `owner` keeps the memory alive. Contiguous, row-major.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    owner: object
    host: NDArray[Any] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that the shape covers."""
        return prod(self.shape) * self.dtype.itemsize

    def view(self, *shape: int, start: int = 0) -> Tensor:
        """`shape` laid over this memory from element `start`; no copy."""
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
    """Work in order. Events are timed: `elapsed_ms` between two of them. `handle` is the CUstream; 0 on the host."""

    handle: int

    def record(self) -> Event:
        """An event after all work launched so far."""

    def wait(self, event: Event) -> None:
        """Whatever is launched from now on starts after the event; the host does not wait."""

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events that are done."""


class Replay(Protocol):
    """A captured graph: everything that was launched while it was captured, as one launch."""

    def launch(self, stream: Stream) -> None:
        """Put the whole graph on the stream. Raises EngineError."""

    def close(self) -> None:
        """Release the graph; nothing of it may still be running."""


class Device(Protocol):
    """Where engines run and state lives. `allocations` counts every allocation ever made on it."""

    kind: str
    allocations: int

    @property
    def main(self) -> Stream:
        """The stream on which ticks run."""

    def zeros(self, shape: tuple[int, ...], dtype: DTypeLike) -> Tensor:
        """Zero-filled device memory."""

    def staging(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Zero-filled host memory that a download fills without holding up the host (pinned where that means
        something)."""

    def mirror(self, tensor: Tensor) -> NDArray[Any]:
        """Host memory of a tensor's shape, to be written and uploaded: the tensor's own where the host sees it."""

    def stream(self) -> Stream:
        """A new stream."""

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        """Copy host to device, in stream order; `source` may be written again as soon as this returns."""

    def download(self, target: NDArray[Any], source: Tensor, stream: Stream) -> None:
        """Copy device to host, in stream order; `target` is valid once an event recorded after it is done."""

    def capture(self, stream: Stream, work: Callable[[], None]) -> Replay | None:
        """What `work` launches on the stream, as a graph (nothing runs yet); None where the device has no graphs.

        Raises CaptureError where something in it cannot be captured; the stream is as before then.
        """

    def close(self) -> None:
        """Release everything. No work may be pending."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Done when recorded; keeps the time."""

    at_s: float

    @property
    def is_done(self) -> bool:
        """Always: the host runs a launch to its end."""
        return True

    def wait(self) -> None:
        """Nothing to wait for."""


class HostStream:
    """Runs every launch at once, in the calling thread."""

    handle = 0

    def record(self) -> HostEvent:
        """An event with the present time."""
        return HostEvent(time.perf_counter())

    def wait(self, event: Event) -> None:
        """Nothing to wait for."""

    def elapsed_ms(self, begin: Event, end: Event) -> float:
        """Milliseconds between two events."""
        assert isinstance(begin, HostEvent)
        assert isinstance(end, HostEvent)
        return (end.at_s - begin.at_s) * 1e3


@dataclass
class HostDevice:
    """The CPU: device memory is numpy memory, 256-byte aligned."""

    kind: str = "cpu"
    allocations: int = 0
    _stream: HostStream = field(default_factory=HostStream)

    @property
    def main(self) -> HostStream:
        """The one stream."""
        return self._stream

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

    def stream(self) -> HostStream:
        """The one stream."""
        return self._stream

    def upload(self, target: Tensor, source: NDArray[Any], stream: Stream) -> None:
        """Copy; nothing to do where source is the target's own memory."""
        assert target.host is not None
        if target.address != source.ctypes.data:
            np.copyto(target.host, source)

    def download(self, target: NDArray[Any], source: Tensor, stream: Stream) -> None:
        """Copy."""
        assert source.host is not None
        np.copyto(target, source.host)

    def capture(self, stream: Stream, work: Callable[[], None]) -> None:
        """The host has no graphs."""

    def close(self) -> None:
        """Nothing to release: memory goes with its owners."""
