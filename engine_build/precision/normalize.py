"""Normalizes a graph before its precisions are set. The result is the same function in full precision."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper

from engine_build.graphs.graph_view import GraphView, attribute, remove_unused, replace_nodes
from engine_build.graphs.plain_graph import opset
from engine_build.precision.casts import InlineWeights
from runtime.engines.graph_bodies import all_nodes, rename_reads
from runtime.engines.value_shapes import PRODUCTS

HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# From the first to the second most operators only take more types, among them bfloat16 in convolutions.
RAISED_FROM, RAISED_TO = 20, 22
MOVES = frozenset({"Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def normalized(model: onnx.ModelProto, limit: float, weights: InlineWeights) -> onnx.ModelProto:
    """A normalized copy of a plain model: scales before moves, attention masks bounded by `limit`."""
    copy = deepcopy(model)
    hoist_scales(copy)
    bound_masks(copy, limit, weights)
    return copy


def widened(model: onnx.ModelProto, weights: InlineWeights) -> onnx.ModelProto:
    """The model with constants in float32 that are stored in 16 bits and cast where they are read."""
    stored = {tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type in HALVES}
    casts = [node for node in model.graph.node if node.op_type == "Cast" and node.input[0] in stored]
    casts = [node for node in casts if attribute(node, "to") == TensorProto.FLOAT]
    if not casts:
        return model
    copy = deepcopy(model)
    names = {node.output[0] for node in casts}
    replace_nodes(copy.graph, [node for node in copy.graph.node if node.output[0] not in names])
    for node in casts:
        values = weights.read(stored[node.input[0]]).astype(np.float32)
        copy.graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    remove_unused(copy.graph)
    return copy


def raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, in place at opset RAISED_TO where that changes no more than the types that its operators take."""
    operators = {node.op_type for node in all_nodes(model.graph) if node.domain in ("", "ai.onnx")}
    version = opset(model)
    same = all(_signature(name, version) == _signature(name, RAISED_TO) for name in operators)
    if RAISED_FROM <= version < RAISED_TO and same:
        next(item for item in model.opset_import if item.domain in ("", "ai.onnx")).version = RAISED_TO
    return model


def _signature(operator: str, opset: int) -> object:
    if not defs.has(operator, opset):
        return None
    schema = defs.get_schema(operator, opset)
    sides = ([(item.name, item.option) for item in side] for side in (schema.inputs, schema.outputs))
    return *sides, set(schema.attributes)


def hoist_scales(model: onnx.ModelProto) -> None:
    """Move multiplications by a scalar before reshapes and transposes: attention's scale, on queries and keys.

    There the values are still in full precision, so the product is rounded once, and the scale (0.2973 for 128
    channels, 0.2969 in bf16) is not rounded itself.
    """
    view = GraphView(model)
    moved: dict[int, onnx.NodeProto] = {}
    renamed: dict[str, str] = {}
    for index, node in enumerate(view.nodes):
        if (first := _first_move(view, index)) is not None:
            factor, value = _factor(view, node), _scaled_value(view, node)
            early = f"{node.output[0]}.early"
            moved[first] = helper.make_node("Mul", [view.nodes[first].input[0], factor], [early], name=node.name)
            moved[first].metadata_props.extend(node.metadata_props)
            renamed[node.output[0]] = value
    nodes = []
    for index, node in enumerate(view.nodes):
        if node.output[0] in renamed:
            continue
        if index in moved:
            nodes.append(moved[index])
            node.input[0] = moved[index].output[0]
        rename_reads(node, renamed)
        nodes.append(node)
    replace_nodes(model.graph, nodes)


def bound_masks(model: onnx.ModelProto, limit: float, weights: InlineWeights) -> None:
    """Bound the masks that are added to attention scores to `-limit`, so that the sums stay finite in 16 bits.

    Exporters write the smallest fp32 number, which is minus infinity in 16 bits; softmax of a row of those is NaN.
    """
    view = GraphView(model)
    bounded: dict[str, onnx.TensorProto] = {}
    for index in mask_nodes(view):
        node = view.nodes[index]
        for name in view.floats_in(index):
            if view.is_constant(name) and name not in bounded:
                bounded[name] = _bounded(view.initializers[name], limit, weights)
        rename_reads(node, {name: tensor.name for name, tensor in bounded.items()})
    model.graph.initializer.extend(tensor for name, tensor in bounded.items() if tensor.name != name)


def _first_move(view: GraphView, index: int) -> int | None:
    """The first of the moves before a multiplication by a scalar; None where there is no such multiplication."""
    node, first = view.nodes[index], None
    if node.op_type != "Mul" or node.output[0] in view.outputs or not _factor(view, node):
        return None
    reader, value = index, _scaled_value(view, node)
    while (maker := view.producers.get(value)) is not None and view.nodes[maker].op_type in MOVES:
        if value in view.outputs or _others_read(view, value, reader):
            break
        reader = first = maker
        value = view.nodes[maker].input[0]
    return first


def _others_read(view: GraphView, value: str, reader: int) -> bool:
    """Whether nodes other than `reader` read a value's content (not only its size)."""
    return any(other != reader and view.nodes[other].op_type != "Shape" for other in view.readers[value])


def _factor(view: GraphView, node: onnx.NodeProto) -> str:
    """The scalar operand of a multiplication; "" where there is none."""
    tensors = [view.initializers[name] for name in node.input if view.is_constant(name) and view.is_float(name)]
    return next((str(tensor.name) for tensor in tensors if len(tensor.dims) == 0), "")


def _scaled_value(view: GraphView, node: onnx.NodeProto) -> str:
    factor = _factor(view, node)
    return next(str(name) for name in node.input if name != factor)


def mask_nodes(view: GraphView) -> set[int]:
    """The indices of the nodes that compute masks added to attention scores."""
    found = set[int]()
    for node in view.nodes:
        added = view.producer(node.input[0]) if node.op_type == "Softmax" else None
        if added is not None and added.op_type == "Add":
            for name in added.input:
                before = view.ancestors(name)
                if not any(view.nodes[index].op_type in PRODUCTS for index in before):
                    found |= before
    return found


def _bounded(tensor: onnx.TensorProto, limit: float, weights: InlineWeights) -> onnx.TensorProto:
    array = weights.read(tensor)
    if not (np.isfinite(array) & (np.abs(array) > limit)).any():
        return tensor
    return weights.write(f"{tensor.name}.bounded", np.clip(array, -limit, limit).astype(array.dtype))
