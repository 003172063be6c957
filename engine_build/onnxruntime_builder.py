"""Graphs to engines with ONNX Runtime, and its sessions that run graphs as they are: the reference of every check."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from engine_build.config import BuildConfig
from engine_build.graph_file import Graph
from runtime.engines.cuda_provider import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    SESSION_ENTRIES,
    check_on_device,
    provider_options,
)
from runtime.errors import BuildError, EngineError

DATA_MIN_BYTES = 1024
COPIES = ("MemcpyFromHost", "MemcpyToHost")
FIX_KERNELS = 'optimization = "basic" in [build], precision = "fp16" or "fp32", or build with --target tensorrt'


def onnxruntime() -> Any:
    """The module. Raises BuildError where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise BuildError("ONNX Runtime is not installed; it builds and checks engines", fix="pip install 'tickrt[cpu]'")
    import onnxruntime

    return onnxruntime


def compile_onnxruntime(graph: Graph, engine: Path, options: BuildConfig) -> None:
    """ONNX Runtime's offline optimization for the CPU. Raises BuildError."""
    session(graph.source, writing_options(graph, engine, options), graph.label)


def open_onnxruntime(engine: Path, options: BuildConfig) -> Any:
    """A session over a file that was compiled for the CPU. Raises BuildError."""
    return session(engine, exact_options(options.threads), str(engine))


def compile_cuda(graph: Graph, engine: Path, options: BuildConfig) -> None:
    """ONNX Runtime's offline optimization for its CUDA provider, at most "extended": "all" adds layouts of a CPU.

    Raises BuildError, also where a node of the result has no CUDA kernel.
    """
    level = "extended" if options.optimization == "all" else options.optimization
    chosen = writing_options(graph, engine, options.model_copy(update={"optimization": level}))
    _cuda_session(graph.source, chosen, options, graph.label)
    nodes = onnx.load(engine, load_external_data=False).graph.node
    if copies := [node.name for node in nodes if node.op_type in COPIES]:
        raise BuildError(
            f"{graph.label}: {len(copies)} values would be copied between GPU and host at every execute: "
            f"{', '.join(copies[:5])}",
            fix=FIX_KERNELS,
        )


def open_cuda(engine: Path, options: BuildConfig) -> Any:
    """A session over a file that was compiled for the CUDA provider, on a stream of its own. Raises BuildError."""
    return _cuda_session(engine, exact_options(options.threads), options, str(engine))


def writing_options(graph: Graph, engine: Path, options: BuildConfig) -> Any:
    """Session options that optimize a graph and write the result to `engine`.

    Large weights go into a file beside the engine; so do weights that come from such a file, because ONNX Runtime would
    otherwise write a graph that still points to the original.
    """
    ort = onnxruntime()
    levels = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    chosen = exact_options(options.threads)
    chosen.graph_optimization_level = levels[options.optimization]
    chosen.optimized_model_filepath = str(engine)
    if graph.has_data_files or graph.weights_bytes > options.inline_limit_bytes:
        prefix = "session.optimized_model_external_initializers"
        chosen.add_session_config_entry(f"{prefix}_file_name", f"{engine.name}.data")
        chosen.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(DATA_MIN_BYTES))
    return chosen


def graph_session(graph: Graph, options: BuildConfig) -> Any:
    """A session that runs the graph on the CPU as it is written. Raises BuildError."""
    return session(graph.source, exact_options(options.threads), graph.label)


def exact_options(threads: int) -> Any:
    """Options that run a graph exactly as it is written."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def session(source: Path | bytes, options: Any, label: str, providers: Sequence[Any] = (CPU_PROVIDER,)) -> Any:
    """A session over a file or a graph's bytes. Raises BuildError."""
    name = source if isinstance(source, bytes) else str(source)
    try:
        return onnxruntime().InferenceSession(name, options, providers=list(providers))
    except onnxruntime_errors() as error:
        fix = "polygraphy inspect model FILE" if CPU_PROVIDER in providers else FIX_KERNELS
        raise BuildError(f"ONNX Runtime does not take {label}: {error}", fix=fix) from error


def _cuda_session(source: Path | bytes, chosen: Any, options: BuildConfig, label: str) -> Any:
    """A session of the CUDA provider, all of whose work is on the GPU. Raises BuildError."""
    need_cuda_provider()
    onnxruntime().preload_dlls()
    for key, value in SESSION_ENTRIES.items():
        chosen.add_session_config_entry(key, value)
    opened = session(source, chosen, label, [(CUDA_PROVIDER, provider_options(None, tf32=options.tf32))])
    opened.disable_fallback()
    if CUDA_PROVIDER not in opened.get_providers():
        raise BuildError(
            "ONNX Runtime's CUDA provider does not start: its CUDA or cuDNN libraries are missing, or do not fit",
            fix="pip install --upgrade 'onnxruntime-gpu[cuda,cudnn]'",
        )
    try:
        check_on_device(label, opened.get_provider_graph_assignment_info(), FIX_KERNELS)
    except EngineError as error:
        raise BuildError(error.what, fix=error.fix) from error
    return opened


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises; its errors have no common base."""
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    module = onnxruntime().capi.onnxruntime_pybind11_state
    return tuple(getattr(module, name) for name in (*names, "RuntimeException"))


def need_cuda_provider() -> None:
    """Raises BuildError where ONNX Runtime comes without its CUDA provider."""
    if CUDA_PROVIDER not in onnxruntime().get_available_providers():
        raise BuildError(
            "target cuda needs ONNX Runtime with its CUDA provider, this environment has it without",
            fix="pip uninstall onnxruntime; pip install 'tickrt[cuda]'; or build with --target cpu",
        )
