"""The work of an engine's layers, by the shapes that ONNX Runtime reports or those inferred from the model's graph."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import onnx
from onnx import TensorProto, helper

from profiling.layers.kinds import node_kind
from profiling.layers.origins import GraphNode, OriginGraph, Origins, graphs_of
from runtime.engines.node_times import NodeTimes
from runtime.engines.value_shapes import PRODUCTS, Shape, product_flops, value_shapes

FLOAT_BYTES = 4.0
# Names of element types in the inspector's JSON -> bytes; a name before its prefixes.
DATATYPES = {
    "BFLOAT16": 2.0, "BF16": 2.0, "FP16": 2.0, "HALF": 2.0, "FP32": 4.0, "FLOAT": 4.0, "INT64": 8.0, "INT32": 4.0,
    "FP8": 1.0, "UINT8": 1.0, "INT8": 1.0, "BOOL": 1.0, "FP4": 0.5, "INT4": 0.5,
}  # fmt: skip
DATATYPE = re.compile("|".join(DATATYPES), re.IGNORECASE)
FLOATS = frozenset({"BFLOAT16", "BF16", "FP16", "HALF", "FP32", "FLOAT", "FP8", "FP4"})
# ONNX Runtime's names of element types, where they differ from ONNX's.
RUNTIME_NAMES = {"bool": "BOOL", "string": "STRING"}
PACKED_BYTES = {TensorProto.INT4: 0.5, TensorProto.UINT4: 0.5, TensorProto.FLOAT4E2M1: 0.5}
Bound = Literal["compute", "memory"]
# Operations counted per input element, by kind, for operators that are not matrix products; a convention.
PER_INPUT: Mapping[str, int] = {"norm": 5, "attention": 5, "reduction": 1}
# Why a layer may be faster than a ceiling.
EXCEEDED = (
    "above 100 %: the ceilings are those of a copy in main memory and of one large matrix product; data that stays in a"
    " cache moves faster, and 8-bit products compute faster"
)
# Operators that move no memory, and operators that read as much as they write.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Shape", "Size", "Identity"})
PICKS = frozenset({"Gather", "Slice", "GatherND", "GatherElements"})
# ONNX Runtime's fused operators -> the operators whose work they do.
FUSED = {"FusedMatMul": "MatMul", "FusedGemm": "Gemm", "FusedConv": "Conv", "TransposeMatMul": "MatMul"}


def layer_works(nodes: Sequence[NodeTimes], origins: Origins, inputs: Mapping[str, Shape]) -> list[LayerWork | None]:
    """LayerWork of each layer, None where it is not known. `inputs`: the shapes that the graph's inputs had."""
    if origins.source is None:
        return [None] * len(nodes)
    found = value_shapes(origins.source.model, inputs)
    values = {name: Value(shape, item_bytes(element)) for name, (shape, element) in found.items()}
    if origins.engine is None:
        return [_fused_work(node, origins.of(node), origins.source, values) for node in nodes]
    reported = _runtime_values(nodes, origins, origins.engine, inputs)
    works = [_kernel_work(origins.engine_node(node), reported[node.path], origins.of(node), values) for node in nodes]
    return [
        work and LayerWork(round(work.flops * n.calls), round(work.bytes * n.calls))
        for work, n in zip(works, nodes, strict=True)
    ]


def item_bytes(element: int) -> float:
    """Bytes per element of an ONNX element type."""
    return PACKED_BYTES.get(element) or float(helper.tensor_dtype_to_np_dtype(element).itemsize)


def _runtime_values(
    nodes: Sequence[NodeTimes], origins: Origins, graph: OriginGraph, inputs: Mapping[str, Shape]
) -> Mapping[tuple[str, ...], Mapping[str, Value]]:
    """By path, the shapes of values that a body sees: its own, then those around it.

    They are those that ONNX Runtime reports for inputs and outputs of nodes, and those of inputs and weights.
    """
    own: dict[tuple[str, ...], dict[str, Value]] = {}
    for body, path in graphs_of(graph.model.graph):
        own.setdefault(path, {}).update((tensor.name, _weight(tensor)) for tensor in body.initializer)
    weights = {name for values in own.values() for name in values}
    for item in graph.model.graph.input:
        if item.name in inputs:
            own[()][item.name] = Value(tuple(inputs[item.name]), item_bytes(item.type.tensor_type.elem_type))
    for layer in nodes:
        if (node := origins.engine_node(layer)) is not None:
            known = own[layer.path]
            known |= {**_reported_values(layer, "input", node.inputs, weights), **known}
            known |= _reported_values(layer, "output", node.outputs)
    return {path: ChainMap(*(own[path[:size]] for size in range(len(path), -1, -1))) for path in own}


