"""Sub-allocation of memory, the ring of uploads, packed vectors, pooled arrays."""

from __future__ import annotations

import gc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.errors import OutOfMemoryError
from runtime.devices.device import ALIGNMENT_BYTES, Event, HostDevice
from runtime.devices.memory import Arena, ArrayPool, Block, PackedVectors, UploadRing, host_array, host_view

CHUNK = 4096


class FakeEvent:
    """Done when the test says so; counts the waits."""

    def __init__(self) -> None:
        self.is_done = False
        self.waits = 0

    def wait(self) -> None:
        self.waits += 1
        self.is_done = True


class FakeMemory:
    """Allocates addresses `gap` bytes apart, up to `limit` bytes in all."""

    def __init__(self, limit: int = 1 << 40, gap: int = 1 << 20) -> None:
        self.limit, self.gap = limit, gap
        self.chunks: list[tuple[int, int]] = []
        self.next = 1 << 20

    def grow(self, size_bytes: int) -> int:
        if sum(size for _, size in self.chunks) + size_bytes > self.limit:
            raise OutOfMemoryError("out of memory")
        self.chunks.append((self.next, size_bytes))
        self.next += size_bytes + self.gap
        return self.chunks[-1][0]


def inside_one_chunk(memory: FakeMemory, block: Block) -> bool:
    return any(
        begin <= block.address and block.address + block.size_bytes <= begin + size for begin, size in memory.chunks
    )


def test_adjacent_returned_blocks_are_merged() -> None:
    memory = FakeMemory()
    arena = Arena(memory.grow, CHUNK)
    blocks = [arena.take(512) for _ in range(CHUNK // 512)]
    del blocks[1::2]
    del blocks[:]
    assert arena.take(CHUNK).address == memory.chunks[0][0]


def test_a_block_is_not_reused_before_its_event() -> None:
    memory, events = FakeMemory(), [FakeEvent(), FakeEvent()]
    made = iter(events)
    arena = Arena(memory.grow, CHUNK, lambda: next(made))
    first = arena.take(CHUNK)
    address = first.address
    del first
    second = arena.take(CHUNK)
    assert second.address != address, "pending work may still use it"
    events[0].is_done = True
    assert arena.take(CHUNK).address == address
    assert [event.waits for event in events] == [0, 0]


def test_without_memory_for_a_chunk_a_smaller_one_is_tried() -> None:
    memory = FakeMemory(limit=CHUNK + 512)
    arena = Arena(memory.grow, CHUNK)
    first = arena.take(CHUNK)
    second = arena.take(512)
    assert [size for _, size in memory.chunks] == [CHUNK, 512]
    with pytest.raises(OutOfMemoryError):
        arena.take(256)
    del first, second
    assert arena.take(CHUNK)


def test_reference_cycles_are_collected_before_an_allocation_fails() -> None:
    memory = FakeMemory(limit=CHUNK)
    arena = Arena(memory.grow, CHUNK)
    cycle: list[object] = [arena.take(CHUNK)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert arena.take(CHUNK)
    finally:
        gc.enable()


def test_release_separates_idle_and_used_chunks() -> None:
    memory = FakeMemory()
    arena = Arena(memory.grow, CHUNK, FakeEvent)
    idle, used = arena.take(CHUNK), arena.take(CHUNK)
    del idle
    assert arena.release() == ([memory.chunks[0][0]], [used.address])
    assert arena.release() == ([], [])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3000) | st.integers(CHUNK, 3 * CHUNK), st.integers(0, 7)), max_size=60))
def test_live_blocks_are_aligned_and_never_overlap_and_all_memory_returns(steps: list[tuple[int, int]]) -> None:
    memory = FakeMemory(gap=0)
    arena = Arena(memory.grow, CHUNK)
    living: list[Block] = []
    for size, place in steps:
        if place < 5:
            living.append(arena.take(size))
            assert living[-1].size_bytes >= size
        elif living:
            living.pop(size % len(living))
        spans = sorted((block.address, block.address + block.size_bytes) for block in living)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert all(inside_one_chunk(memory, block) and block.address % 512 == 0 for block in living)
    living.clear()
    before = len(memory.chunks)
    again = [arena.take(size) for _, size in memory.chunks]
    assert len(memory.chunks) == before, "what was returned is whole again"
    again.clear()
    assert arena.release() == ([address for address, _ in memory.chunks], [])


def test_an_array_or_view_keeps_its_block() -> None:
    raw = np.zeros(CHUNK + 512, np.uint8)
    memory = FakeMemory()
    memory.next = -(-raw.ctypes.data // 512) * 512
    arena = Arena(memory.grow, CHUNK)
    array = host_array(arena.take(48), (3, 4), np.float32)
    view = array[1]
    array[...] = 5.0
    assert raw[memory.chunks[0][0] - raw.ctypes.data :][:48].view(np.float32).tolist() == [5.0] * 12
    del array
    assert arena.take(256).address != memory.chunks[0][0], "a view of the array still lives"
    del view
    assert arena.take(256).address == memory.chunks[0][0]


def ring_with(events: list[FakeEvent], *, size: int = 4 * 1024, segments: int = 4) -> UploadRing:
    def record() -> Event:
        events.append(FakeEvent())
        return events[-1]

    return UploadRing(size, segments, record)


def test_pieces_follow_each_other_aligned_and_wait_for_no_copy_that_is_done() -> None:
    events: list[FakeEvent] = []
    ring = ring_with(events)
    assert [ring.place(size) for size in (100, 300, 1, 255)] == [(0, 100), (256, 300), (768, 1), (1024, 255)]
    for _ in range(20):
        ring.place(1024)
        for event in events:
            event.is_done = True
    assert ring.waits == 0
    assert all(event.waits == 0 for event in events)


def test_a_full_ring_waits_for_its_oldest_segment_only() -> None:
    events: list[FakeEvent] = []
    ring = ring_with(events)
    for _ in range(4):
        ring.place(1024)
    assert ring.waits == 0
    assert ring.place(1024) == (0, 1024)
    assert ring.waits == 1
    assert [event.waits for event in events] == [1, 0, 0, 0]


def pool_of(*shape: int, count: int) -> ArrayPool:
    return ArrayPool(lambda: np.zeros(shape, np.float32), count)


def test_array_returns_when_the_last_view_is_gone() -> None:
    pool = pool_of(8, 4, count=1)
    first = pool.lend()
    first[...] = 1.0
    view = first[2:]
    del first
    second = pool.lend()
    second[...] = 2.0
    assert pool.allocations == 2
    np.testing.assert_array_equal(view, 1.0)
    del view
    third = pool.lend()
    assert pool.allocations == 2
    assert third.shape == (8, 4)


def test_vectors_of_several_dtypes_do_not_overlap() -> None:
    vectors = PackedVectors(HostDevice(), 3 * ALIGNMENT_BYTES)
    taken = [vectors.take(5, dtype) for dtype in (np.float32, np.int64, np.bool_)]
    for number, (_, host) in enumerate(taken):
        host[...] = number % 2
    for number, (tensor, _) in enumerate(taken):
        assert tensor.address % ALIGNMENT_BYTES == 0
        assert tensor.host is not None
        assert (tensor.host == number % 2).all()
    assert vectors.used_bytes == vectors.limit_bytes == 3 * ALIGNMENT_BYTES


def test_a_view_writes_the_array() -> None:
    array = np.zeros(3, np.int64)
    host_view(array)[1] = 7
    assert array.tolist() == [0, 7, 0]
