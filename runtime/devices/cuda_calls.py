"""CUDA runtime calls with checked statuses; the only module that imports cuda.bindings.

cuda.core is not used: it raises errors of a class that it does not export, and its graph builder crashes after a failed
capture.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runtime.base.errors import EngineDeadError, EngineError, OutOfMemoryError

try:
    from cuda.bindings import runtime as cudart
    from cuda.bindings.utils import get_cuda_native_handle
except ImportError:
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

WITHOUT_GPU = "to run without a GPU: --target cpu"
# After one of these the context is lost: every later call returns the same error until the process ends.
STICKY = frozenset(
    f"cudaError{name}"
    for name in (
        "IllegalAddress", "LaunchFailure", "LaunchTimeout", "IllegalInstruction", "MisalignedAddress",
        "InvalidAddressSpace", "InvalidPc", "HardwareStackError", "Assert", "ECCUncorrectable", "NvlinkUncorrectable",
        "Contained", "TensorMemoryLeak", "ExternalDevice", "ContextIsDestroyed", "CudartUnloading",
        "DeviceUninitialized", "MpsRpcFailure", "MpsClientTerminated", "Unknown",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gpu:
    """The first GPU. `driver_version`: the newest CUDA that the driver supports ("13.0"); `cuda_version`: the runtime
    library's."""

    name: str
    compute_capability: str
    sm_count: int
    memory_bytes: int
    driver_version: str
    cuda_version: str
    uuid: str


def probe() -> Gpu:
    """Properties of the first GPU, without creating a context. Raises EngineError that says what is missing."""
    if not IS_INSTALLED:
        raise EngineError(
            "package cuda-python is not installed, and using a GPU needs it",
            fix=f"pip install 'tickrt[tensorrt]'  (or 'tickrt[tensorrt-rtx]', 'tickrt[cuda]'); {WITHOUT_GPU}",
        )
    driver = _version(check(cudart.cudaDriverGetVersion(), "reading the driver's version"))
    runtime = _version(check(cudart.cudaRuntimeGetVersion(), "reading CUDA's version"))
    _check_devices(driver, runtime)
    properties: cudart.cudaDeviceProp = check(cudart.cudaGetDeviceProperties(0), "reading the GPU's properties")
    return Gpu(
        name=properties.name.decode().rstrip("\0"),
        compute_capability=f"{properties.major}.{properties.minor}",
        sm_count=properties.multiProcessorCount,
        memory_bytes=properties.totalGlobalMem,
        driver_version=driver,
        cuda_version=runtime,
        uuid=bytes(properties.uuid.bytes).hex(),
    )


def _check_devices(driver: str, runtime: str) -> None:
    fix = f"nvidia-smi must list the GPU (in a container: start it with --gpus all); {WITHOUT_GPU}"
    if driver == "0.0":
        raise EngineError("there is no NVIDIA driver on this machine", fix=fix)
    code, count = cudart.cudaGetDeviceCount()
    if code.name == "cudaErrorInsufficientDriver":
        _clear_error()
        what = f"the NVIDIA driver supports CUDA {driver} at most, and the installed cuda-python needs {runtime}"
        raise EngineError(what, fix=f"install a driver that supports CUDA {runtime.split('.')[0]}; {WITHOUT_GPU}")
    if code.name == "cudaErrorNoDevice" or count == 0:
        _clear_error()
        raise EngineError("there is an NVIDIA driver, but no GPU is visible", fix=f"check CUDA_VISIBLE_DEVICES; {fix}")
    check((code, count), "counting the GPUs")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def check(status: tuple[Any, ...], what: str) -> Any:
    """The value of a CUDA call that returned `status` while doing `what`. Raises EngineError or a subclass."""
    code, *values = status
    if code:
        raise _failure(code, what)
    return values[0] if len(values) == 1 else tuple(values)


def _handle(status: tuple[Any, ...], what: str) -> int:
    """The address of the CUDA object that a call returned. Raises EngineError."""
    return int(get_cuda_native_handle(check(status, what)))


def _failure(code: cudart.cudaError_t, what: str) -> EngineError:
    """Our error for CUDA's. CUDA's last error is cleared: the next launch would report it as its own."""
    _clear_error()
    text = cudart.cudaGetErrorString(code)[1].decode()
    message = f"{what}: {code.name} ({text})"
    if code.name == "cudaErrorMemoryAllocation":
        return OutOfMemoryError(message)
    return EngineDeadError(message) if code.name in STICKY else EngineError(message)


def _clear_error() -> None:
    cudart.cudaGetLastError()


def open_first() -> None:
    """Create the first GPU's context. Raises EngineError."""
    check(cudart.cudaSetDevice(0), "opening the GPU")


def free_bytes() -> int:
    """Free device memory; what other programs use is not free. Raises EngineError."""
    return int(check(cudart.cudaMemGetInfo(), "reading the free memory")[0])


# Memory, as addresses.


def take_device(size_bytes: int) -> int:
    """Allocate device memory. Raises OutOfMemoryError, EngineError."""
    return int(check(cudart.cudaMalloc(size_bytes), f"taking {size_bytes} bytes of the GPU's memory"))


def take_pinned(size_bytes: int) -> int:
    """Allocate pinned host memory. Raises OutOfMemoryError, EngineError."""
    status = cudart.cudaHostAlloc(size_bytes, cudart.cudaHostAllocDefault)
    return int(check(status, f"taking {size_bytes} bytes of pinned memory"))


