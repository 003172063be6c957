"""Activation memory that engines of a device share, and reuse of execution contexts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from simulator.fixture import Machine, simulated

from runtime.base.errors import OutOfMemoryError
from runtime.devices.device import HostDevice, Tensor
from runtime.devices.machine import open_device


@pytest.fixture(autouse=True)
def machine() -> Iterator[Machine]:
    with simulated() as machine:
        yield machine


def reserve_activation(device: Any, size_bytes: int, stream: int = 0) -> Tensor:
    # Imported here: the simulator replaces the module.
    from runtime.engines.tensorrt import engine as context_pool

    return context_pool.reserve_activation(device, size_bytes, stream)


class Device(HostDevice):
    """Hashable, as CudaDevice is: HostDevice is a dataclass."""

    __hash__ = object.__hash__


def test_memory_is_reused_unless_more_is_needed() -> None:
    device = Device()
    first = reserve_activation(device, 1000)
    assert reserve_activation(device, 10) is first
    larger = reserve_activation(device, 1001)
    assert larger.size_bytes >= 1001
    assert larger.address % 256 == 0
    assert larger.address != first.address
    assert device.allocations == 2


def test_each_device_has_its_own_memory_and_can_be_collected() -> None:
    one, two = Device(), Device()
    assert reserve_activation(one, 8).address != reserve_activation(two, 8).address
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None


def test_a_failed_allocation_keeps_the_old_memory() -> None:
    class Small(Device):
        def zeros(self, shape: tuple[int, ...], dtype: object) -> Tensor:
            if shape[0] > 100:
                raise OutOfMemoryError("no more")
            return super().zeros(shape, np.uint8)

    device = Small()
    first = reserve_activation(device, 100)
    with pytest.raises(OutOfMemoryError):
        reserve_activation(device, 101)
    assert reserve_activation(device, 100) is first


def test_engines_of_streams_that_run_beside_each_other_share_no_memory() -> None:
    device = open_device("tensorrt")
    assert device.beside is device.beside
    assert device.beside.handle != device.main.handle
    handles = device.main.handle, device.beside.handle
    ticks, planner = (reserve_activation(device, 64, handle) for handle in handles)
    assert ticks.address != planner.address
    assert reserve_activation(device, 32, handles[1]) is planner
    device.close()
