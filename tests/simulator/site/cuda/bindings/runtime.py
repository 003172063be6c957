"""The simulated CUDA runtime: the functions that TickRT calls, with the signatures and statuses of cuda.bindings 13.

Every function returns a tuple that begins with its status, and raises only RuleBroken. An error stays this thread's
last error until cudaGetLastError clears it.
"""

# CUDA's names, not ours.
# ruff: noqa: N801, N802, N815, N816

from __future__ import annotations

import ctypes
import functools
import uuid
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import simulated_machine as simulated
from cuda.bindings._errors import cudaError_t
from simulated_machine import Machine, RefusedError

cudaEventDefault = 0
cudaEventBlockingSync = 1
cudaEventDisableTiming = 2
cudaStreamNonBlocking = 1
cudaHostAllocDefault = 0
cudaEventWaitDefault = 0
RUNTIME_VERSION = 13050


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeGlobal = 0
    cudaStreamCaptureModeThreadLocal = 1
    cudaStreamCaptureModeRelaxed = 2


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToHost = 0
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3
    cudaMemcpyDefault = 4


class _Handle:
    """A handle of a stream, event or graph; int() gives its value."""

    def __init__(self, value: int = 0) -> None:
        self._value = value

    def __int__(self) -> int:
        return self._value


class cudaStream_t(_Handle): ...


class cudaEvent_t(_Handle): ...


class cudaGraph_t(_Handle): ...


class cudaGraphExec_t(_Handle): ...


class cudaUUID_t:
    bytes = uuid.UUID(int=0x51).bytes


class cudaDeviceProp:
    """The fields of a device's properties that TickRT reads."""

    def __init__(self, machine: Machine) -> None:
        self.name = machine.gpu_name.encode()
        self.uuid = cudaUUID_t()
        self.major, self.minor = (int(part) for part in machine.cc.split("."))
        self.multiProcessorCount = machine.sm_count
        self.totalGlobalMem = machine.memory_bytes


