"""Sub-allocation of device and pinned memory, the ring buffer of uploads, packed vectors, pooled host arrays."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from runtime.base.errors import OutOfMemoryError
from runtime.devices.device import ALIGNMENT_BYTES, Device, Event, Stream, Tensor

# The alignment of CUDA's own allocations, which TensorRT wants for activation memory.
BLOCK_BYTES = 512


def aligned(size_bytes: int, alignment_bytes: int) -> int:
    """The next multiple of the alignment, at least one."""
    return max(1, -(-size_bytes // alignment_bytes)) * alignment_bytes


class Block:
    """A piece of an arena; it returns to the arena with the last reference to this object."""

    __slots__ = ("_returned", "address", "size_bytes")

    def __init__(self, address: int, size_bytes: int, returned: deque[tuple[int, int]]) -> None:
        self.address, self.size_bytes = address, size_bytes
        self._returned = returned

    def __del__(self) -> None:
        # The garbage collector may call this in any thread at any time, even during a capture: no CUDA call is allowed.
        self._returned.append((self.address, self.size_bytes))


class _HostBytes:
    """A block of host memory as an array's base: the array keeps the block alive."""

    __slots__ = ("_block",)

    def __init__(self, block: Block) -> None:
        self._block = block

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {
            "data": (self._block.address, False),
            "shape": (self._block.size_bytes,),
            "typestr": "|u1",
            "version": 3,
        }


def host_array(block: Block, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """A block of host memory as an array; the block lives as long as any view of the array."""
    kind = np.dtype(dtype)
    return np.asarray(_HostBytes(block))[: prod(shape) * kind.itemsize].view(kind).reshape(shape)


@dataclass(slots=True)
class _Chunk:
    """One allocation, with its free pieces as sorted (address, size) pairs that do not touch."""

    address: int
    size_bytes: int
    free: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return self.free == [(self.address, self.size_bytes)]

    def take(self, size_bytes: int) -> int | None:
        for index, (address, size) in enumerate(self.free):
            if size >= size_bytes:
                rest = [(address + size_bytes, size - size_bytes)] if size > size_bytes else []
                self.free[index : index + 1] = rest
                return address
        return None

    def give(self, address: int, size_bytes: int) -> None:
        index = bisect_left(self.free, (address, 0))
        if index < len(self.free) and self.free[index][0] == address + size_bytes:
            size_bytes += self.free.pop(index)[1]
        if index and sum(self.free[index - 1]) == address:
            index -= 1
            before, size = self.free.pop(index)
            address, size_bytes = before, size + size_bytes
        self.free.insert(index, (address, size_bytes))


class Arena:
    """Sub-allocates 512-byte aligned blocks from large chunks; `grow(size_bytes)` allocates a chunk, as an address.

    A returned block is reused once an event is done that `record` gave after its return; without `record` at once, for
    memory that is only accessed in stream order. One thread at a time takes blocks; any thread may return them.
    shrink: frees chunks without a block, at these addresses, where a new one does not fit.
    """

    def __init__(
        self,
        grow: Callable[[int], int],
        chunk_bytes: int,
        record: Callable[[], Event] | None = None,
        shrink: Callable[[Sequence[int]], None] | None = None,
    ) -> None:
        self._grow, self._chunk_bytes, self._record, self._shrink = grow, chunk_bytes, record, shrink
        self._chunks: list[_Chunk] = []
        self._returned: deque[tuple[int, int]] = deque()
        self._waiting: deque[tuple[Event, deque[tuple[int, int]]]] = deque()

    def take(self, size_bytes: int) -> Block:
        """A block of at least this size with undefined content. Raises OutOfMemoryError."""
        size_bytes = aligned(size_bytes, BLOCK_BYTES)
        self._collect()
        address = self._fit(size_bytes)
        if address is None:
            address = self._extend(size_bytes)
        return Block(address, size_bytes, self._returned)

    def release(self) -> tuple[list[int], list[int]]:
        """Forget all chunks: addresses of those without a live block, which can be freed, and of those with one."""
        self._give_all(self._returned)
        while self._waiting:
            self._give_all(self._waiting.popleft()[1])
        idle = [chunk.address for chunk in self._chunks if chunk.is_idle]
        used = [chunk.address for chunk in self._chunks if chunk.address not in idle]
        self._chunks.clear()
        return idle, used

    def _collect(self) -> None:
        """Make returned blocks available: at once, or when all work launched before now is done."""
        if self._record is None:
            self._give_all(self._returned)
            return
        if self._returned:
            returned = deque(self._returned.popleft() for _ in range(len(self._returned)))
            self._waiting.append((self._record(), returned))
        while self._waiting and self._waiting[0][0].is_done:
            self._give_all(self._waiting.popleft()[1])

    def _give_all(self, blocks: deque[tuple[int, int]]) -> None:
        while blocks:
            address, size_bytes = blocks.popleft()
            for chunk in self._chunks:
                if chunk.address <= address < chunk.address + chunk.size_bytes:
                    chunk.give(address, size_bytes)

    def _fit(self, size_bytes: int) -> int | None:
        for chunk in self._chunks:
            address = chunk.take(size_bytes)
            if address is not None:
                return address
        return None

    def _extend(self, size_bytes: int) -> int:
        """An address in a new chunk; where a whole chunk does not fit into memory, in one of just this size."""
        try:
            return self._new_chunk(max(size_bytes, self._chunk_bytes), size_bytes)
        except OutOfMemoryError:
            # Tensors of closed engines may be part of reference cycles that are not collected yet.
            gc.collect()
            self._collect()
            address = self._fit(size_bytes)
            if address is None:
                self._give_back()
                address = self._new_chunk(size_bytes, size_bytes)
            return address

    def _give_back(self) -> None:
        """Free chunks that hold nothing: blocks that have grown leave some that are too small for what they became."""
        idle = [chunk for chunk in self._chunks if chunk.is_idle]
        if idle and self._shrink is not None:
            self._shrink([chunk.address for chunk in idle])
            self._chunks = [chunk for chunk in self._chunks if chunk not in idle]

    def _new_chunk(self, chunk_bytes: int, size_bytes: int) -> int:
        address = self._grow(chunk_bytes)
        self._chunks.append(_Chunk(address, chunk_bytes, [(address, chunk_bytes)]))
        taken = self._chunks[-1].take(size_bytes)
        assert taken is not None
        return taken


class UploadRing:
    """Places for pieces of uploads in a ring of segments; a segment is reused when the copies out of it are done.

    `record` gives an event after all work launched so far; a piece's copy must be launched before the next is placed.
    `waits` counts how often the host had to wait for the oldest segment.
    """

    def __init__(self, size_bytes: int, segments: int, record: Callable[[], Event]) -> None:
        assert segments >= 2
        self._segment_bytes = size_bytes // segments // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        assert self._segment_bytes
        self._events: list[Event | None] = [None] * segments
        self._record = record
        self._segment = self._used = 0
        self.waits = 0

    def place(self, size_bytes: int) -> tuple[int, int]:
        """Offset and size in bytes of the next piece: `size_bytes`, at most a segment."""
        piece = min(size_bytes, self._segment_bytes)
        if self._used + piece > self._segment_bytes:
            self._open_next_segment()
        offset = self._segment * self._segment_bytes + self._used
        self._used += aligned(piece, ALIGNMENT_BYTES)
        return offset, piece

    def _open_next_segment(self) -> None:
        """Close the current segment, and wait until the copies out of the oldest one are done."""
        self._events[self._segment] = self._record()
        self._segment = (self._segment + 1) % len(self._events)
        self._used = 0
        event = self._events[self._segment]
        if event is not None and not event.is_done:
            self.waits += 1
            event.wait()
        self._events[self._segment] = None


class _LentMemory:
    """The base of a lent array and of its views; returns the memory to the pool with the last of them."""

    __slots__ = ("_free", "_memory")

    def __init__(self, memory: NDArray[np.float32], free: deque[NDArray[np.float32]]) -> None:
        self._memory = memory
        self._free = free

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)


