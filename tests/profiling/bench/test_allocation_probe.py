"""The allocation probe counts NumPy's buffers, and nothing else."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from numpy._core.multiarray import get_handler_name

from profiling.bench.allocation_probe import MIN_BYTES, AllocationProbe


def test_a_buffer_is_counted() -> None:
    with AllocationProbe() as probe:
        np.empty(2048, np.uint8)
    assert probe.sizes == [2048]


def test_a_temporary_inside_an_expression_is_counted() -> None:
    a = np.ones(1024, np.float32)
    out = np.empty_like(a)
    with AllocationProbe() as probe:
        np.add(a * 2.0, a, out=out)
    assert probe.sizes == [4096]


@pytest.mark.parametrize("make", [np.zeros, np.empty, np.ones])
def test_every_way_to_allocate_is_counted(make: type[np.ndarray]) -> None:
    with AllocationProbe() as probe:
        make((16, 64), np.float32)
    assert probe.sizes == [4096]


def test_growing_an_array_in_place_is_counted() -> None:
    with AllocationProbe() as probe:
        array = np.empty(16, np.uint8)
        array.resize(8192, refcheck=False)
    assert probe.sizes == [8192]


def test_small_buffers_and_work_in_place_are_not_counted() -> None:
    a, b = np.ones(4096, np.float32), np.ones(4096, np.float32)
    with AllocationProbe() as probe:
        np.empty(MIN_BYTES - 1, np.uint8)
        np.multiply(a, b, out=a)
        a[:] = b
        a[1:].reshape(-1)
    assert probe.sizes == []


def test_nothing_is_counted_after_the_probe() -> None:
    with AllocationProbe() as probe:
        pass
    np.empty(2048, np.uint8)
    assert probe.count == 0
    assert get_handler_name(np.empty(2048)) == "default_allocator"


def test_arrays_outlive_the_probe() -> None:
    with AllocationProbe():
        arrays = [np.full(1000, float(i)) for i in range(50)]
    assert get_handler_name(arrays[0]) == "tickrt_probe"
    assert [a[999] for a in arrays] == [float(i) for i in range(50)]
    del arrays
    gc.collect()


def test_an_error_inside_removes_the_probe() -> None:
    with pytest.raises(ZeroDivisionError), AllocationProbe():
        _ = 1 // 0
    with AllocationProbe() as probe:
        np.empty(2048, np.uint8)
    assert probe.count == 1


def test_probes_do_not_nest() -> None:
    with (
        AllocationProbe() as outer,
        pytest.raises(RuntimeError, match="already active"),
        AllocationProbe(),
    ):
        pass
    with AllocationProbe() as probe:
        np.empty(2048, np.uint8)
    assert (outer.count, probe.count) == (0, 1)


def test_other_threads_are_not_counted() -> None:
    def work() -> None:
        np.empty(1 << 16, np.uint8)

    with AllocationProbe() as probe:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert probe.count == 0


def test_a_tracing_probe_has_the_source_line() -> None:
    with AllocationProbe(trace=True) as probe:
        for _ in range(3):
            np.empty(5000, np.uint8)  # this very line
        np.empty(2000, np.uint8)
    times, size_bytes, site = probe.sites()[0]
    assert (times, size_bytes) == (3, 15000)
    assert "test_allocation_probe.py" in site[-1]
    assert "this very line" in site[-1]
