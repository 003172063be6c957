"""Whether TensorRT-RTX runs an engine on this machine, read from the engine's header before it is deserialized."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runtime.base.errors import EngineError, EngineMismatchError, OutOfMemoryError

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
