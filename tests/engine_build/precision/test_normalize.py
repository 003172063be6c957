"""Normalization keeps the function of a graph; scales come before moves, masks are bounded."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper

from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.casts import InlineWeights
from engine_build.precision.normalize import normalized

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


def test_scales_are_applied_before_moves() -> None:
    kinds = [node.op_type for node in normalized(attention(), LIMIT, InlineWeights()).graph.node]
    assert kinds.index("Mul") < kinds.index("Transpose")


def test_masks_are_bounded() -> None:
    weights = InlineWeights()
    result = normalized(attention(), LIMIT, weights)
    (mask,) = [tensor for tensor in result.graph.initializer if tensor.name == "lowest.bounded"]
    assert weights.read(mask).min() == -LIMIT


def test_constant_nodes_become_initializers() -> None:
    model = attention()
    two = helper.make_tensor("two", onnx.TensorProto.FLOAT, [], [2.0])
    model.graph.node.insert(0, helper.make_node("Constant", [], ["two"], value=two))
    result = normalized(model, LIMIT, InlineWeights())
    assert "Constant" not in {node.op_type for node in result.graph.node}
    assert "two" in {tensor.name for tensor in result.graph.initializer}
