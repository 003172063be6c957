"""The host device: alignment, views, copies, the allocation counter."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.devices.device import ALIGNMENT_BYTES, HostDevice


def test_memory_is_aligned_zero_and_counted() -> None:
    device = HostDevice()
    for shape in ((3, 5), (1,), (7, 11, 2)):
        tensor = device.zeros(shape, np.float32)
        assert tensor.address % ALIGNMENT_BYTES == 0
        assert tensor.host is not None
        assert tensor.host.shape == shape
        assert not tensor.host.any()
    assert device.allocations == 3


def test_view_is_the_same_memory_at_an_offset() -> None:
    tensor = HostDevice().zeros((4, 6), np.float32)
    view = tensor.view(2, 3, start=6)
    assert view.host is not None
    assert tensor.host is not None
    view.host[...] = 5.0
    assert (tensor.host[1] == 5.0).all()
    assert view.address == tensor.address + 24


def test_view_beyond_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        HostDevice().zeros((4,), np.float32).view(3, start=2)


def test_upload_and_download_are_inverse() -> None:
    device = HostDevice()
    tensor, out = device.zeros((3,), np.float32), np.zeros(3, np.float32)
    device.upload(tensor, np.array([1, 2, 3], np.float32), device.stream())
    device.download(out, tensor, device.stream())
    np.testing.assert_array_equal(out, [1, 2, 3])


def test_a_copy_on_the_device_is_done_when_it_returns() -> None:
    device = HostDevice()
    tensor = device.zeros((6,), np.float32)
    device.upload(tensor.view(3), np.array([1, 2, 3], np.float32), device.main)
    device.copy(tensor.view(3, start=3), tensor.view(3), device.main)
    assert tensor.host is not None
    assert tensor.host.tolist() == [1, 2, 3, 1, 2, 3]


def test_events_are_done_and_measure_time() -> None:
    stream = HostDevice().stream()
    begin, end = stream.record(), stream.record()
    assert end.is_done
    assert stream.elapsed_ms(begin, end) >= 0
