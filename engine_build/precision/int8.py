"""The recipe int8, for CPUs: linear layers as 8-bit products.

Weights are rounded by output feature, activations by token: q = round(127 x / max|x|) over a token's features, so what
a token becomes depends on no other token or row. Products are summed in 32 bits and scaled in float32.

ONNX Runtime adds up one row in another order than several. What differs in the last bit is then sometimes rounded to
the next number, so sums run over the rows twice, which are never one: a row does not depend on the other rows of its
batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import deepcopy

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_view import Matcher, node_name, replace_nodes
from engine_build.precision.casts import InlineWeights
from runtime.engines.graph_bodies import reads

CONTRIB = "com.microsoft"
# Products of smaller matrices gain nothing.
SMALLEST_SIDE = 64
LARGEST = 127
SUMS = ("ReduceSum", "ReduceMean")
CONSTANTS = {
    "int8/largest": np.array(LARGEST, np.float32),
    "int8/smallest": np.array(1e-12, np.float32),
    "int8/one": np.array(1, np.float32),
    "int8/zero": np.array(LARGEST + 1, np.uint8),
    "int8/last": np.array([-1], np.int64),
    "int8/first": np.array([0], np.int64),
}


def int8_products(model: onnx.ModelProto) -> dict[str, str]:
    """Weight -> node of the products that the recipe changes: by a constant matrix, not of the graph's own inputs."""
    inputs = {value.name for value in model.graph.input}
    sizes = {tensor.name: tensor.dims for tensor in model.graph.initializer if tensor.data_type == TensorProto.FLOAT}
    return {
        node.input[1]: node_name(node)
        for node in model.graph.node
        if node.op_type == "MatMul"
        and node.input[0] not in inputs
        and len(side := sizes.get(node.input[1], ())) == 2
        and min(side) >= SMALLEST_SIDE
    }


def with_int8_products(
    model: onnx.ModelProto, weights: InlineWeights, products: Collection[str] | None = None
) -> onnx.ModelProto:
    """The graph with its products in 8 bits, as ONNX Runtime's operators; `weights` reads and stores constants.

    products: the nodes that become so; default: all that the recipe can change.
    """
    result = deepcopy(model)
    changed = {weight: name for weight, name in int8_products(model).items() if products is None or name in products}
    nodes = list(_nodes(model, changed))
    read = {name for node in nodes for name in reads(node)}
    del result.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.name in changed:
            rounded, scale = rounded_weight(weights.read(tensor))
            result.graph.initializer.append(weights.write(f"{tensor.name}.int8", rounded))
            result.graph.initializer.append(weights.write(f"{tensor.name}.scale", scale))
        if tensor.name in read or tensor.name not in changed:
            result.graph.initializer.append(weights.keep(tensor))
    result.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in CONSTANTS.items())
    replace_nodes(result.graph, nodes)
    result.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    return result


def rounded_weight(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """[K,N] in 8 bits, and each output feature's scale [N]."""
    scale = np.maximum(np.abs(weight).max(axis=0), np.float32(1e-12)) / np.float32(LARGEST)  # [N]
    return np.rint(weight / scale).astype(np.int8), scale


def _nodes(model: onnx.ModelProto, changed: dict[str, str]) -> Iterator[onnx.NodeProto]:
    rounded: set[str] = set()
    matcher = Matcher(model.graph.node, model.graph.initializer)
    for node in model.graph.node:
        if node.op_type in SUMS and len(node.input) > 1 and _is_inside_rows(matcher.constant(node.input[1])):
            yield from _of_rows_twice(node)
            continue
        if node.op_type != "MatMul" or node.input[1] not in changed:
            yield node
            continue
        x = node.input[0]
        new = [*([] if x in rounded else rounded_by_token(x)), *int8_product(node)]
        rounded.add(x)
        for one in new:
            one.metadata_props.extend(node.metadata_props)
        yield from new


def _is_inside_rows(axes: float | tuple[float, ...] | None) -> bool:
    """Whether these axes are known and none is the first, counted from it."""
    return axes is not None and min(axes if isinstance(axes, tuple) else (axes,)) > 0


def _of_rows_twice(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A node over its first input's rows twice, and its result for the first half."""
    (x, axes), output = node.input, node.output[0]
    twice = deepcopy(node)
    twice.input[:], twice.output[:] = [f"{output}/int8_rows", axes], [f"{output}/int8_sums"]
    return [
        helper.make_node("Concat", [x, x], [f"{output}/int8_rows"], axis=0),
        twice,
        helper.make_node("Shape", [x], [f"{output}/int8_end"], start=0, end=1),
        _node("Slice", [f"{output}/int8_sums", "int8/first", f"{output}/int8_end", "int8/first"], output),
    ]


def int8_product(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A product of what `rounded_by_token` gives for its first input, and of its weight in 8 bits."""
    (x, weight), product = node.input, f"{node.output[0]}/int8_product"
    inputs = [f"{x}/int8", f"{weight}.int8", "int8/one", f"{weight}.scale", "int8/zero"]
    return [
        helper.make_node("MatMulIntegerToFloat", inputs, [product], node.name, domain=CONTRIB),
        _node("Mul", [product, f"{x}/int8_scale"], node.output[0]),
    ]


def rounded_by_token(x: str) -> list[onnx.NodeProto]:
    """x as uint8 around 128, and the scale of each token; once for all products of x."""
    return [
        _node("Abs", [x], f"{x}/int8_abs"),
        _node("ReduceMax", [f"{x}/int8_abs", "int8/last"], f"{x}/int8_peak"),
        _node("Max", [f"{x}/int8_peak", "int8/smallest"], f"{x}/int8_most"),
        _node("Div", [f"{x}/int8_most", "int8/largest"], f"{x}/int8_scale"),
        _node("Div", ["int8/largest", f"{x}/int8_most"], f"{x}/int8_factor"),
        _node("Mul", [x, f"{x}/int8_factor"], f"{x}/int8_scaled"),
        _node("QuantizeLinear", [f"{x}/int8_scaled", "int8/one", "int8/zero"], f"{x}/int8"),
    ]


def _node(kind: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, [output], output)
