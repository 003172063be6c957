"""The allocation probe counts NumPy's buffers, and nothing else."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from profiling.bench.allocation_probe import MIN_BYTES, AllocationProbe

ONES, MORE = np.ones(1024, np.float32), np.ones(1024, np.float32)


def in_place() -> None:
    np.multiply(ONES, MORE, out=ONES)
    ONES[:] = MORE
    ONES[1:].reshape(-1)


def elsewhere() -> None:
    thread = threading.Thread(target=np.empty, args=(1 << 16, np.uint8))
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("work", "sizes"),
    [
        (lambda: np.empty(2048, np.uint8), [2048]),
        (lambda: np.zeros((16, 64), np.float32), [4096]),
        (lambda: np.ones((16, 64), np.float32), [4096]),
        (lambda: np.add(ONES * 2.0, ONES, out=MORE), [4096]),
        (lambda: np.empty(16, np.uint8).resize(8192, refcheck=False), [8192]),
        (lambda: np.empty(MIN_BYTES - 1, np.uint8), []),
        (in_place, []),
        (elsewhere, []),
    ],
    ids=["empty", "zeros", "ones", "a temporary", "growth", "small", "in place", "another thread"],
)
def test_buffers_of_this_thread_are_counted(work: Callable[[], object], sizes: list[int]) -> None:
    with AllocationProbe() as probe:
        work()
    assert probe.sizes == sizes


def test_one_probe_at_a_time_counts_until_it_ends_also_by_an_error() -> None:
    with (
        AllocationProbe() as outer,
        pytest.raises(RuntimeError, match="already active"),
        AllocationProbe(),
    ):
        pass
    np.empty(2048, np.uint8)
    assert (outer.count, get_handler_name(np.empty(2048))) == (0, "default_allocator")
    with pytest.raises(ZeroDivisionError), AllocationProbe():
        _ = 1 // 0
    with AllocationProbe() as probe:
        np.empty(2048, np.uint8)
    assert probe.count == 1


def test_arrays_outlive_the_probe() -> None:
    with AllocationProbe():
        arrays = [np.full(1000, float(i)) for i in range(50)]
    assert get_handler_name(arrays[0]) == "tickrt_probe"
    assert [a[999] for a in arrays] == [float(i) for i in range(50)]
    del arrays
    gc.collect()


def test_a_tracing_probe_has_the_source_line() -> None:
    with AllocationProbe(trace=True) as probe:
        for _ in range(3):
            np.empty(5000, np.uint8)  # this very line
        np.empty(2000, np.uint8)
    times, size_bytes, site = probe.sites()[0]
    assert (times, size_bytes) == (3, 15000)
    assert "test_allocation_probe.py" in site[-1]
    assert "this very line" in site[-1]
