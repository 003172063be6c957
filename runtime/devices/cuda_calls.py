"""Every call of CUDA's that we make, its status checked; the only module of this room that imports it.

All of it is cuda.bindings: its functions give a status that `check` turns into one of our errors. (cuda.core raises
errors of a class that it does not export, and its graph builder dies with a capture that failed.)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from runtime.errors import EngineDeadError, EngineError, OutOfMemoryError

try:
    from cuda.bindings import runtime as cudart
    from cuda.bindings.utils import get_cuda_native_handle
except ImportError:
    IS_INSTALLED = False
else:
    IS_INSTALLED = True

WITHOUT = "to go without a GPU: --target cpu"
# After one of these the context is gone: whatever is asked of it gives the same error until the process ends.
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
    """The first GPU. `driver_version` is the newest CUDA that its driver knows ("13.0"), `cuda_version` the runtime
    library's."""

    name: str
    compute_capability: str
    sm_count: int
    memory_bytes: int
    driver_version: str
    cuda_version: str
    uuid: str


def probe() -> Gpu:
    """What GPU there is, without touching it. Raises EngineError with exactly what is missing."""
    if not IS_INSTALLED:
        raise EngineError(
            "package cuda-python is not installed, and without it no GPU can be used",
            fix=f"pip install 'tickrt[tensorrt]'  (or 'tickrt[cuda]'); {WITHOUT}",
        )
    driver = _version(check(cudart.cudaDriverGetVersion(), "asking for the driver's version"))
    runtime = _version(check(cudart.cudaRuntimeGetVersion(), "asking for CUDA's version"))
    _check_devices(driver, runtime)
    properties = check(cudart.cudaGetDeviceProperties(0), "asking for the GPU's properties")
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
    look = f"nvidia-smi must list the GPU (in a container: start it with --gpus all); {WITHOUT}"
    if driver == "0.0":
        raise EngineError("there is no NVIDIA driver on this machine", fix=look)
    code, count = cudart.cudaGetDeviceCount()
    if code.name == "cudaErrorInsufficientDriver":
        _clear_error()
        what = f"the NVIDIA driver knows CUDA {driver} at most, and cuda-python here is made for {runtime}"
        raise EngineError(what, fix=f"install a driver that knows CUDA {runtime.split('.')[0]}; {WITHOUT}")
    if code.name == "cudaErrorNoDevice" or count == 0:
        _clear_error()
        raise EngineError("there is a driver, but no GPU is visible", fix=f"check CUDA_VISIBLE_DEVICES; {look}")
    check((code, count), "counting the GPUs")


def _version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def check(status: tuple[Any, ...], what: str) -> Any:
    """The value of a CUDA call that gave `status` while doing `what`. Raises EngineError or one of its children."""
    code, *values = status
    if code:
        raise _failure(code, what)
    return values[0] if len(values) == 1 else tuple(values)


def _handle(status: tuple[Any, ...], what: str) -> int:
    """The address of the CUDA object that a call gave. Raises EngineError."""
    return int(get_cuda_native_handle(check(status, what)))


def _failure(code: Any, what: str) -> EngineError:
    """Our error for CUDA's, which is cleared: left as the last error, it would be blamed on the next launch."""
    _clear_error()
    text = cudart.cudaGetErrorString(code)[1].decode()
    message = f"{what}: {code.name} ({text})"
    if code.name == "cudaErrorMemoryAllocation":
        return OutOfMemoryError(message, fix="lower rows, frames or depth in the configuration, or free the GPU")
    return EngineDeadError(message) if code.name in STICKY else EngineError(message)


def _clear_error() -> None:
    cudart.cudaGetLastError()


def open_first() -> None:
    """Make the first GPU ready. Raises EngineError."""
    check(cudart.cudaSetDevice(0), "opening the GPU")


def free_bytes() -> int:
    """Device memory that nobody has taken, other programs included. Raises EngineError."""
    return int(check(cudart.cudaMemGetInfo(), "asking for free memory")[0])


# Memory, as addresses.


def take_device(size_bytes: int) -> int:
    """New device memory. Raises OutOfMemoryError, EngineError."""
    return int(check(cudart.cudaMalloc(size_bytes), f"taking {size_bytes} bytes of the GPU's memory"))


def take_pinned(size_bytes: int) -> int:
    """New pinned host memory. Raises OutOfMemoryError, EngineError."""
    status = cudart.cudaHostAlloc(size_bytes, cudart.cudaHostAllocDefault)
    return int(check(status, f"taking {size_bytes} bytes of pinned memory"))


