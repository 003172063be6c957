"""Normalization keeps the function of a graph; scales come before moves, masks are bounded."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.paths import DEMO_BUNDLE
from onnx import helper

from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.casts import InlineWeights
from engine_build.precision.normalize import normalized, raised, widened

LOWEST = float(np.finfo(np.float32).min)
LIMIT = 2.0**15


def attention() -> onnx.ModelProto:
    """Softmax of scaled, transposed scores plus a mask of the smallest float32 numbers."""
    graph = GraphWriter("attention")
    x = graph.input("x", ("rows", 4, 4))
    scaled = graph.op("Mul", graph.op("Transpose", x, perm=[0, 2, 1]), graph.constant(0.25))
    mask = graph.op("Mul", graph.input("is_masked", (4, 4)), graph.constant(LOWEST, name="lowest"))
    masked = graph.op("Add", graph.op("MatMul", x, scaled), mask)
    graph.output("y", graph.op("Softmax", masked, axis=-1), ("rows", 4, 4))
    return graph.model()


def run(model: onnx.ModelProto) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)
    feeds = {"x": x, "is_masked": np.triu(np.ones((4, 4), np.float32), 1)}
    result: np.ndarray = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    return result


def test_the_function_stays_the_same() -> None:
    model = attention()
    before = model.SerializeToString()
    result = normalized(model, LIMIT, InlineWeights())
    onnx.checker.check_model(result, full_check=True)
    assert model.SerializeToString() == before
    np.testing.assert_allclose(run(result), run(model), atol=1e-6)


def test_a_graph_is_raised_to_opset_22_where_it_stays_the_same() -> None:
    model = onnx.load(DEMO_BUNDLE / "codec_encode.onnx")
    feeds = {"audio": np.random.default_rng(0).standard_normal((1, 2, 16 * 1920)).astype(np.float32)}
    before = ort.InferenceSession(model.SerializeToString())
    assert raised(model).opset_import[0].version == 22
    onnx.checker.check_model(model, full_check=True)
    after = ort.InferenceSession(model.SerializeToString())
    assert np.array_equal(after.run(None, feeds)[0], before.run(None, feeds)[0])


@pytest.mark.parametrize(("operator", "opset", "expected"), [
    ("Conv", 20, 22), ("Conv", 21, 22), ("Conv", 23, 23), ("Conv", 18, 18), ("GroupNormalization", 20, 20),
    ("GroupNormalization", 21, 22),
])  # fmt: skip
def test_graphs_that_would_mean_something_else_stay_at_their_opset(operator: str, opset: int, expected: int) -> None:
    node = helper.make_node(operator, ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [], []), opset_imports=[helper.make_opsetid("", opset)])
    assert raised(model).opset_import[0].version == expected


def test_scales_are_applied_before_moves() -> None:
    kinds = [node.op_type for node in normalized(attention(), LIMIT, InlineWeights()).graph.node]
    assert kinds.index("Mul") < kinds.index("Transpose")


@pytest.mark.parametrize(
    ("case", "first"),
    [
        ("two moves", "Mul"),
        ("an output of its own", "Transpose"),
        ("another reader", "Transpose"),
        ("end", "Transpose"),
    ],
)
def test_a_scale_passes_moves_whose_values_nothing_else_reads(case: str, first: str) -> None:
    graph = GraphWriter("moves")
    x = graph.input("x", ("rows", 4, 4))
    moved = graph.op("Transpose", x, perm=[0, 2, 1])
    if case == "two moves":
        moved = graph.op("Reshape", moved, graph.constant([0, 2, 8], np.int64))
    scaled = graph.op("Mul", moved, graph.constant(0.25))
    if case == "an output of its own":
        graph.output("moved", moved, ("rows", 4, 4))
    if case == "another reader":
        scaled = graph.op("Add", scaled, moved)
    graph.output("y", scaled if case == "end" else graph.op("Exp", scaled), ("rows", "a", "b"))
    model = graph.model()
    result = normalized(model, LIMIT, InlineWeights())
    onnx.checker.check_model(result, full_check=True)
    assert next(node.op_type for node in result.graph.node if node.op_type in ("Mul", "Transpose")) == first
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 4)).astype(np.float32)}
    before, after = (ort.InferenceSession(each.SerializeToString()).run(None, feeds) for each in (model, result))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6)


def test_masks_are_bounded() -> None:
    weights = InlineWeights()
    result = normalized(attention(), LIMIT, weights)
    (mask,) = [tensor for tensor in result.graph.initializer if tensor.name == "lowest.bounded"]
    assert weights.read(mask).min() == -LIMIT


def test_constants_stored_in_16_bits_become_float32() -> None:
    graph = GraphWriter("stored")
    half = graph.constant([1.5, -2.0], np.float16)
    graph.output("y", graph.op("Mul", graph.input("x", ("rows", 2)), graph.op("Cast", half, to=1)), ("rows", 2))
    model = graph.model()
    result = widened(model, InlineWeights())
    assert [node.op_type for node in result.graph.node] == ["Mul"]
    assert {tensor.data_type for tensor in result.graph.initializer} == {1}
    x = np.array([[3.0, 4.0]], np.float32)
    for each in (model, result):
        assert ort.InferenceSession(each.SerializeToString()).run(None, {"x": x})[0].tolist() == [[4.5, -8.0]]
    assert widened(result, InlineWeights()) is result
