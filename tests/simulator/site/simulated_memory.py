"""Memory of the simulated device: addresses, lifetimes, guard bytes, poison, and the last access to every byte.

Device addresses lie in a range that the host cannot read: reading one ends the process, as with a real GPU. They are
never reused, so a stale address is always detected. Pinned memory is host memory.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT_BYTES = 512
GUARD_BYTES = 512
GUARD = 0xA5
# NaN as float32 and float64, -1 as integers, no valid value as bool.
POISON = 0xFF
ADDRESS_SPACE_BYTES = 1 << 40
# Freed pinned memory up to this size stays mapped, poisoned: arrays may still refer to it.
FREED_PINNED_BYTES = 64 << 20


class RuleBroken(AssertionError):  # noqa: N818
    """A rule of CUDA or TensorRT was broken, which on hardware is a crash or a wrong result."""


class Access(NamedTuple):
    """An access to bytes: the stream's handle, the number of the work in it and its name."""

    stream: int
    number: int
    what: str


@dataclass(slots=True)
class Segment:
    """The last accesses to a range of bytes."""

    write: Access | None = None
    reads: dict[int, Access] = field(default_factory=dict)

    def copy(self) -> Segment:
        return Segment(self.write, dict(self.reads))

    def note(self, access: Access, *, is_write: bool) -> None:
        """Record an access."""
        if is_write:
            self.write = access
            self.reads.clear()
        else:
            self.reads[access.stream] = access


class History:
    """The last accesses to an allocation, in segments that begin and end where accesses do."""

    def __init__(self) -> None:
        self._starts = [0]
        self._segments = [Segment()]

    def span(self, begin: int, end: int) -> list[Segment]:
        """The segments that make up bytes `begin` to `end`."""
        first = self._cut(begin)
        return self._segments[first : self._cut(end)]

    def _cut(self, at: int) -> int:
        index = bisect_right(self._starts, at) - 1
        if self._starts[index] != at:
            index += 1
            self._starts.insert(index, at)
            self._segments.insert(index, self._segments[index - 1].copy())
        return index


class Lent:
    """The pieces of an allocation that an arena has handed out: (begin, end) in bytes, in order."""

    def __init__(self) -> None:
        self._pieces: list[tuple[int, int]] = []

    def add(self, begin: int, end: int) -> None:
        insort(self._pieces, (begin, end))

    def remove(self, begin: int, end: int) -> None:
        self._pieces.remove((begin, end))

    def covers(self, begin: int, end: int) -> bool:
        """Whether one piece holds all these bytes."""
        index = bisect_right(self._pieces, (begin, self._last)) - 1
        return index >= 0 and self._pieces[index][0] <= begin and end <= self._pieces[index][1]

    _last = ADDRESS_SPACE_BYTES


@dataclass(slots=True, eq=False)
class Allocation:
    """One allocation; `backing` holds its bytes between guards, None after they were released."""

    address: int
    size: int
    kind: str
    backing: np.ndarray[Any, Any] | None
    offset: int
    is_freed: bool = False
    pending: int = 0
    history: History = field(default_factory=History)
    lent: Lent | None = None

    def bytes(self, start: int = 0, size: int | None = None) -> np.ndarray[Any, Any]:
        assert self.backing is not None
        begin = self.offset + start
        return self.backing[begin : begin + (self.size - start if size is None else size)]

    def segments(self, address: int, size: int) -> list[Segment]:
        """The last accesses to these bytes."""
        begin = address - self.address
        return self.history.span(begin, begin + size) if size else []

    def guards_are_whole(self) -> bool:
        assert self.backing is not None
        before = self.backing[self.offset - GUARD_BYTES : self.offset]
        after = self.backing[self.offset + self.size : self.offset + self.size + GUARD_BYTES]
        return bool((before == GUARD).all() and (after == GUARD).all())


class Memory:
    """All allocations, freed ones included, by address."""

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._reserved = mmap.mmap(-1, ADDRESS_SPACE_BYTES, flags=flags, prot=0)
        base = np.frombuffer(self._reserved, np.uint8).ctypes.data
        self._next = -(-base // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._addresses: list[int] = []
        self._allocations: list[Allocation] = []
        self._freed_pinned: list[Allocation] = []
        self.device_bytes = 0

    def allocate(self, size: int, kind: str) -> Allocation:
        """Allocate poisoned memory between guards."""
        backing = np.empty(size + 2 * GUARD_BYTES + ALIGNMENT_BYTES, np.uint8)
        offset = GUARD_BYTES + -(backing.ctypes.data + GUARD_BYTES) % ALIGNMENT_BYTES
        backing[:offset] = backing[offset + size :] = GUARD
        address = backing.ctypes.data + offset
        if kind == "device":
            address = self._next
            self._next += -(-(size + 2 * GUARD_BYTES) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            self.device_bytes += size
        allocation = Allocation(address, size, kind, backing, offset)
        allocation.bytes().fill(POISON)
        self._insert(allocation)
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Poison the memory. Device bytes are released; pinned bytes stay mapped, see FREED_PINNED_BYTES."""
        allocation.is_freed = True
        if allocation.kind == "device":
            self.device_bytes -= allocation.size
            allocation.backing = None
            return
        allocation.bytes().fill(POISON)
        self._freed_pinned.append(allocation)
        while sum(freed.size for freed in self._freed_pinned) > FREED_PINNED_BYTES:
            self._forget(self._freed_pinned.pop(0))

    def find(self, address: int) -> Allocation | None:
        """The allocation that an address lies in, freed or not."""
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return None
        found = self._allocations[index]
        return found if address < found.address + max(found.size, 1) + GUARD_BYTES else None

    def living(self) -> Iterator[Allocation]:
        """The allocations that were not freed."""
        return (allocation for allocation in self._allocations if not allocation.is_freed)

    def _insert(self, allocation: Allocation) -> None:
        index = bisect_right(self._addresses, allocation.address)
        self._addresses.insert(index, allocation.address)
        self._allocations.insert(index, allocation)

    def _forget(self, allocation: Allocation) -> None:
        index = self._allocations.index(allocation)
        del self._allocations[index], self._addresses[index]
        allocation.backing = None
