"""Shapes of values, and what products of them cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.paths import ROOT
from onnx import TensorProto, helper

from runtime.engines.value_shapes import PRODUCTS, Shape, product_flops, value_shapes

DEMO = ROOT / "configs" / "demo"
SIZES = {"rows": 3, "frames": 22, "tokens": 5, "batch": 2}


def seen(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[tuple[int, ...], int]]:
    """Every value's shape and element type, in a run."""
    model = onnx.load(path)
    names = [name for node in model.graph.node for name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {
        item.name: np.ones(shapes[item.name], helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type))
        for item in model.graph.input
    }
    arrays = zip(names, session.run(names, feeds), strict=True)
    return {name: (array.shape, helper.np_dtype_to_tensor_dtype(array.dtype)) for name, array in arrays}


@pytest.mark.parametrize("name", ["decoder", "codec_decode", "text_encoder"])
def test_the_demo_models_graphs_have_the_shapes_of_a_run(name: str) -> None:
    path = DEMO / f"{name}.onnx"
    model = onnx.load(path)
    shapes = {
        item.name: tuple(SIZES.get(dim.dim_param) or dim.dim_value for dim in item.type.tensor_type.shape.dim)
        for item in model.graph.input
    }
    expected = seen(path, shapes)
    found = value_shapes(model, shapes)
    assert {name: found[name] for name in expected} == expected


def test_shapes_that_depend_on_data_are_left_out() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Neg", ["x"], ["y"])]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets)
    found = value_shapes(model, {"x": (7,)})
    assert found["y"] == ((7,), TensorProto.FLOAT)
    assert "where" not in found


def test_constants_that_cannot_be_folded_are_left_out() -> None:
    """Sizes of 5 and 7 cannot be added."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    constants = [helper.make_tensor(name, TensorProto.INT64, [size], [1] * size) for name, size in (("a", 5), ("b", 7))]
    nodes = [helper.make_node("Add", ["a", "b"], ["c"], "bad"), helper.make_node("Neg", ["x"], ["y"])]
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], constants), opset_imports=opsets)
    found = value_shapes(model, {"x": (7,)})
    assert found["y"] == ((7,), TensorProto.FLOAT)
    assert "c" not in found


def test_what_is_made_of_values_that_nothing_is_known_of_is_left_out() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    nodes = [
        helper.make_node("Own", ["x"], ["own"], domain="example"),
        helper.make_node("Shape", ["own"], ["size"]),
        helper.make_node("Shape", ["x"], ["known"]),
        helper.make_node("Neg", ["x"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("example", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets)
    found = value_shapes(model, {"x": (7,)})
    assert {name: found[name] for name in ("known", "y")} == {
        "known": ((1,), TensorProto.INT64),
        "y": ((7,), TensorProto.FLOAT),
    }
    assert "own" not in found


@pytest.mark.parametrize(
    ("op_type", "attributes", "first", "second", "out", "expected"),
    [
        ("MatMul", {}, (2, 3, 5), (5, 7), (2, 3, 7), 2 * 2 * 3 * 7 * 5),
        ("Gemm", {"transA": 1}, (5, 3), (5, 8), (3, 8), 2 * 3 * 8 * 5),
        ("Gemm", {"transA": 0}, (3, 5), (5, 8), (3, 8), 2 * 3 * 8 * 5),
        ("Conv", {}, (2, 4, 10), (6, 4, 3), (2, 6, 10), 2 * 2 * 6 * 10 * 4 * 3),
        ("ConvTranspose", {}, (2, 4, 10), (4, 6, 3), (2, 6, 30), 2 * 2 * 10 * 4 * 6 * 3),
        ("Einsum", {"equation": b"bn, ntk -> btk"}, (2, 7), (7, 9, 4), (2, 9, 4), 2 * 2 * 7 * 9 * 4),
        ("Attention", {}, (1, 2, 8, 16), (1, 2, 12, 16), (1, 2, 8, 16), 2 * 2 * 2 * 8 * 12 * 16),
        ("Add", {}, (2,), (2,), (2,), 0),
    ],
)
def test_operations(
    op_type: str, attributes: dict[str, Any], first: Shape, second: Shape, out: Shape, expected: int
) -> None:
    assert product_flops(op_type, attributes, first, second, out) == expected
    assert (op_type in PRODUCTS) == (expected > 0)
