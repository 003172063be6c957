"""Sums of a step graph that are bit for bit the same whether a slot is alone or one of several, on ONNX Runtime's CPU.

Over the second axis its ReduceSum adds the values of one slot in another order than those of several, and takes longer.
A product with ones adds them in the latter order: a slot that is alone gets that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_view import attribute, replace_nodes

ONE, TWO_ONES, REST = "slot_sums/one", "slot_sums/two_ones", "slot_sums/rest"
CONSTANTS = {ONE: [1], TWO_ONES: [1, 1], REST: [-1]}


def with_slot_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with all sums over the second axis of `[S,K,...]` in one order for every S."""
    axes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    result = onnx.ModelProto()
    result.CopyFrom(model)
    nodes = list[onnx.NodeProto]()
    for node in model.graph.node:
        is_over_second = node.op_type == "ReduceSum" and axes[node.input[1]].tolist() == [1]
        nodes += _in_one_order(node) if is_over_second else [node]
    result.graph.initializer.extend(
        numpy_helper.from_array(np.array(values, np.int64), name) for name, values in CONSTANTS.items()
    )
    replace_nodes(result.graph, nodes)
    return result


def _in_one_order(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    x, total = node.input[0], node.output[0]
    several = onnx.NodeProto.FromString(node.SerializeToString())
    several.output[0] = f"{total}/several"
    yield helper.make_node("Shape", [x], [f"{total}/slots"], f"{node.name}/slots", start=0, end=1)
    yield helper.make_node("Equal", [f"{total}/slots", ONE], [f"{total}/is_alone"], f"{node.name}/is_alone")
    yield helper.make_node(
        "If",
        [f"{total}/is_alone"],
        [total],
        node.name,
        then_branch=_branch(list(_product_with_ones(x, f"{total}/alone", attribute(node, "keepdims", 1)))),
        else_branch=_branch([several]),
    )


def _product_with_ones(x: str, total: str, keepdims: int) -> Iterator[onnx.NodeProto]:
    """The sum over K of `[1,K,...]`."""
    yield helper.make_node("Shape", [x], [f"{total}/count"], start=1, end=2)
    yield helper.make_node("Concat", [f"{total}/count", REST], [f"{total}/flat_shape"], axis=0)
    yield helper.make_node("Reshape", [x, f"{total}/flat_shape"], [f"{total}/flat"])  # [K,...]
    yield helper.make_node("Concat", [ONE, f"{total}/count"], [f"{total}/ones_shape"], axis=0)
    one = numpy_helper.from_array(np.ones(1, np.float32))
    yield helper.make_node("ConstantOfShape", [f"{total}/ones_shape"], [f"{total}/ones"], value=one)  # [1,K]
    yield helper.make_node("MatMul", [f"{total}/ones", f"{total}/flat"], [f"{total}/product"])  # [1,...]
    yield helper.make_node("Shape", [x], [f"{total}/rest"], start=2)
    yield helper.make_node("Concat", [TWO_ONES if keepdims else ONE, f"{total}/rest"], [f"{total}/shape"], axis=0)
    yield helper.make_node("Reshape", [f"{total}/product", f"{total}/shape"], [total])


def _branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
    result = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "branch", [], [result])