def _with_status(count: int) -> Callable[[Callable[..., Any]], Callable[..., tuple[Any, ...]]]:
    """Make a function return a status and `count` values, all None where CUDA refuses."""

    def decorate(function: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        @functools.wraps(function)
        def call(*args: Any) -> tuple[Any, ...]:
            try:
                value = function(*args)
            except RefusedError as refused:
                simulated.machine().last_error = refused.code
                return (cudaError_t(refused.code), *[None] * count)
            return (cudaError_t.cudaSuccess, *(value if count > 1 else (value,)))[: 1 + count]

        return call

    return decorate


# Driver, device, errors.


@_with_status(1)
def cudaDriverGetVersion() -> int:
    machine = simulated.machine()
    return 0 if machine.no_driver else machine.driver


@_with_status(1)
def cudaRuntimeGetVersion() -> int:
    return RUNTIME_VERSION


@_with_status(1)
def cudaGetDeviceCount() -> int:
    simulated.machine().check_alive()
    return simulated.machine().devices


@_with_status(0)
def cudaSetDevice(device: int) -> None:
    _check_device(device)


@_with_status(1)
def cudaGetDeviceProperties(device: int) -> cudaDeviceProp:
    _check_device(device)
    return cudaDeviceProp(simulated.machine())


@_with_status(2)
def cudaMemGetInfo() -> tuple[int, int]:
    machine = simulated.machine()
    machine.check_alive()
    return machine.free_bytes, machine.memory_bytes


def _check_device(device: int) -> None:
    simulated.machine().check_alive()
    if not 0 <= device < simulated.machine().devices:
        raise RefusedError(cudaError_t.cudaErrorInvalidDevice)


def cudaGetLastError() -> tuple[cudaError_t]:
    machine = simulated.machine()
    code, machine.last_error = machine.last_error, 0
    return (cudaError_t(machine.sticky or code),)


def cudaGetErrorString(error: cudaError_t) -> tuple[cudaError_t, bytes]:
    return cudaError_t.cudaSuccess, f"simulated: {cudaError_t(error).name.removeprefix('cudaError')}".encode()


# Memory.


@_with_status(1)
def cudaMalloc(size: int) -> int:
    return simulated.machine().allocate(size, "device")


@_with_status(0)
def cudaFree(devPtr: int) -> None:
    _free(devPtr, "device")


@_with_status(1)
def cudaHostAlloc(size: int, flags: int) -> int:
    return simulated.machine().allocate(size, "pinned")


@_with_status(0)
def cudaFreeHost(ptr: int) -> None:
    _free(ptr, "pinned")


def _free(address: int, kind: str) -> None:
    machine = simulated.machine()
    if machine.kind_of(address) != kind:
        machine.break_rule(f"{kind} memory is freed at {address:#x}, which is {machine.kind_of(address)} memory")
    machine.free(address)


@_with_status(0)
def cudaMemsetAsync(devPtr: int, value: int, count: int, stream: Any) -> None:
    machine = simulated.machine()
    if machine.kind_of(devPtr) != "device":
        machine.break_rule(f"memset of {devPtr:#x}, which is {machine.kind_of(devPtr)} memory")

    def work() -> None:
        machine.memory(devPtr, count, "memset").fill(value)

    _enqueue(stream, work, writes=[(devPtr, count)], what="memset")


@_with_status(0)
def cudaMemcpyAsync(dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: Any) -> None:
    machine = simulated.machine()
    kinds = (machine.kind_of(src), machine.kind_of(dst))
    what = f"copy of {count} bytes, {kinds[0]} to {kinds[1]}"
    _check_direction(kinds, kind, what)
    if kinds[1] == "device" != kinds[0]:
        machine.counters["uploads"] += 1
        machine.counters["uploaded_bytes"] += count
    if "pageable" in kinds:
        return _copy_pageable(dst, src, count, stream, kinds, what)

    def work() -> None:
        machine.memory(dst, count, what)[:] = machine.memory(src, count, what)

    _enqueue(
        stream,
        work,
        reads=[(src, count)],
        writes=[(dst, count)],
        what=what,
        sources=[(src, count)] if kinds[0] == "pinned" else [],
        poison=[(dst, count)] if kinds[1] == "pinned" else [],
    )
    return None


def _check_direction(kinds: tuple[str, str], kind: cudaMemcpyKind, what: str) -> None:
    directions = {
        (True, True): cudaMemcpyKind.cudaMemcpyDeviceToDevice,
        (True, False): cudaMemcpyKind.cudaMemcpyDeviceToHost,
        (False, True): cudaMemcpyKind.cudaMemcpyHostToDevice,
        (False, False): cudaMemcpyKind.cudaMemcpyHostToHost,
    }
    if cudaMemcpyKind(kind) != directions[kinds[0] == "device", kinds[1] == "device"]:
        simulated.machine().break_rule(f"{what}: the direction is {cudaMemcpyKind(kind).name}")


def _copy_pageable(dst: int, src: int, count: int, stream: Any, kinds: tuple[str, str], what: str) -> None:
    """Copy from or to host memory that is not pinned; done when the call returns."""
    machine = simulated.machine()
    machine.counters["pageable_copies"] += 1
    machine.unsafe_call(what)
    if kinds[1] == "device":
        taken = _pageable(src, count).copy()
        _enqueue(stream, lambda: np.copyto(machine.memory(dst, count, what), taken), writes=[(dst, count)], what=what)
        return
    target = _pageable(dst, count)
    _enqueue(stream, lambda: np.copyto(target, machine.memory(src, count, what)), reads=[(src, count)], what=what)
    machine.synchronize(int(stream))


def _pageable(address: int, count: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


def _enqueue(stream: Any, work: Callable[[], None], **what: Any) -> None:
    machine = simulated.machine()
    if not machine.enqueue(int(stream), work, **what):
        raise RefusedError(machine.last_error)


# Streams and events.


@_with_status(2)
def cudaDeviceGetStreamPriorityRange() -> tuple[int, int]:
    simulated.machine().check_alive()
    return simulated.LEAST_PRIORITY, simulated.machine().greatest_priority


@_with_status(1)
def cudaStreamCreateWithPriority(flags: int, priority: int) -> cudaStream_t:
    if flags != cudaStreamNonBlocking:
        simulated.machine().break_rule("a blocking stream waits for the legacy default stream")
    return cudaStream_t(simulated.machine().create_stream(priority))


@_with_status(0)
def cudaStreamDestroy(stream: Any) -> None:
    simulated.machine().destroy_stream(int(stream))


@_with_status(0)
def cudaStreamSynchronize(stream: Any) -> None:
    simulated.machine().synchronize(int(stream))


@_with_status(0)
def cudaStreamWaitEvent(stream: Any, event: Any, flags: int) -> None:
    simulated.machine().stream_wait(int(stream), int(event))


@_with_status(1)
def cudaEventCreateWithFlags(flags: int) -> cudaEvent_t:
    return cudaEvent_t(simulated.machine().create_event(timed=not flags & cudaEventDisableTiming))


@_with_status(0)
def cudaEventDestroy(event: Any) -> None:
    simulated.machine().destroy_event(int(event))


@_with_status(0)
def cudaEventRecord(event: Any, stream: Any) -> None:
    simulated.machine().record(int(event), int(stream))


@_with_status(0)
def cudaEventQuery(event: Any) -> None:
    if not simulated.machine().is_done(int(event)):
        raise RefusedError(cudaError_t.cudaErrorNotReady)


@_with_status(0)
def cudaEventSynchronize(event: Any) -> None:
    simulated.machine().run_until(int(event))


@_with_status(1)
def cudaEventElapsedTime(start: Any, end: Any) -> float:
    return simulated.machine().elapsed_ms(int(start), int(end))


# Captures and graphs.


@_with_status(0)
def cudaStreamBeginCapture(stream: Any, mode: cudaStreamCaptureMode) -> None:
    simulated.machine().begin_capture(int(stream), mode.value)


@_with_status(1)
def cudaStreamEndCapture(stream: Any) -> cudaGraph_t:
    return cudaGraph_t(simulated.machine().end_capture(int(stream)))


@_with_status(1)
def cudaGraphInstantiate(graph: Any, flags: int) -> cudaGraphExec_t:
    return cudaGraphExec_t(simulated.machine().instantiate(int(graph)))


@_with_status(0)
def cudaGraphDestroy(graph: Any) -> None:
    simulated.machine().destroy_graph(int(graph), executable=False)


@_with_status(0)
def cudaGraphUpload(graphExec: Any, stream: Any) -> None:
    simulated.machine().upload_graph(int(graphExec), int(stream))


@_with_status(0)
def cudaGraphLaunch(graphExec: Any, stream: Any) -> None:
    simulated.machine().launch_graph(int(graphExec), int(stream))


@_with_status(0)
def cudaGraphExecDestroy(graphExec: Any) -> None:
    simulated.machine().destroy_graph(int(graphExec), executable=True)
