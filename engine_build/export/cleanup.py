"""Cleans up exported ONNX graphs: named dimensions, forms that engines fuse, no paths of the exporting machine."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import onnx

from engine_build.graphs.graph_view import remove_unused
from runtime.engines.graph_bodies import all_nodes, reads, rename_reads

# torch's exporter writes stack traces and graph dumps into every node; profiling needs the module scopes only.
KEPT_METADATA: Final = ("namespace", "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy")
_PATH_PATTERN: Final = re.compile(
    rb"site-packages|stack_trace|/[\w.+-]+/[\w.+-]+\.(?:py|so)\b|/(?:home|root|Users|tmp)/"
)


def tidy(model: onnx.ModelProto, dimensions: dict[str, str]) -> None:
    """Apply all functions below, in place. External weights are not read."""
    name_dimensions(model, dimensions)
    divide_by_roots(model)
    drop_idle_reshapes(model)
    strip_metadata(model)


def name_dimensions(model: onnx.ModelProto, names: dict[str, str]) -> None:
    """Rename free dimensions of the graph's inputs, outputs and inner values."""
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in names:
                dimension.dim_param = names[dimension.dim_param]


def divide_by_roots(model: onnx.ModelProto) -> None:
    """Turn `x * (1 / sqrt(y))` into `x / sqrt(y)`: the form of RMSNorm that engines fuse."""
    reciprocals = {node.output[0]: node for node in model.graph.node if node.op_type == "Reciprocal"}
    used = {name for node in model.graph.node if node.op_type != "Mul" for name in reads(node)}
    for node in model.graph.node:
        if node.op_type == "Mul" and node.input[1] in reciprocals and node.input[1] not in used:
            node.op_type = "Div"
            node.input[1] = reciprocals[node.input[1]].input[0]
    remove_unused(model.graph)


def drop_idle_reshapes(model: onnx.ModelProto) -> None:
    """Remove reshapes to the value's own shape; dynamic dimensions are equal where their names are."""
    graph = model.graph
    shapes = {value.name: _shape(value) for value in (*graph.input, *graph.value_info)}
    outputs = {value.name for value in graph.output}
    idle = [
        node
        for node in graph.node
        if node.op_type == "Reshape"
        and node.output[0] not in outputs
        and shapes.get(node.input[0]) is not None
        and shapes.get(node.input[0]) == shapes.get(node.output[0])
    ]
    renamed: dict[str, str] = {}
    for node in idle:
        renamed[node.output[0]] = renamed.get(node.input[0], node.input[0])
    for node in graph.node:
        rename_reads(node, renamed)
    remove_unused(graph)


def strip_metadata(model: onnx.ModelProto) -> None:
    """Remove the exporter's metadata except the module scopes; file paths are part of it."""
    graph = model.graph
    holders: tuple[Iterable[Any], ...] = (
        graph.input,
        graph.output,
        graph.value_info,
        graph.initializer,
        [graph, model],
    )
    for values in holders:
        for value in values:
            del value.metadata_props[:]
    for node in all_nodes(graph):
        kept = [(entry.key, entry.value) for entry in node.metadata_props if entry.key in KEPT_METADATA]
        del node.metadata_props[:]
        for key, value in kept:
            node.metadata_props.add(key=key, value=value)
        node.doc_string = ""
    graph.doc_string = model.doc_string = ""


def paths_in(file: Path) -> list[bytes]:
    """Byte strings in a file that look like paths of the machine that wrote it."""
    return _PATH_PATTERN.findall(file.read_bytes())


def _shape(value: onnx.ValueInfoProto) -> tuple[int | str, ...] | None:
    """None where a dimension is neither a number nor named."""
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    dimensions = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.shape.dim)
    return None if "" in dimensions else dimensions
