"""ONNX Runtime's CUDA provider: options, opening a session, errors. The caller passes the module onnxruntime.

Option names as in ONNX Runtime 1.31 (cuda_execution_provider_info.cc, onnxruntime_*_config_keys.h).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from runtime.base.errors import ENDINGS, CaptureError, EngineDeadError, EngineError, OutOfMemoryError

T = TypeVar("T")

CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"

# Initializers are allocated outside the arena, which then holds only what a run needs. The assignment of nodes to
# providers is recorded for `check_on_device`.
SESSION_ENTRIES: Mapping[str, str] = {
    "session.use_device_allocator_for_initializers": "1",
    "session.record_ep_graph_assignment_info": "1",
}
# Where a graph that is given as bytes has its data files.
DATA_FOLDER_ENTRY = "session.model_external_initializers_file_folder_path"
# Run() returns when its work is launched; the caller waits for an event of the stream.
ASYNCHRONOUS: Mapping[str, str] = {"disable_synchronize_execution_providers": "1"}
# Run() becomes part of the graph that the caller captures. Releases that do not know this entry ignore it.
RECORDING: Mapping[str, str] = {**ASYNCHRONOUS, "external_device_graph_capture": "1"}
NOTHING_TO_RECORD = "no caller-initiated device graph capture is active"

# Operators that compute sizes and indices. ONNX Runtime runs them on the host on purpose where they only read sizes:
# their results are arguments of launches, not data.
SIZE_OPERATORS = frozenset({
    "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather", "Identity", "Max", "Min",
    "Mod", "Mul", "Neg", "Range", "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub",
    "Unsqueeze", "Where",
})  # fmt: skip

# CUDA errors after which the context is lost, and with it everything on the device.
DEAD_CODES = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 805, 999})
MEMORY_CODE = 2
CAPTURE_CODES = frozenset(range(900, 909))
_CUDA_CODE = re.compile(r"CUDA failure (\d+)")
_NO_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer|Available memory of \d+ is smaller than|out of memory"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|bad_alloc|bad allocation"
)
_SHAPE_FIX = "ask for another length, or leave out in [[shapes]] what the graph cannot do; other shapes go on"


def provider_options(stream: int | None, *, tf32: bool) -> dict[str, str]:
    """Options of a session that runs on `stream` (a CUstream); None: on its own stream.

    cuDNN's heuristics choose the convolution algorithm: measuring all of them allocates memory and synchronizes at the
    first run of every shape. The arena grows by the requested size, not to the next power of two.
    """
    options = {
        "device_id": "0",
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
        "do_copy_in_default_stream": "1",
        "use_tf32": str(int(tf32)),
    }
    return options if stream is None else {**options, "user_compute_stream": str(stream)}


def need_provider(ort: Any) -> None:
    """Raise EngineError where ONNX Runtime (the module `ort`) is installed without its CUDA provider."""
    if CUDA_PROVIDER not in ort.get_available_providers():
        raise EngineError(
            f"target cuda: ONNX Runtime {ort.__version__} is installed without its CUDA provider",
            fix="pip uninstall onnxruntime; pip install 'tickrt[cuda]'",
        )


def open_session(ort: Any, source: str | bytes, options: Any, *, stream: int | None, tf32: bool) -> Any:
    """A session of the CUDA provider over a file or a graph's bytes, made by the module `ort`.

    `stream`: see provider_options. Raises EngineError where the provider is missing or does not start (OutOfMemoryError
    for want of memory); ONNX Runtime's errors of the graph are not translated.
    """
    need_provider(ort)
    ort.preload_dlls()
    # A memory pattern is made at the second run of a shape, and allocates then: that run may be captured.
    options.enable_mem_pattern = False
    for key, value in SESSION_ENTRIES.items():
        options.add_session_config_entry(key, value)
    providers = [(CUDA_PROVIDER, provider_options(stream, tf32=tf32))]
    try:
        # With the fallback, what fails on the GPU would be repeated on the CPU.
        session = ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
    except RuntimeError as error:
        # ONNX Runtime's errors of a graph are of other classes: this one is of the provider, which is made first.
        translated = translate_error("ONNX Runtime's CUDA provider", error)
        raise (_not_started(str(error)) if type(translated) is EngineError else translated) from error
    if CUDA_PROVIDER not in session.get_providers():
        raise _not_started("its CUDA or cuDNN libraries are missing, or do not fit")
    return session


def _not_started(reason: str) -> EngineError:
    fix = "pip install --upgrade 'onnxruntime-gpu[cuda,cudnn]'"
    return EngineError(f"ONNX Runtime's CUDA provider does not start: {reason}", fix=fix)


def nodes_on_host(assigned: Iterable[Any]) -> list[str]:
    """Nodes whose data would be copied through the host, as "name (operator)".

    `assigned`: a session's get_provider_graph_assignment_info(), the nodes of each provider.
    """
    return [
        f"{node.name} ({node.op_type})"
        for part in assigned
        if part.ep_name != CUDA_PROVIDER
        for node in part.get_nodes()
        if node.op_type not in SIZE_OPERATORS
    ]


def check_on_device(name: str, assigned: Iterable[Any], fix: str) -> None:
    """Raise EngineError where nodes of an engine have no CUDA kernel; `assigned`: see nodes_on_host."""
    if found := nodes_on_host(assigned):
        raise EngineError(f"{name}: {kernels_missing(found)}", fix=fix)


def kernels_missing(nodes: Sequence[str]) -> str:
    """The error text for nodes without a CUDA kernel."""
    return (
        f"{len(nodes)} nodes have no CUDA kernel in this ONNX Runtime, their data would be copied through the host in "
        f"every tick: {', '.join(nodes[:5])}{', ...' if len(nodes) > 5 else ''}"
    )


def executing(name: str, call: Callable[..., T], *arguments: Any) -> T:
    """What a call of ONNX Runtime returns; all that it raises is translated.

    Its bindings turn a status into a class of their own in some calls, and into RuntimeError in others, as they do with
    exceptions of C++. Raises EngineError, OutOfMemoryError, CaptureError, EngineDeadError.
    """
    try:
        return call(*arguments)
    except ENDINGS:
        raise
    except BaseException as error:
        raise translate_error(name, error) from error


def translate_error(name: str, error: BaseException) -> EngineError:
    """Our error for an error of ONNX Runtime: lost context, out of memory, failed capture, or failed execute."""
    text = str(error).strip()
    found = _CUDA_CODE.search(text)
    code = int(found[1]) if found else 0
    if code in DEAD_CODES:
        return EngineDeadError(f"{name}: the GPU cannot be used any more: {text}", fix="restart the process")
    if code == MEMORY_CODE or _NO_MEMORY.search(text):
        return OutOfMemoryError(f"{name}: {text}")
    if code in CAPTURE_CODES:
        return CaptureError(f"{name} cannot be part of a captured graph: {text}")
    return EngineError(f"{name} failed to execute: {text}", fix=_SHAPE_FIX)
