"""Floating-point operations, counted by hand; types without weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_view import (
    LARGEST_CONSTANT,
    GraphView,
    is_small,
    node_flops,
    product_values,
    with_weights_as_inputs,
)

SHAPES = {
    "a": (2, 3, 5), "b": (5, 7), "ab": (2, 3, 7),
    "x": (2, 4, 10), "w": (6, 4, 3), "xw": (2, 6, 10), "t": (4, 6, 3), "xt": (2, 6, 30),
    "m": (3, 5), "mt": (5, 3), "n": (5, 8), "mn": (3, 8), "e": (2, 7), "f": (7, 9, 4), "ef": (2, 9, 4),
    "q": (1, 2, 8, 16), "k": (1, 2, 12, 16), "qk": (1, 2, 8, 16),
}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "attributes", "expected"),
    [
        ("MatMul", ["a", "b"], "ab", {}, 2 * 2 * 3 * 7 * 5),
        ("Gemm", ["m", "n"], "mn", {}, 2 * 3 * 8 * 5),
        ("Gemm", ["mt", "n"], "mn", {"transA": 1}, 2 * 3 * 8 * 5),
        ("Conv", ["x", "w"], "xw", {}, 2 * 2 * 6 * 10 * 4 * 3),
        ("ConvTranspose", ["x", "t"], "xt", {}, 2 * 2 * 10 * 4 * 6 * 3),
        ("Einsum", ["e", "f"], "ef", {"equation": "bn,ntk->btk"}, 2 * 2 * 7 * 9 * 4),
        ("Attention", ["q", "k"], "qk", {}, 2 * 2 * 2 * 8 * 12 * 16),
        ("Add", ["a", "a"], "a", {}, 0),
    ],
)
def test_work(operator: str, inputs: list[str], output: str, attributes: dict[str, Any], expected: int) -> None:
    node = helper.make_node(operator, inputs, [output], **attributes)
    assert node_flops(node, SHAPES) == expected
    assert set(product_values([node])) == ({*inputs, output} if expected else set())
    with_more = helper.make_node(operator, [*inputs, "bias"], [output, "state"], **attributes)
    assert product_values([with_more, node]) == product_values([node]), "of each value once, and of none beside"


@pytest.mark.parametrize("is_declared", [False, True], ids=["a constant", "also declared as an input"])
def test_weights_are_left_out_and_values_keep_their_types(is_declared: bool) -> None:
    weight = numpy_helper.from_array(np.zeros((4, LARGEST_CONSTANT), np.float16), "w")
    sizes = numpy_helper.from_array(np.array([-1, 2], np.int64), "sizes")
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT16, ("rows", 4))]
    if is_declared:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT16, (4, LARGEST_CONSTANT)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "sizes"], ["y"])]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ("pairs", 2))
    graph = helper.make_graph(nodes, "graph", inputs, [output], [weight, sizes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    bare = with_weights_as_inputs(model).graph
    assert [tensor.name for tensor in bare.initializer] == ["sizes"]
    assert [value.name for value in bare.input] == ["x", "w"]
    assert GraphView(model).types == {"x": 10, "w": 10, "h": 10, "y": 10, "sizes": 7}


def test_small_constants_have_few_numbers_in_the_graph_itself() -> None:
    whole = numpy_helper.from_array(np.zeros(LARGEST_CONSTANT, np.float32), "whole")
    text = helper.make_tensor("text", TensorProto.STRING, [1], [b"a"])
    outside = helper.make_tensor("outside", TensorProto.FLOAT, [1], [1.0])
    outside.data_location = TensorProto.EXTERNAL
    larger = numpy_helper.from_array(np.zeros(LARGEST_CONSTANT + 1, np.float32), "larger")
    assert [is_small(tensor) for tensor in (whole, text, outside, larger)] == [True, False, False, False]