def free_device(address: int) -> None:
    """Free device memory that no pending work uses. Raises EngineError."""
    check(cudart.cudaFree(address), "freeing device memory")


def free_pinned(address: int) -> None:
    """Free pinned memory that no pending work uses. Raises EngineError."""
    check(cudart.cudaFreeHost(address), "freeing pinned memory")


def zero(address: int, size_bytes: int, stream: int) -> None:
    """Fill device memory with zeros, in stream order. Raises EngineError."""
    check(cudart.cudaMemsetAsync(address, 0, size_bytes, stream), f"zeroing {size_bytes} bytes")


def copy_to_device(target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy from pinned memory, in stream order. Raises EngineError."""
    kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
    check(cudart.cudaMemcpyAsync(target, source, size_bytes, kind, stream), f"uploading {size_bytes} bytes")


def copy_on_device(target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy between device memory, in stream order. Raises EngineError."""
    kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice
    check(cudart.cudaMemcpyAsync(target, source, size_bytes, kind, stream), f"copying {size_bytes} bytes")


def copy_to_host(target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy from device memory, in stream order; the host waits where the target is not pinned. Raises EngineError."""
    kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
    check(cudart.cudaMemcpyAsync(target, source, size_bytes, kind, stream), f"downloading {size_bytes} bytes")


# Streams and events, as handles.


def stream_priorities() -> tuple[int, int]:
    """The least and the greatest priority of streams; a lower number is a higher priority. Raises EngineError."""
    found: tuple[int, int] = check(cudart.cudaDeviceGetStreamPriorityRange(), "reading the range of stream priorities")
    return found


def new_stream(priority: int) -> int:
    """A stream that does not wait for the legacy default stream. Raises EngineError.

    Blocks of kernels that wait for a free place on the GPU begin by their streams' priorities; what runs is not
    interrupted.
    """
    return _handle(cudart.cudaStreamCreateWithPriority(cudart.cudaStreamNonBlocking, priority), "making a stream")


def close_stream(stream: int) -> None:
    """Destroy a stream once all its work is done. Raises EngineError."""
    check(cudart.cudaStreamSynchronize(stream), "waiting for a stream before it is closed")
    check(cudart.cudaStreamDestroy(stream), "closing a stream")


def new_event() -> int:
    """A timed event with blocking synchronization. Raises EngineError.

    A waiting host thread sleeps instead of spinning. It wakes about 20 us later, which costs nothing because the next
    tick is on the stream already, and the core is free for the server's threads meanwhile.
    """
    return _handle(cudart.cudaEventCreateWithFlags(cudart.cudaEventBlockingSync), "making an event")


def close_event(event: int) -> None:
    """Destroy an event. Raises EngineError."""
    check(cudart.cudaEventDestroy(event), "closing an event")


def record(event: int, stream: int) -> None:
    """Record an event after all work launched on the stream so far. Raises EngineError."""
    check(cudart.cudaEventRecord(event, stream), "recording an event")


def make_wait(stream: int, event: int) -> None:
    """Work launched on the stream from now on starts after the event's last recording. Raises EngineError."""
    status = cudart.cudaStreamWaitEvent(stream, event, cudart.cudaEventWaitDefault)
    check(status, "making a stream wait for an event")


def is_done(event: int) -> bool:
    """Whether the device has passed an event; never blocks. Raises EngineError."""
    code = cudart.cudaEventQuery(event)[0]
    if code == cudart.cudaError_t.cudaErrorNotReady:
        _clear_error()
        return False
    check((code,), "querying an event")
    return True


def wait(event: int) -> None:
    """Block the host until the device has passed an event. Raises EngineError."""
    check(cudart.cudaEventSynchronize(event), "waiting for the GPU")


def elapsed_ms(begin: int, end: int) -> float:
    """Milliseconds between two events that are done. Raises EngineError."""
    return float(check(cudart.cudaEventElapsedTime(begin, end), "measuring the time between events"))


# Captured graphs, as handles.


def capture(stream: int, work: Callable[[], None]) -> int:
    """Capture the work that `work` launches on the stream as an executable graph, on the GPU already; none of it runs.

    Raises EngineError and every exception of `work`; the capture is ended then, and the stream is unchanged.
    """
    mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    with _no_collection():
        check(cudart.cudaStreamBeginCapture(stream, mode), "beginning a capture")
        try:
            work()
        except BaseException:
            _abandon_capture(stream)
            raise
        graph = _handle(cudart.cudaStreamEndCapture(stream), "ending a capture")
    try:
        executable = _handle(cudart.cudaGraphInstantiate(graph, 0), "making a captured graph executable")
    finally:
        check(cudart.cudaGraphDestroy(graph), "releasing a captured graph")
    try:
        check(cudart.cudaGraphUpload(executable, stream), "uploading a captured graph")
    except EngineError:
        close_graph(executable)
        raise
    return executable


def _abandon_capture(stream: int) -> None:
    """End a failed capture: drop its graph, and clear the error that ending it returns."""
    _, graph = cudart.cudaStreamEndCapture(stream)
    if graph is not None:
        cudart.cudaGraphDestroy(graph)
    _clear_error()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector: a finalizer that frees device memory would invalidate the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def launch_graph(graph: int, stream: int) -> None:
    """Put a whole executable graph on a stream. Raises EngineError."""
    check(cudart.cudaGraphLaunch(graph, stream), "launching a captured graph")


def close_graph(graph: int) -> None:
    """Destroy an executable graph that is not running. Raises EngineError."""
    check(cudart.cudaGraphExecDestroy(graph), "releasing a captured graph")
