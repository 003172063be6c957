"""Emulates a 16-bit graph on a machine without 16-bit kernels.

Every value is a float32 tensor of numbers that the 16-bit type can represent: an operator gets rounded inputs, computes
in float32 and rounds its result, as tensor cores do. An engine that fuses operators rounds less often, so its error is
smaller than the emulation's. 8-bit numbers are what they are: what DequantizeLinear gives is a factor of the product
that reads it, never stored in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper

from engine_build.graphs.graph_view import GraphView, attribute, replace_nodes
from engine_build.precision.node_rules import LAYOUT

LOW = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def emulated(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph with 16-bit nodes as one that ONNX Runtime's CPU provider runs, equal up to the order of sums.

    Weights stay stored in 16 bits, external ones in their files, and are widened in the graph.
    """
    view = GraphView(model)
    nodes = list(_widened_weights(view))
    for node in view.nodes:
        nodes += _emulated_node(view, node)
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.value_info[:]
    for tensor in result.graph.initializer:
        if tensor.data_type in LOW:
            tensor.name = _stored(tensor.name)
    replace_nodes(result.graph, nodes)
    return result


def _widened_weights(view: GraphView) -> Iterator[onnx.NodeProto]:
    for name, tensor in view.initializers.items():
        if tensor.data_type in LOW:
            yield _cast(_stored(name), name, TensorProto.FLOAT)


def _emulated_node(view: GraphView, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    low = {name: view.types[name] for name in node.output if view.types.get(name) in LOW}
    if node.op_type == "Cast":
        yield from _emulated_cast(view, node, low)
    elif not low or node.op_type in LAYOUT or node.op_type == "DequantizeLinear":
        yield node
    else:
        wide = onnx.NodeProto()
        wide.CopyFrom(node)
        wide.output[:] = [f"{name}.exact" if name in low else name for name in node.output]
        yield wide
        for name, kind in low.items():
            yield from _rounding(f"{name}.exact", name, kind)


def _emulated_cast(view: GraphView, node: onnx.NodeProto, low: dict[str, int]) -> Iterator[onnx.NodeProto]:
    source, target = node.input[0], node.output[0]
    if low:
        yield from _rounding(source, target, low[target])
    elif view.types[source] in LOW and attribute(node, "to") == TensorProto.FLOAT:
        yield helper.make_node("Identity", [source], [target], name=node.name)
    else:
        yield node


def _rounding(source: str, target: str, kind: int) -> Iterator[onnx.NodeProto]:
    yield _cast(source, f"{target}.rounded", kind)
    yield _cast(f"{target}.rounded", target, TensorProto.FLOAT)


def _cast(source: str, target: str, kind: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], name=f"cast/{target}", to=kind)


def _stored(name: str) -> str:
    return f"{name}.stored"