class ArrayPool:
    """Lends float32 arrays of one shape, created by `make`. `allocations` counts the arrays created."""

    def __init__(self, make: Callable[[], NDArray[np.float32]], count: int) -> None:
        self._make = make
        self._free: deque[NDArray[np.float32]] = deque(make() for _ in range(count))
        self.allocations = count

    def lend(self) -> NDArray[np.float32]:
        """An array with undefined content; it returns to the pool with the last reference to it or to a view of it."""
        try:
            memory = self._free.popleft()
        except IndexError:
            self.allocations += 1
            memory = self._make()
        return np.asarray(_LentMemory(memory, self._free))


class PackedVectors:
    """Small vectors that lie in one piece of memory, each at an aligned address, and are uploaded together.

    used_bytes: what has been taken. limit_bytes: what lies behind it is not uploaded.
    """

    def __init__(self, device: Device, size_bytes: int) -> None:
        self._device = device
        self._tensor = device.zeros((size_bytes,), np.uint8)
        self._host: NDArray[np.uint8] = device.mirror(self._tensor)
        self.used_bytes = self.limit_bytes = 0
        self.has_changed = False

    def take(self, count: int, dtype: DTypeLike) -> tuple[Tensor, NDArray[Any]]:
        """The next `count` elements: device side and host side."""
        kind, start = np.dtype(dtype), self.used_bytes
        size_bytes = count * kind.itemsize
        self.used_bytes += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.limit_bytes = self.used_bytes
        host: NDArray[Any] = self._host[start : start + size_bytes].view(kind)
        piece = self._tensor.view(size_bytes, start=start)
        seen = None if piece.host is None else piece.host.view(kind)
        return Tensor(piece.address, (count,), kind, piece.owner, seen), host

    def flush(self, stream: Stream) -> None:
        """Upload all of them, if any has changed; nothing to do where the device sees the host's memory."""
        if self.has_changed and self._tensor.host is None:
            self.has_changed = False
            self._device.upload(self._tensor.view(self.limit_bytes), self._host[: self.limit_bytes], stream)


def host_view(array: Any) -> Any:
    """The memory of an NDArray for item assignments without numpy; type checkers know only memoryviews of bytes."""
    return memoryview(array)
