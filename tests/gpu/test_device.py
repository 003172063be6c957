"""The CUDA device on a real GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest
from helpers.device_behaviour import *  # noqa: F403  (tests that every CUDA device passes)
from helpers.device_behaviour import fetched, filled

from runtime.base.errors import EngineError
from runtime.devices.cuda import probe

if TYPE_CHECKING:
    from runtime.devices.cuda import CudaDevice

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    try:
        probe()
    except EngineError as error:
        pytest.skip(str(error))
    from runtime.devices.cuda import CudaDevice

    device = CudaDevice(ring_bytes=1 << 20)
    yield device
    device.close()


def test_the_gpu_is_described(device: CudaDevice) -> None:
    assert device.gpu.name
    assert device.gpu.memory_bytes > 1 << 30
    assert float(device.gpu.compute_capability) >= 7.0
    assert int(device.gpu.uuid, 16)


def test_uploads_are_fast(device: CudaDevice) -> None:
    """At least 2 GB/s through the ring, which pageable memory does not reach."""
    values = np.ones(64 << 20, np.uint8)
    tensor = filled(device, values)
    begin = device.main.record()
    for _ in range(4):
        device.upload(tensor, values, device.main)
    end = device.main.record()
    end.wait()
    assert 4 * values.nbytes / device.main.elapsed_ms(begin, end) * 1e3 > 2e9
    assert fetched(device, tensor).all()
