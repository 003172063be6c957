"""One arena per device; it grows, and whoever was given memory keeps it."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from runtime.devices.device import HostDevice, Tensor
from runtime.engines.tensorrt.activation import reserve_for_ticks
from runtime.errors import OutOfMemoryError


class Device(HostDevice):
    """Can be a key: dataclasses cannot."""

    __hash__ = object.__hash__


def test_less_is_served_from_what_there_is_and_more_is_new() -> None:
    device = Device()
    first = reserve_for_ticks(device, 1000)
    assert reserve_for_ticks(device, 10) is first
    larger = reserve_for_ticks(device, 1001)
    assert larger.size_bytes >= 1001
    assert larger.address % 256 == 0
    assert larger.address != first.address
    assert device.allocations == 2


def test_nothing_needed_is_still_an_address() -> None:
    assert reserve_for_ticks(Device(), 0).size_bytes >= 1


def test_devices_have_arenas_of_their_own_that_go_with_them() -> None:
    one, two = Device(), Device()
    assert reserve_for_ticks(one, 8).address != reserve_for_ticks(two, 8).address
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_a_failed_growth_leaves_what_there_was() -> None:
    class Small(Device):
        def zeros(self, shape: tuple[int, ...], dtype: object) -> Tensor:
            if shape[0] > 100:
                raise OutOfMemoryError("no more")
            return super().zeros(shape, np.uint8)

    device = Small()
    first = reserve_for_ticks(device, 100)
    with pytest.raises(OutOfMemoryError):
        reserve_for_ticks(device, 101)
    assert reserve_for_ticks(device, 100) is first


def test_threads_that_open_engines_at_once_share_one() -> None:
    device, found, gate = Device(), list[Tensor](), threading.Barrier(8)

    def reserve() -> None:
        gate.wait()
        found.append(reserve_for_ticks(device, 64))

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.allocations == 1
    assert len({tensor.address for tensor in found}) == 1
