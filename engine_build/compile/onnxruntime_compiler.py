"""Compiles graphs with ONNX Runtime, for targets cpu and cuda."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, shape_inference

from engine_build.config import INLINE_LIMIT_BYTES, BuildConfig
from engine_build.graphs.cpu_graph import cpu_graph, with_slot_sums
from engine_build.graphs.graph_file import Graph, derived_graph
from engine_build.graphs.reference_session import (
    exact_options,
    find_data,
    model_of,
    onnxruntime,
    onnxruntime_errors,
    session,
)
from runtime.base.errors import BuildError, EngineError
from runtime.engines.graph_bodies import all_nodes, reads
from runtime.engines.onnxruntime_cuda import (
    CUDA_PROVIDER,
    DATA_FOLDER_ENTRY,
    check_on_device,
    kernels_missing,
    open_session,
)

DATA_MIN_BYTES = 1024
CUDA_OPSET = 18
FIX_KERNELS = 'optimization = "basic" in [build], precision = "fp16" or "fp32", or build with --target tensorrt'


def compile_onnxruntime(graph: Graph, engine: Path, options: BuildConfig, *, is_step: bool = False) -> None:
    """ONNX Runtime's offline optimization for the CPU, above "basic" of the graph as cpu_graph writes it.

    is_step: of a step graph, whose sums are then those of with_slot_sums. Raises BuildError.
    """
    rewritten = with_slot_sums if is_step else cpu_graph
    source = graph if options.optimization == "basic" else derived_graph(rewritten(model_of(graph)), graph)
    session(source.source, writing_options(source, engine, options), graph.label)


def compile_cuda(graph: Graph, engine: Path, options: BuildConfig, *, tf32: bool) -> None:
    """ONNX Runtime's offline optimization for its CUDA provider, at most "extended": "all" adds layouts of a CPU.

    Raises BuildError, also where an operator has no CUDA kernel, so that data would be copied through the host.
    """
    level = "extended" if options.optimization == "all" else options.optimization
    chosen = writing_options(graph, engine, options.model_copy(update={"optimization": level}))
    if isinstance(graph.source, Path):
        chosen.add_session_config_entry(DATA_FOLDER_ENTRY, str(graph.source.parent.resolve()))
    model = at_cuda_opset(model_of(graph))
    opened = _cuda_session(model.SerializeToString(), chosen, graph.label, tf32)
    _check_on_gpu(graph.label, opened, onnx.load(engine, load_external_data=False))


def at_cuda_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph at opset CUDA_OPSET, where it uses nothing newer; else unchanged.

    The CUDA provider registers most kernels for one version of an operator: Pad, Equal, ReduceMin and ReduceMax of
    opsets 19 and 20, which differ only in the types they accept, run on the host (onnxruntime issue 26393).
    """
    lower = deepcopy(model)
    for item in lower.opset_import:
        if item.domain in ("", "ai.onnx"):
            item.version = min(item.version, CUDA_OPSET)
    try:
        shape_inference.infer_shapes(lower, check_type=True, strict_mode=True)
    except shape_inference.InferenceError:
        return model
    return lower if all(_is_known(node) for node in all_nodes(lower.graph)) else model


def _is_known(node: onnx.NodeProto) -> bool:
    """Whether CUDA_OPSET has an operator, with all of the node's attributes."""
    if node.domain not in ("", "ai.onnx"):
        return True
    if not defs.has(node.op_type, CUDA_OPSET):
        return False
    return {item.name for item in node.attribute} <= set(defs.get_schema(node.op_type, CUDA_OPSET).attributes)


def open_cuda(engine: Path, options: BuildConfig, *, tf32: bool) -> Any:
    """A session over an engine of target cuda, on its own stream. Raises BuildError."""
    return _cuda_session(engine, exact_options(options.threads), str(engine), tf32)


def writing_options(graph: Graph, engine: Path, options: BuildConfig) -> Any:
    """Session options that optimize a graph and write the result to `engine`.

    Large weights go into a file beside the engine; so do weights of a graph with external data, because ONNX Runtime
    would otherwise write a graph that refers to the original file.
    """
    ort = onnxruntime()
    levels = {
        "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    }
    chosen = exact_options(options.threads)
    find_data(chosen, graph)
    chosen.graph_optimization_level = levels[options.optimization]
    chosen.optimized_model_filepath = str(engine)
    if graph.has_data_files or graph.weights_bytes > INLINE_LIMIT_BYTES:
        prefix = "session.optimized_model_external_initializers"
        chosen.add_session_config_entry(f"{prefix}_file_name", f"{engine.name}.data")
        chosen.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(DATA_MIN_BYTES))
    return chosen


def _cuda_session(source: Path | bytes, chosen: Any, label: str, tf32: bool) -> Any:
    """A session of the CUDA provider on its own stream. Raises BuildError."""
    name = source if isinstance(source, bytes) else str(source)
    try:
        return open_session(onnxruntime(), name, chosen, stream=None, tf32=tf32)
    except EngineError as error:
        raise BuildError(error.what, fix=error.fix) from error
    except onnxruntime_errors() as error:
        raise BuildError(f"ONNX Runtime does not load {label}: {error}", fix=FIX_KERNELS) from error


def _check_on_gpu(label: str, opened: Any, compiled: onnx.ModelProto) -> None:
    """Raises BuildError where a node on the host reads data; nodes that compute sizes run there by design."""
    data = _data_values(compiled.graph)
    reading = {node.name for node in compiled.graph.node if data.intersection(reads(node)) and node.op_type != "Shape"}
    parts = opened.get_provider_graph_assignment_info()
    try:
        check_on_device(label, parts, FIX_KERNELS)
    except EngineError as error:
        raise BuildError(error.what, fix=error.fix) from error
    on_host = [node for part in parts if part.ep_name != CUDA_PROVIDER for node in part.get_nodes()]
    if found := [f"{node.name} ({node.op_type})" for node in on_host if node.name in reading]:
        raise BuildError(f"{label}: {kernels_missing(found)}", fix=FIX_KERNELS)


def _data_values(graph: onnx.GraphProto) -> set[str]:
    """The values that depend on the inputs' content, not only on their sizes."""
    found = {value.name for value in graph.input}
    for node in graph.node:
        if node.op_type not in ("Shape", "Size") and found.intersection(reads(node)):
            found.update(node.output)
    return found
