"""ONNX Runtime sessions on graphs: the CPU reference that engines are compared with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import onnx

from engine_build.config import BuildConfig
from engine_build.graphs.graph_file import Graph
from runtime.engines.onnxruntime_cuda import CPU_PROVIDER, DATA_FOLDER_ENTRY
from runtime.errors import BuildError

PREPACKING_ENTRY = "session.disable_prepacking"
OPSET_FIX = 'export it for opset 20, as helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]) does'


def onnxruntime() -> Any:
    """The module. Raises BuildError where it is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise BuildError("ONNX Runtime is not installed; builds need it", fix="pip install 'tickrt[cpu]'")
    import onnxruntime

    return onnxruntime


def open_onnxruntime(engine: Path, options: BuildConfig) -> Any:
    """A session over an engine of target cpu. Raises BuildError."""
    return session(engine, exact_options(options.threads), str(engine))


def graph_session(graph: Graph, options: BuildConfig) -> Any:
    """A session that runs the graph on the CPU as it is written. Raises BuildError."""
    chosen = exact_options(options.threads)
    # It runs a few times: a second copy of all weights, in the kernels' layout, is not worth it.
    chosen.add_session_config_entry(PREPACKING_ENTRY, "1")
    find_data(chosen, graph)
    return session(graph.source, chosen, graph.label)


def find_data(options: Any, graph: Graph) -> None:
    """Let a session that is given a graph's bytes find its external data."""
    if graph.data_folder is not None:
        options.add_session_config_entry(DATA_FOLDER_ENTRY, str(graph.data_folder.resolve()))


def model_of(graph: Graph) -> onnx.ModelProto:
    """A graph as a model, without its external data."""
    if isinstance(graph.source, bytes):
        return onnx.load_model_from_string(graph.source)
    return onnx.load(graph.source, load_external_data=False)


def exact_options(threads: int) -> Any:
    """Options that run a graph exactly as it is written."""
    ort = onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return options


def session(source: Path | bytes, options: Any, label: str) -> Any:
    """A session of the CPU provider over a file or a graph's bytes. Raises BuildError."""
    name = source if isinstance(source, bytes) else str(source)
    try:
        return onnxruntime().InferenceSession(name, options, providers=[CPU_PROVIDER])
    except onnxruntime_errors() as error:
        fix = OPSET_FIX if "opset" in str(error) else "export it again; `polygraphy inspect model FILE` shows a graph"
        raise BuildError(f"ONNX Runtime does not load {label}: {error}", fix=fix) from error


def onnxruntime_errors() -> tuple[type[Exception], ...]:
    """What ONNX Runtime raises; its errors have no common base."""
    names = ("Fail", "InvalidArgument", "InvalidGraph", "InvalidProtobuf", "NoSuchFile", "NotImplemented")
    module = onnxruntime().capi.onnxruntime_pybind11_state
    return tuple(getattr(module, name) for name in (*names, "RuntimeException"))