def free_device(address: int) -> None:
    """Give device memory back; no pending work may use it. Raises EngineError."""
    check(cudart.cudaFree(address), "freeing device memory")


def free_pinned(address: int) -> None:
    """Give pinned memory back; no pending work may use it. Raises EngineError."""
    check(cudart.cudaFreeHost(address), "freeing pinned memory")


def zero(address: int, size_bytes: int, stream: int) -> None:
    """Fill device memory with zeros, in stream order. Raises EngineError."""
    check(cudart.cudaMemsetAsync(address, 0, size_bytes, stream), f"zeroing {size_bytes} bytes")


def copy_to_device(target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy from pinned memory, in stream order. Raises EngineError."""
    kind = cudart.cudaMemcpyKind.cudaMemcpyHostToDevice
    check(cudart.cudaMemcpyAsync(target, source, size_bytes, kind, stream), f"uploading {size_bytes} bytes")


def copy_to_host(target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy from device memory, in stream order; the host waits where the target is not pinned. Raises EngineError."""
    kind = cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost
    check(cudart.cudaMemcpyAsync(target, source, size_bytes, kind, stream), f"downloading {size_bytes} bytes")


# Streams and events, as handles.


def new_stream() -> int:
    """A stream that does not wait for the legacy default stream. Raises EngineError."""
    return _handle(cudart.cudaStreamCreateWithFlags(cudart.cudaStreamNonBlocking), "making a stream")


def close_stream(stream: int) -> None:
    """Release a stream once all its work is done. Raises EngineError."""
    check(cudart.cudaStreamSynchronize(stream), "waiting for a stream before it is closed")
    check(cudart.cudaStreamDestroy(stream), "closing a stream")


def new_event() -> int:
    """An event with a time. Raises EngineError.

    A host that waits for it sleeps instead of spinning. That wakes it some 20 us late and costs nothing, because the
    next tick is on the stream already; meanwhile the core is free for the server's threads.
    """
    return _handle(cudart.cudaEventCreateWithFlags(cudart.cudaEventBlockingSync), "making an event")


def close_event(event: int) -> None:
    """Release an event. Raises EngineError."""
    check(cudart.cudaEventDestroy(event), "closing an event")


def record(event: int, stream: int) -> None:
    """From now on the event stands for all that was launched on the stream so far. Raises EngineError."""
    check(cudart.cudaEventRecord(event, stream), "recording an event")


def make_wait(stream: int, event: int) -> None:
    """What is launched on the stream from now on comes after what the event stands for now. Raises EngineError."""
    status = cudart.cudaStreamWaitEvent(stream, event, cudart.cudaEventWaitDefault)
    check(status, "making a stream wait for an event")


def is_done(event: int) -> bool:
    """Whether the device has passed an event; never blocks. Raises EngineError."""
    code = cudart.cudaEventQuery(event)[0]
    if code == cudart.cudaError_t.cudaErrorNotReady:
        _clear_error()
        return False
    check((code,), "asking whether the GPU's work is done")
    return True


def wait(event: int) -> None:
    """Block the host until the device has passed an event. Raises EngineError."""
    check(cudart.cudaEventSynchronize(event), "waiting for the GPU")


def elapsed_ms(begin: int, end: int) -> float:
    """Milliseconds between two events that are done. Raises EngineError."""
    return float(check(cudart.cudaEventElapsedTime(begin, end), "measuring the time between events"))


# Captured graphs, as handles.


def capture(stream: int, work: Callable[[], None]) -> int:
    """What `work` launches on the stream, as an executable graph; nothing of it runs.

    Raises EngineError, and whatever `work` raises: then nothing is left behind, and the stream is as before.
    """
    mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
    check(cudart.cudaStreamBeginCapture(stream, mode), "beginning a capture")
    try:
        with _no_collection():
            work()
    except BaseException:
        _abandon_capture(stream)
        raise
    graph = _handle(cudart.cudaStreamEndCapture(stream), "ending a capture")
    try:
        return _handle(cudart.cudaGraphInstantiate(graph, 0), "making a captured graph executable")
    finally:
        check(cudart.cudaGraphDestroy(graph), "releasing what was captured")


def _abandon_capture(stream: int) -> None:
    """End a capture that went wrong: what it holds so far is dropped, and so is the error that this gives."""
    _, graph = cudart.cudaStreamEndCapture(stream)
    if graph is not None:
        cudart.cudaGraphDestroy(graph)
    _clear_error()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector away: what it finds may free device memory, which would make the capture invalid."""
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
    """Release an executable graph that is not running. Raises EngineError."""
    check(cudart.cudaGraphExecDestroy(graph), "releasing a captured graph")
