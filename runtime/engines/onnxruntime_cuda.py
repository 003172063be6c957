"""ONNX Runtime's CUDA provider: options, opening a session, errors. The caller passes the module onnxruntime.

Option names as in ONNX Runtime 1.31 (cuda_execution_provider_info.cc, onnxruntime_*_config_keys.h).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from runtime.errors import CaptureError, EngineDeadError, EngineError, OutOfMemoryError

CUDA_PROVIDER = "CUDAExecutionProvider"
CPU_PROVIDER = "CPUExecutionProvider"

# Initializers lie outside the arena: what the arena holds then is only what a run needs. Which node runs where is
# recorded, so that it can be refused when a tick's data would go through the host.
SESSION_ENTRIES: Mapping[str, str] = {
    "session.use_device_allocator_for_initializers": "1",
    "session.record_ep_graph_assignment_info": "1",
}
# Run() returns when everything is launched: whoever wants the result waits for an event of the stream.
ASYNCHRONOUS: Mapping[str, str] = {"disable_synchronize_execution_providers": "1"}
# Run() becomes part of the graph that the caller captures. Releases that do not know this entry ignore it.
RECORDING: Mapping[str, str] = {**ASYNCHRONOUS, "external_device_graph_capture": "1"}
NOTHING_TO_RECORD = "no caller-initiated device graph capture is active"

# Operators that compute sizes and indices. ONNX Runtime runs them on the host on purpose, when all that they read are
# sizes; their results are arguments of launches, not data.
SIZE_OPERATORS = frozenset({
    "Add", "Cast", "Concat", "ConstantOfShape", "Div", "Equal", "Expand", "Floor", "Gather", "Identity", "Max", "Min",
    "Mod", "Mul", "Neg", "Range", "ReduceProd", "Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub",
    "Unsqueeze", "Where",
})  # fmt: skip

# After one of these the CUDA context is gone, and with it everything on the device.
DEAD_CODES = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 805, 999})
MEMORY_CODE = 2
CAPTURE_CODES = frozenset(range(900, 909))
_CUDA_CODE = re.compile(r"CUDA failure (\d+)")
_NO_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer|Available memory of \d+ is smaller than|out of memory"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED"
)
_MEMORY_FIX = "lower depth in [runtime], or rows or frames in the shape ranges; or close what else uses the GPU"


class AssignedNode(Protocol):
    """A node as a session tells of it."""

    name: str
    op_type: str


class AssignedNodes(Protocol):
    """Nodes that one provider runs, as a session tells of them."""

    ep_name: str

    def get_nodes(self) -> Iterable[AssignedNode]:
        """The nodes."""


def provider_options(stream: int | None, *, tf32: bool) -> dict[str, str]:
    """Options of a session whose work goes on `stream` (a CUstream); None: on a stream of its own.

    The convolution algorithm comes from cuDNN's heuristics: trying all of them takes memory and waits, at the first run
    of every shape. The arena grows by what is asked, not to the next power of two.
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
    """Raises EngineError where ONNX Runtime (the module `ort`) is installed without its CUDA provider."""
    if CUDA_PROVIDER not in ort.get_available_providers():
        raise EngineError(
            f"target cuda: ONNX Runtime {ort.__version__} is installed without its CUDA provider",
            fix="pip uninstall onnxruntime; pip install 'tickrt[cuda]'",
        )


def open_session(ort: Any, source: str | bytes, options: Any, *, stream: int | None, tf32: bool) -> Any:
    """A session of the CUDA provider over a file or a graph's bytes, made by the module `ort`.

    `stream`: see provider_options. Raises EngineError where the provider is missing or does not start; what ONNX
    Runtime itself raises is not translated.
    """
    need_provider(ort)
    ort.preload_dlls()
    # A plan of memory per shape is made at the second run of a shape, which then takes memory: too late for a capture.
    options.enable_mem_pattern = False
    for key, value in SESSION_ENTRIES.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(source, options, providers=[(CUDA_PROVIDER, provider_options(stream, tf32=tf32))])
    # Otherwise an execute that fails on the GPU is done again on the CPU, without a message.
    session.disable_fallback()
    if CUDA_PROVIDER not in session.get_providers():
        raise EngineError(
            "ONNX Runtime's CUDA provider does not start: its CUDA or cuDNN libraries are missing, or do not fit",
            fix="pip install --upgrade 'onnxruntime-gpu[cuda,cudnn]'",
        )
    return session


def nodes_on_host(assigned: Iterable[AssignedNodes]) -> list[str]:
    """Nodes of a session on the GPU whose data would travel through the host, as "name (operator)"."""
    return [
        f"{node.name} ({node.op_type})"
        for part in assigned
        if part.ep_name != CUDA_PROVIDER
        for node in part.get_nodes()
        if node.op_type not in SIZE_OPERATORS
    ]


def check_on_device(name: str, assigned: Iterable[AssignedNodes], fix: str) -> None:
    """Raises EngineError where some of an engine's nodes have no CUDA kernel."""
    if found := nodes_on_host(assigned):
        raise EngineError(f"{name}: {kernels_missing(found)}", fix=fix)


def kernels_missing(nodes: Sequence[str]) -> str:
    """What is wrong with nodes on the host, and which they are."""
    return (
        f"{len(nodes)} nodes have no CUDA kernel in this ONNX Runtime, their data would travel through the host in "
        f"every tick: {', '.join(nodes[:5])}{', ...' if len(nodes) > 5 else ''}"
    )


def failure(name: str, error: Exception) -> EngineError:
    """ONNX Runtime's error as one of ours: out of memory, in a capture, the context gone, or just this execute."""
    text = str(error)
    code = next(_codes(text), 0)
    if code in DEAD_CODES:
        return EngineDeadError(f"{name}: the GPU cannot be used any more: {text}", fix="restart the process")
    if code == MEMORY_CODE or _NO_MEMORY.search(text):
        return OutOfMemoryError(f"{name}: {text}", fix=_MEMORY_FIX)
    if code in CAPTURE_CODES:
        return CaptureError(f"{name} cannot be part of a captured graph: {text}")
    return EngineError(f"{name} failed to execute: {text}")


def _codes(text: str) -> Iterator[int]:
    return (int(code) for code in _CUDA_CODE.findall(text))
