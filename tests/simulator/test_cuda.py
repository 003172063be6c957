"""The simulated CUDA runtime: its statuses and its rules."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from simulator.fixture import Machine, provoked, simulated


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated(late=True) as machine:
        yield machine


@pytest.fixture
def cuda(machine: Machine) -> ModuleType:
    from cuda.bindings import runtime

    return runtime


def value(status: tuple[object, ...]) -> int:
    """The value of a successful call."""
    code, result = status
    assert code == 0
    return int(result)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def stream(cuda: ModuleType) -> int:
    return value(cuda.cudaStreamCreateWithPriority(cuda.cudaStreamNonBlocking, 0))


def pinned(cuda: ModuleType, machine: Machine, size: int) -> tuple[int, np.ndarray]:
    address = value(cuda.cudaHostAlloc(size, cuda.cudaHostAllocDefault))
    return address, machine.memory(address, size, "look")


def test_a_refused_call_returns_its_error_and_no_value(cuda: ModuleType, machine: Machine) -> None:
    assert cuda.cudaMalloc(1 << 50) == (cuda.cudaError_t.cudaErrorMemoryAllocation, None)
    assert cuda.cudaGetLastError() == (cuda.cudaError_t.cudaErrorMemoryAllocation,)
    assert cuda.cudaGetLastError() == (cuda.cudaError_t.cudaSuccess,)


def test_a_launch_after_an_unchecked_status(cuda: ModuleType, machine: Machine, stream: int) -> None:
    address = value(cuda.cudaMalloc(64))
    cuda.cudaMalloc(1 << 50)
    with provoked(machine, "error 2", "never checked"):
        cuda.cudaMemsetAsync(address, 0, 64, stream)
    cuda.cudaGetLastError()
    assert cuda.cudaMemsetAsync(address, 0, 64, stream) == (cuda.cudaError_t.cudaSuccess,)


def test_not_ready_is_an_error_to_be_cleared(cuda: ModuleType, machine: Machine, stream: int) -> None:
    event = value(cuda.cudaEventCreateWithFlags(cuda.cudaEventDefault))
    cuda.cudaEventRecord(event, stream)
    assert cuda.cudaEventQuery(event) == (cuda.cudaError_t.cudaErrorNotReady,)
    assert machine.last_error == 600
    cuda.cudaGetLastError()
    assert cuda.cudaEventSynchronize(event) == (cuda.cudaError_t.cudaSuccess,)
    assert cuda.cudaEventQuery(event) == (cuda.cudaError_t.cudaSuccess,)


def test_a_pinned_source_that_changes_before_the_copy_is_done(cuda: ModuleType, machine: Machine, stream: int) -> None:
    source, values = pinned(cuda, machine, 16)
    device = value(cuda.cudaMalloc(16))
    values[:] = 1
    cuda.cudaMemcpyAsync(device, source, 16, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice, stream)
    values[3] = 2
    with provoked(machine, "pinned source changed"):
        cuda.cudaStreamSynchronize(stream)


@pytest.mark.parametrize("kind", ["cudaMemcpyHostToDevice", "cudaMemcpyDeviceToDevice", "cudaMemcpyHostToHost"])
def test_a_copy_with_the_wrong_direction(cuda: ModuleType, machine: Machine, stream: int, kind: str) -> None:
    target, _ = pinned(cuda, machine, 16)
    device = value(cuda.cudaMalloc(16))
    with provoked(machine, "the direction is", kind):
        cuda.cudaMemcpyAsync(target, device, 16, cuda.cudaMemcpyKind[kind], stream)


def test_a_copy_beyond_the_memory(cuda: ModuleType, machine: Machine, stream: int) -> None:
    target, _ = pinned(cuda, machine, 32)
    device = value(cuda.cudaMalloc(16))
    with provoked(machine, "outside its allocation"):
        cuda.cudaMemcpyAsync(target, device, 32, cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost, stream)


def test_a_copy_of_pageable_memory_blocks_the_host(cuda: ModuleType, machine: Machine, stream: int) -> None:
    kinds = cuda.cudaMemcpyKind
    device, values = value(cuda.cudaMalloc(16)), np.arange(16, dtype=np.uint8)
    cuda.cudaMemcpyAsync(device, values.ctypes.data, 16, kinds.cudaMemcpyHostToDevice, stream)
    values[:] = 0
    cuda.cudaMemcpyAsync(values.ctypes.data, device, 16, kinds.cudaMemcpyDeviceToHost, stream)
    assert list(values) == list(range(16))
    assert machine.counters["pageable_copies"] == 2
    assert machine.counters["synchronizes"] == 1


def test_freeing_memory_of_the_other_kind(cuda: ModuleType, machine: Machine) -> None:
    with provoked(machine, "pinned memory is freed", "device memory"):
        cuda.cudaFreeHost(value(cuda.cudaMalloc(16)))
    with provoked(machine, "device memory is freed", "pinned memory"):
        cuda.cudaFree(value(cuda.cudaHostAlloc(16, 0)))


def test_streams_must_be_non_blocking(cuda: ModuleType, machine: Machine) -> None:
    with provoked(machine, "legacy default stream"):
        cuda.cudaStreamCreateWithPriority(0, 0)


def test_an_invalid_capture_returns_its_error_and_no_graph(cuda: ModuleType, machine: Machine, stream: int) -> None:
    mode = cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    assert cuda.cudaStreamBeginCapture(stream, mode) == (cuda.cudaError_t.cudaSuccess,)
    assert cuda.cudaMalloc(16) == (cuda.cudaError_t.cudaErrorStreamCaptureUnsupported, None)
    assert cuda.cudaStreamEndCapture(stream) == (cuda.cudaError_t.cudaErrorStreamCaptureInvalidated, None)
    cuda.cudaGetLastError()
    assert value(cuda.cudaMalloc(16))
