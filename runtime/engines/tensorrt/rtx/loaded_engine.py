"""Loaded engines of TensorRT-RTX, and contexts whose kernels are compiled on this machine.

Fallback kernels fit every shape of an engine and are there with a context; those of one shape are faster, and compiled
when it is known. Objects of TensorRT-RTX come as Any: to modules that both libraries use they are TensorRT's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.base.errors import EngineError, EngineMismatchError, OutOfMemoryError
from runtime.devices.device import Stream, Tensor
from runtime.engines.manifest import Manifest
from runtime.engines.tensorrt.binding import NAMES
from runtime.engines.tensorrt.engine_file import check_engine_version, read_engine_header
from runtime.engines.tensorrt.errors import check_trt
from runtime.engines.tensorrt.library import Context, LoadedEngine, library, library_version
from runtime.engines.tensorrt.rtx.kernel_cache import KernelCache

if TYPE_CHECKING:
    import tensorrt_rtx as trt
else:
    from runtime.engines.tensorrt.binding import trt

# What TensorRT-RTX says against an engine -> what that is, the fix, and the error. {build}: the build command.
REFUSALS: dict[str, tuple[str, str, type[EngineError]]] = {
    "MALFORMED_ENGINE": ("is damaged", "{build} --force", EngineMismatchError),
    "VERSION_MISMATCH": ("was built by another release of TensorRT-RTX", "{build}", EngineMismatchError),
    "UNSUPPORTED_CC": (
        "was not built for this GPU",
        "use an RTX card from Ampere on; where [build] has capabilities, add this card's, then {build}",
        EngineMismatchError,
    ),
    "OLD_CUDA_DRIVER": (
        "needs a newer NVIDIA driver",
        "update the driver: https://www.nvidia.com/drivers",
        EngineError,
    ),
    "OLD_CUDA_RUNTIME": ("needs a newer CUDA runtime", "pip install --upgrade 'tickrt[tensorrt-rtx]'", EngineError),
    "INSUFFICIENT_GPU_MEMORY": (
        "needs more memory than this GPU has",
        "close what else uses the GPU, or lower max of rows and frames in [[shapes]], then {build}",
        OutOfMemoryError,
    ),
    "CUDA_ERROR": ("cannot be checked: CUDA reports an error", "nvidia-smi must list the GPU", EngineError),
}

log = logging.getLogger(__name__)


def check_validity(runtime: trt.Runtime, head: bytes, label: str, logged: Callable[[], str], fix: str) -> None:
    """Check an engine's first bytes. `logged` gives what TensorRT-RTX logged, `fix` is the build command.

    Raises EngineMismatchError, OutOfMemoryError, EngineError where it does not run here.
    """
    validity, bits = runtime.get_engine_validity(head)
    if validity == trt.EngineValidity.SUBOPTIMAL:
        log.warning("%s runs here, but slower than one that is built for this GPU", label)
    elif validity != trt.EngineValidity.VALID:
        known = trt.EngineInvalidityDiagnostics.__members__
        error = refusal([name for name, bit in known.items() if bits & int(bit)], label, fix)
        raise type(error)(": ".join(filter(None, (error.what, logged()))), fix=error.fix)


def refusal(diagnostics: Sequence[str], label: str, fix: str) -> EngineError:
    """The error for what TensorRT-RTX says against an engine; the causes that are to be mended first come first."""
    found = [name for name in REFUSALS if name in diagnostics]
    if not found:
        return EngineError(f"{label} does not run here", fix="nvidia-smi must list the GPU")
    what, how, kind = REFUSALS[found[0]]
    words = f"{label} {what}" + "".join(f"; it also {REFUSALS[name][0]}" for name in found[1:])
    return kind(words, fix=how.format(build=fix or "tickrt-build CONFIG --target tensorrt-rtx"))


if TYPE_CHECKING:
    import tensorrt_rtx as trt
else:
    from runtime.engines.tensorrt.binding import trt

# Which kernels a context executes. FALLBACK: never those of one shape, so no execute compiles. SPECIALIZED: the first
# execute of a shape waits until they are compiled. LAZY: fallback kernels, until a thread of the library has compiled
# them; it does not say when, so a graph would keep slow kernels: such a context is not captured.
FALLBACK, SPECIALIZED, LAZY = "NONE", "EAGER", "LAZY"


class RtxContext(Context):
    """A context of TensorRT-RTX. `keep`: what the library uses as long as the context lives."""

    keep: object = None

    def use_memory(self, memory: Tensor) -> None:
        """Execute on other activation memory from now on. Nothing may be pending."""
        self._memory = memory
        if self._is_on_range:
            self._context.set_device_memory(memory.address, memory.size_bytes)

    def is_capturable(self, stream: Stream) -> bool:
        """Whether executes, as they are set now, can be captured from this stream."""
        context: Any = self._context
        mine: trt.IExecutionContext = context
        return bool(mine.is_stream_capturable(stream.handle))


class RtxLoadedEngine(LoadedEngine):
    """A deserialized plan of TensorRT-RTX. See LoadedEngine; what the library says against it is known before."""

    def __init__(self, manifest: Manifest, folder: Path, fix: str, cache: KernelCache) -> None:
        self._cache = cache
        path, trt_library = folder / manifest.engine_file, library()
        header = read_engine_header(path, fix=fix)
        check_engine_version(header, NAMES[manifest.target], library_version(), str(path), fix=fix)
        runtime: Any = trt_library.runtime
        mine: trt.Runtime = runtime
        with path.open("rb") as file:
            check_validity(mine, file.read(mine.engine_header_size), str(path), trt_library.logger.take, fix)
        super().__init__(manifest, folder, fix)

    def new_context(self, index: int, memory: Tensor, kernels: str = FALLBACK) -> RtxContext:
        """A context for a shape range, on the caller's activation memory; may compile. Raises EngineError."""
        untyped: Any = self._engine
        engine: trt.ICudaEngine = untyped
        settings = engine.create_runtime_config()
        settings.set_execution_context_allocation_strategy(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        strategy = trt.DynamicShapesKernelSpecializationStrategy.__members__[kernels]
        settings.dynamic_shapes_kernel_specialization_strategy = strategy
        # Whole ticks are captured, not single executes.
        settings.cuda_graph_strategy = trt.CudaGraphStrategy.DISABLED
        self._cache.attach(settings)
        made: Any = engine.create_execution_context(runtime_config=settings)
        check_trt(made, f"{self.name}: no execution context for shape range {index}", library().logger.take)
        context = RtxContext(made, untyped, self.name, index, memory)
        context.keep = (settings, self._cache)
        return context
