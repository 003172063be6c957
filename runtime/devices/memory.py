"""Sub-allocation of device and pinned memory, the ring that uploads go through, and pooled host arrays."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from runtime.errors import OutOfMemoryError

ALIGNMENT_BYTES = 256


def aligned(size_bytes: int) -> int:
    """The next multiple of 256 bytes; at least one."""
    return max(1, -(-size_bytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES


class Fence(Protocol):
    """A point in the device's work, on one stream or on several."""

    @property
    def is_done(self) -> bool:
        """Whether the device has passed it; never blocks."""

    def wait(self) -> None:
        """Block until the device has passed it."""


class Block:
    """A piece of an arena; it goes back when nothing refers to it any more."""

    __slots__ = ("_home", "address", "size_bytes")

    def __init__(self, address: int, size_bytes: int, home: deque[tuple[int, int]]) -> None:
        self.address, self.size_bytes = address, size_bytes
        self._home = home

    def __del__(self) -> None:
        # The garbage collector may be here in any thread, at any point (even in the middle of a capture): only note it.
        self._home.append((self.address, self.size_bytes))


class _HostBytes:
    """A block of host memory as numpy sees it: the array keeps the block alive."""

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
    """The block's memory (the host's) as an array; the block lives as long as any view of it."""
    kind = np.dtype(dtype)
    return np.asarray(_HostBytes(block))[: prod(shape) * kind.itemsize].view(kind).reshape(shape)


@dataclass(slots=True)
class _Chunk:
    """One allocation: what is free in it, as sorted (address, size) that do not touch."""

    address: int
    size_bytes: int
    free: list[tuple[int, int]] = field(default_factory=list)

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
    """Sub-allocates blocks, 256-byte aligned, from large chunks: `grow(size_bytes)` allocates one and gives its
    address.

    A block that came back is given out again once a fence that was made after its return (by `fence`) is done; without
    `fence` at once, for memory that is only touched in stream order. One thread at a time; blocks come back from any.
    """

    def __init__(self, grow: Callable[[int], int], chunk_bytes: int, fence: Callable[[], Fence] | None = None) -> None:
        self._grow, self._chunk_bytes, self._fence = grow, chunk_bytes, fence
        self._chunks: list[_Chunk] = []
        self._returned: deque[tuple[int, int]] = deque()
        self._waiting: deque[tuple[Fence, list[tuple[int, int]]]] = deque()

    @property
    def reserved_bytes(self) -> int:
        """What all chunks hold."""
        return sum(chunk.size_bytes for chunk in self._chunks)

    def take(self, size_bytes: int) -> Block:
        """A block of at least this size; its content is undefined. Raises OutOfMemoryError."""
        size_bytes = aligned(size_bytes)
        self._collect()
        address = self._fit(size_bytes)
        if address is None:
            address = self._extend(size_bytes)
        return Block(address, size_bytes, self._returned)

    def release(self) -> tuple[list[int], list[int]]:
        """Give up all chunks, for good: addresses of those without a living block, and of those with one."""
        self._give_all(self._returned)
        while self._waiting:
            self._give_all(deque(self._waiting.popleft()[1]))
        idle = [chunk.address for chunk in self._chunks if chunk.free == [(chunk.address, chunk.size_bytes)]]
        used = [chunk.address for chunk in self._chunks if chunk.address not in idle]
        self._chunks.clear()
        return idle, used

    def _collect(self) -> None:
        """Make blocks that came back available: at once, or when what was launched before now is done."""
        if self._fence is None:
            self._give_all(self._returned)
            return
        if self._returned:
            returned = [self._returned.popleft() for _ in range(len(self._returned))]
            self._waiting.append((self._fence(), returned))
        while self._waiting and self._waiting[0][0].is_done:
            self._give_all(deque(self._waiting.popleft()[1]))

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
        """From a new chunk; where there is no memory for a large one, from what can be had."""
        try:
            return self._new_chunk(max(size_bytes, self._chunk_bytes), size_bytes)
        except OutOfMemoryError:
            # Tensors of what was closed may hang in reference cycles that nobody collected yet.
            gc.collect()
            self._collect()
            address = self._fit(size_bytes)
            return self._new_chunk(size_bytes, size_bytes) if address is None else address

    def _new_chunk(self, chunk_bytes: int, size_bytes: int) -> int:
        address = self._grow(chunk_bytes)
        self._chunks.append(_Chunk(address, chunk_bytes, [(address, chunk_bytes)]))
        taken = self._chunks[-1].take(size_bytes)
        assert taken is not None
        return taken


class UploadRing:
    """Places for pieces of uploads in a ring of segments; a segment is filled again when the copies out of it are done.

    `record` makes a fence after everything launched so far; a piece must be launched before the next one is placed.
    `waits` counts how often the host had to wait for the oldest segment.
    """

    def __init__(self, size_bytes: int, segments: int, record: Callable[[], Fence]) -> None:
        assert segments >= 2
        self._segment_bytes = size_bytes // segments // ALIGNMENT_BYTES * ALIGNMENT_BYTES
        assert self._segment_bytes
        self._fences: list[Fence | None] = [None] * segments
        self._record = record
        self._segment = self._used = 0
        self.waits = 0

    def place(self, size_bytes: int) -> tuple[int, int]:
        """Offset and size in bytes of the next piece: all of `size_bytes`, or what a segment holds."""
        piece = min(size_bytes, self._segment_bytes)
        if self._used + piece > self._segment_bytes:
            self._turn()
        offset = self._segment * self._segment_bytes + self._used
        self._used += aligned(piece)
        return offset, piece

    def _turn(self) -> None:
        """Leave a segment to its copies and take the oldest one."""
        self._fences[self._segment] = self._record()
        self._segment = (self._segment + 1) % len(self._fences)
        self._used = 0
        fence = self._fences[self._segment]
        if fence is not None and not fence.is_done:
            self.waits += 1
            fence.wait()
        self._fences[self._segment] = None


class _Lease:
    """The base of a lent array and of every view of it; gives the memory back when the last of them is gone."""

    __slots__ = ("_home", "_memory")

    def __init__(self, memory: NDArray[np.float32], home: deque[NDArray[np.float32]]) -> None:
        self._memory = memory
        self._home = home

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._memory.__array_interface__

    def __del__(self) -> None:
        self._home.append(self._memory)


class ArrayPool:
    """Lends float32 arrays of one shape, made by `make`. `allocations` counts how often the pool had to grow."""

    def __init__(self, make: Callable[[], NDArray[np.float32]], count: int) -> None:
        self._make = make
        self._free: deque[NDArray[np.float32]] = deque(make() for _ in range(count))
        self.allocations = count

    def lend(self) -> NDArray[np.float32]:
        """An array whose content is undefined; it belongs to the receiver until nobody refers to it."""
        try:
            memory = self._free.popleft()
        except IndexError:
            self.allocations += 1
            memory = self._make()
        return np.asarray(_Lease(memory, self._free))
