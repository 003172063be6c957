"""Graphs to engines with ONNX Runtime, and its sessions that run graphs as they are: the reference of every check."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from engine_build.config import BuildConfig
from engine_build.graph_file import Graph
from runtime.errors import BuildError

CPU_PROVIDER = "CPUExecutionProvider"
DATA_MIN_BYTES = 1024


def onnxruntime() -> Any:
    """The module. Raises BuildError where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise BuildError("ONNX Runtime is not installed; it builds and checks engines", fix="pip install 'tickrt[cpu]'")
    import onnxruntime

    return onnxruntime


def compile_onnxruntime(graph: Graph, engine: Path, options: BuildConfig, provider: str = CPU_PROVIDER) -> None:
    """ONNX Runtime's offline optimization. Raises BuildError.

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
    session(graph.source, chosen, graph.label, provider)


def open_onnxruntime(engine: Path, options: BuildConfig, provider: str = CPU_PROVIDER) -> Any:
    """A session over a compiled file. Raises BuildError."""
    return session(engine, exact_options(options.threads), str(engine), provider)


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


def session(source: Path | bytes, options: Any, label: str, provider: str = CPU_PROVIDER) -> Any:
    """A session over a file or a graph's bytes. Raises BuildError."""
    name = source if isinstance(source, bytes) else str(source)
    try:
        return onnxruntime().InferenceSession(name, options, providers=[provider])
    except onnxruntime_errors() as error:
        raise BuildError(f"ONNX Runtime does not take {label}: {error}", fix="polygraphy inspect model FILE") from error


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises; its errors have no common base."""
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    module = onnxruntime().capi.onnxruntime_pybind11_state
    return tuple(getattr(module, name) for name in (*names, "RuntimeException"))


def need_cuda_provider() -> None:
    """Raises BuildError where ONNX Runtime comes without its CUDA provider."""
    if "CUDAExecutionProvider" not in onnxruntime().get_available_providers():
        raise BuildError(
            "target cuda needs ONNX Runtime with its CUDA provider, this environment has it without",
            fix="pip uninstall onnxruntime; pip install 'tickrt[cuda]'; or build with --target cpu",
        )