def _reported_values(
    layer: NodeTimes, side: str, names: Sequence[str], weights: Collection[str] = ()
) -> dict[str, Value]:
    """Values by name, where ONNX Runtime reports a shape for each, or for each but weights that it has packed."""
    shapes = layer.facts.get(f"{side}_type_shape", ())
    if len(shapes) != len(names):
        names = [name for name in names if name not in weights]
    if len(shapes) != len(names):
        return {}
    return {name: _reported(shape) for name, shape in zip(names, shapes, strict=True)}


def _weight(tensor: onnx.TensorProto) -> Value:
    return Value(tuple(tensor.dims), item_bytes(tensor.data_type))


def _reported(shape: Mapping[str, Sequence[int]]) -> Value:
    """A tensor in a trace event: {"float": [2, 16, 64]}."""
    ((name, sizes),) = shape.items()
    return Value(tuple(sizes), item_bytes(onnx.TensorProto.DataType.Value(RUNTIME_NAMES.get(name, name.upper()))))


def _kernel_work(
    node: GraphNode | None, reported: Mapping[str, Value], parts: Sequence[GraphNode], values: Mapping[str, Value]
) -> LayerWork | None:
    """Bytes of ONNX Runtime's node; operations of the model's nodes in it where it is fused.

    Nodes of the model that are computed by several plain operators, as a convolution by MatMul and Add, are parts of
    each of them.
    """
    work = _node_work(node, reported)
    held = [_node_work(part, values) for part in parts]
    if node is None or work is None or len(parts) < 2 or None in held or _is_plain(node):
        return work
    return LayerWork(sum(each.flops for each in held if each is not None), work.bytes)


def _is_plain(node: GraphNode) -> bool:
    """Whether a node is one of ONNX's simple operators, whose own operations are all that it does."""
    return bool(onnx.defs.has(node.op_type)) and node_kind(node.op_type) in ("pointwise", "gemm", "reformat")


def _node_work(node: GraphNode | None, values: Mapping[str, Value]) -> LayerWork | None:
    if node is None or any(name not in values for name in (*node.inputs, *node.outputs)):
        return None
    inputs, outputs = [values[name] for name in node.inputs], [values[name] for name in node.outputs]
    flops = operator_flops(node.op_type, node.attributes, inputs, outputs)
    return LayerWork(flops, operator_bytes(node.op_type, inputs, outputs))


def _fused_work(
    layer: NodeTimes, parts: Sequence[GraphNode], graph: OriginGraph, values: Mapping[str, Value]
) -> LayerWork | None:
    """Operations of all parts, and bytes of the values that enter and leave the layer."""
    if not parts:
        return _copied(layer)
    works = [_node_work(part, values) for part in parts]
    if any(work is None for work in works):
        return None
    if len(parts) == 1 and works[0] is not None and not works[0].bytes:
        return works[0]
    inside = {name for part in parts for name in part.outputs}
    read = {name for part in parts for name in part.inputs} - inside
    written = inside & _used_outside(graph, {part.outputs[0] for part in parts})
    width = float_bytes(layer.facts)
    moved = sum(_moved_bytes(values[name], width) for name in read | written)
    return LayerWork(sum(work.flops for work in works if work is not None), moved)


def _copied(layer: NodeTimes) -> LayerWork | None:
    """A reformat that TensorRT inserted: no operations, and the bytes of the tensors that the inspector lists."""
    tensors = (*layer.facts.get("Inputs", ()), *layer.facts.get("Outputs", ()))
    sizes = [_stated_bytes(tensor) for tensor in tensors]
    if node_kind(layer.op_type) != "reformat" or not sizes or None in sizes:
        return None
    return LayerWork(0, sum(size for size in sizes if size is not None))


def _stated_bytes(tensor: Any) -> int | None:
    """Bytes of one of the inspector's tensors; None where its type is unknown or a dimension is free (-1)."""
    dims = tensor.get("Dimensions", [-1]) if isinstance(tensor, dict) else [-1]
    width = _width(tensor) if min(dims, default=0) >= 0 else None
    return round(prod(dims) * DATATYPES[width]) if width is not None else None


def _width(tensor: Mapping[str, Any]) -> str | None:
    """A tensor's element type: "Datatype" (TensorRT 11), or a part of "Format/Datatype" (10)."""
    found = DATATYPE.search(str(tensor.get("Datatype") or tensor.get("Format/Datatype") or ""))
    return found.group().upper() if found is not None else None


def _used_outside(graph: OriginGraph, makers: set[str]) -> set[str]:
    """Values that other nodes read, and the graph's outputs."""
    outputs = {item.name for item in graph.model.graph.output}
    return outputs.union(*(node.inputs for node in graph.nodes if node.outputs and node.outputs[0] not in makers))


def _moved_bytes(value: Value, width: float) -> int:
    """Bytes of a value in the engine: float32 values of the model's graph have the engine's width."""
    return round(value.size_bytes * (width / FLOAT_BYTES if value.item_bytes == FLOAT_BYTES else 1.0))


def float_bytes(facts: Mapping[str, Any]) -> float:
    """Bytes per float in a layer, from the inspector's tensors; FLOAT_BYTES where it lists none."""
    tensors = (*facts.get("Inputs", ()), *facts.get("Outputs", ()))
    types = (_width(tensor) for tensor in tensors if isinstance(tensor, dict))
    return next((DATATYPES[name] for name in types if name in FLOATS), FLOAT_BYTES)


@dataclass(frozen=True)
class Value:
    """A tensor in a run: its shape, and bytes per element (a fraction where elements are packed)."""

    shape: Shape
    item_bytes: float

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return round(prod(self.shape) * self.item_bytes)


@dataclass(frozen=True)
class LayerWork:
    """Floating-point operations, and bytes read and written, of one execute."""

    flops: int
    bytes: int

    def times(self, count: float) -> LayerWork:
        """That of `count` executes."""
        return LayerWork(round(self.flops * count), round(self.bytes * count))


@dataclass(frozen=True)
class Ceilings:
    """A machine's peaks: operations per second in a large matrix product, bytes per second in a copy.

    cpu_share: CPU time of the matrix products over wall time times threads; below 1 where other programs had the cores.
    """

    flops_per_s: float
    bytes_per_s: float
    source: str = ""
    cpu_share: float = 1.0


@dataclass(frozen=True)
class Roof:
    """A layer's speed. bound: its lower ceiling; reached: share of that ceiling. Both None without ceilings.

    Ceilings are measured, so that a share may be above 1: see EXCEEDED.
    """

    flops_per_s: float
    bytes_per_s: float
    bound: Bound | None = None
    reached: float | None = None


def measured_roof(work: LayerWork, time_ms: float, ceilings: Ceilings | None) -> Roof | None:
    """A layer's speed compared with its roof; None for a layer without time or work."""
    if time_ms <= 0 or not (work.flops or work.bytes):
        return None
    seconds = time_ms / 1e3
    speed = (work.flops / seconds, work.bytes / seconds)
    if ceilings is None:
        return Roof(*speed)
    compute_s, memory_s = work.flops / ceilings.flops_per_s, work.bytes / ceilings.bytes_per_s
    bound: Bound = "compute" if compute_s >= memory_s else "memory"
    return Roof(*speed, bound, max(compute_s, memory_s) / seconds)


def operator_flops(
    op_type: str, attributes: Mapping[str, Any], inputs: Sequence[Value], outputs: Sequence[Value]
) -> int:
    """Operations of one operator: exact for products, one per element for pointwise work, by PER_INPUT for others."""
    plain = FUSED.get(op_type, op_type)
    if plain in PRODUCTS:
        return _product_flops(op_type, plain, attributes, inputs, outputs)
    kind = node_kind(op_type)
    if kind == "pointwise":
        return sum(prod(value.shape) for value in outputs)
    return PER_INPUT.get(kind, 0) * (prod(inputs[0].shape) if inputs else 0)


def _product_flops(
    op_type: str, plain: str, attributes: Mapping[str, Any], inputs: Sequence[Value], outputs: Sequence[Value]
) -> int:
    first, second, out = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if op_type in ("FusedMatMul", "TransposeMatMul") and attributes.get("transA"):
        first = (*first[:-2], first[-1], first[-2])
    return product_flops(plain, attributes, first, second, out)


def operator_bytes(op_type: str, inputs: Sequence[Value], outputs: Sequence[Value]) -> int:
    """Bytes that one operator reads and writes, each value once; a view moves none."""
    if op_type in VIEWS:
        return 0
    written = sum(value.size_bytes for value in outputs)
    if op_type in PICKS:
        return 2 * written + sum(value.size_bytes for value in inputs[1:])
    return written + sum(value.size_bytes for value in inputs)
