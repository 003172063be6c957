"""Magnitudes of published weights: every recipe stays finite and near float32 with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from engine_build.config import EIGHT_BITS
from engine_build.graphs.graph_file import graph_of
from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.casts import InlineWeights
from engine_build.precision.error import recipe_error
from engine_build.precision.recipe import apply_recipe, node_precisions, normalized_graph
from engine_build.precision.sensitivity import quantization_of
from engine_build.precision.wide_values import in_range

WIDTH, HEADS, FRAMES = 32, 2, 24
# As of the residual stream and the last projection of ACE-Step's lyric encoder; FLOAT16_END is float16's largest.
LARGEST, FLOAT16_END = 505_000.0, 65_504.0


class Block:
    """Writes blocks of a transformer: norms, attention with rotation, a gated product, sums into a stream."""

    def __init__(self, seed: int = 3) -> None:
        self.graph, self._random = GraphWriter("blocks"), np.random.default_rng(seed)

    def product(self, x: str, rows: int, columns: int, scale: float = 1.0) -> str:
        weight = self._random.standard_normal((rows, columns)) * (scale / np.sqrt(rows))
        return self.graph.op("MatMul", x, self.graph.constant(weight, name=f"w{len(self.graph._nodes)}"))

    def norm(self, x: str) -> str:
        graph = self.graph
        mean = graph.op("ReduceMean", graph.op("Mul", x, x), graph.constant([-1], np.int64), keepdims=1)
        root = graph.op("Sqrt", graph.op("Add", mean, graph.constant(1e-6)))
        return graph.op("Mul", graph.op("Div", x, root), graph.constant(np.linspace(0.5, 2, WIDTH), name="norm"))

    def heads(self, x: str) -> str:
        shape = self.graph.constant([0, 0, HEADS, WIDTH // HEADS], np.int64)
        return self.graph.op("Transpose", self.graph.op("Reshape", x, shape), perm=[0, 2, 1, 3])

    def rotated(self, x: str) -> str:
        """x cos + turned x sin: a sum of what both depends on the product."""
        graph, half = self.graph, WIDTH // HEADS // 2
        low, high = graph.ops("Split", 2, x, graph.constant([half, half], np.int64), axis=-1)
        turned = graph.op("Concat", graph.op("Neg", high), low, axis=-1)
        angles = np.arange(FRAMES)[:, None] * np.linspace(0.1, 1, WIDTH // HEADS)
        cosine, sine = (
            graph.constant(table, name=name) for table, name in ((np.cos(angles), "c"), (np.sin(angles), "s"))
        )
        return graph.op("Add", graph.op("Mul", x, cosine), graph.op("Mul", turned, sine))

    def attention(self, x: str, gain: float) -> str:
        graph = self.graph
        query, key = (self.rotated(self.heads(self.product(x, WIDTH, WIDTH))) for _ in "qk")
        value = self.heads(self.product(x, WIDTH, WIDTH))
        scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
        weights = graph.op("Softmax", graph.op("Mul", scores, graph.constant(0.25)), axis=-1)
        mixed = graph.op("Transpose", graph.op("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.product(graph.op("Reshape", mixed, graph.constant([0, 0, -1], np.int64)), WIDTH, WIDTH, gain)

    def gated(self, x: str, gain: float) -> str:
        graph = self.graph
        gate, up = (self.product(x, WIDTH, 2 * WIDTH, 4.0) for _ in "gu")
        return self.product(
            graph.op("Mul", graph.op("Mul", gate, graph.op("Sigmoid", gate)), up), 2 * WIDTH, WIDTH, gain
        )


def blocks(attention_gain: float, gated_gain: float, latent_gain: float = 1.0) -> onnx.ModelProto:
    """Two blocks whose residual adds have the magnitudes of these gains, and an output behind a norm."""
    block = Block()
    graph = block.graph
    x = graph.input("x", ("rows", FRAMES, WIDTH))
    stream = block.product(x, WIDTH, WIDTH, latent_gain)
    for _ in range(2):
        stream = graph.op("Add", stream, block.attention(block.norm(stream), attention_gain))
        stream = graph.op("Add", stream, block.gated(block.norm(stream), gated_gain))
    stream = graph.op("Identity", stream)
    graph.output("y", block.product(block.norm(stream), WIDTH, WIDTH), ("rows", FRAMES, WIDTH))
    return graph.model()


def feeds(count: int = 2) -> list[dict[str, NDArray[np.float32]]]:
    random = np.random.default_rng(5)
    return [{"x": random.standard_normal((2, FRAMES, WIDTH)).astype(np.float32)} for _ in range(count)]


def residual_adds(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == "Add" and node.input[1].startswith("MatMul")]


def largest_added(model: onnx.ModelProto) -> float:
    """The largest operand of a residual add, in float32."""
    adds = residual_adds(model)
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    names = [name for node in adds for name in (*node.input, *node.output)]
    probe.graph.output.extend(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    outputs = ort.InferenceSession(probe.SerializeToString()).run(names, feeds(1)[0])
    return max(float(np.abs(output).max()) for output in outputs)


MAGNITUDES: dict[str, tuple[Callable[[], onnx.ModelProto], float]] = {
    "ordinary": (lambda: blocks(1.0, 1.0), 0.0),
    "a stream beyond float16": (lambda: blocks(2e4, 1.0), FLOAT16_END),
    "505,000 at the last projection": (lambda: blocks(1.0, 5e3), LARGEST),
    "a stream of a million": (lambda: blocks(1e6, 1e4, 1e4), 1e6),
}


@pytest.mark.parametrize("recipe", ["fp16", "bf16", "fp8", "int8", "int8 of CPUs"])
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_every_recipe_stays_near_float32_with_the_magnitudes_of_published_weights(magnitude: str, recipe: str) -> None:
    written, least = MAGNITUDES[magnitude]
    graph, states, name = graph_of(written()), feeds(), cast("Any", recipe.partition(" ")[0])
    assert least <= largest_added(written()) < 1e7
    chosen = quantization_of(graph, name, states, states, threads=1) if recipe in EIGHT_BITS else None
    error = recipe_error(graph, name, states, quantization=chosen, threads=1)
    assert max(error.rms_rel) < {"fp16": 4e-3, "bf16": 3e-2}.get(recipe, 6e-2)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_scaled_products_are_the_same_function(magnitude: str) -> None:
    """To the bit: they are scaled by powers of two."""
    weights = InlineWeights()
    model = normalized_graph(MAGNITUDES[magnitude][0](), "fp16", weights)
    feed = feeds(1)[0]
    before = ort.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    scaled, _ = in_range(model, weights)
    for tensor in scaled.graph.initializer:
        if tensor.name in weights.factors:
            tensor.CopyFrom(weights.keep(tensor))
    np.testing.assert_array_equal(ort.InferenceSession(scaled.SerializeToString()).run(None, feed)[0], before)


def test_products_are_fp16_and_the_stream_is_float32() -> None:
    model = blocks(1.0, 1.0)
    nodes = node_precisions(model, "fp16")
    assert {node.rule for node in nodes if node.op_type == "MatMul"} == {"product", "output"}
    assert [node.precision for node in nodes if node.op_type == "Softmax"] == ["fp16"] * 2
    view = GraphView(apply_recipe(model, "fp16"))
    added = residual_adds(view.model)
    assert len(added) == 4
    assert all(view.types[name] == TensorProto.FLOAT for node in added for name in (*node.input, *node.output))


def test_a_product_of_two_wide_activations_is_in_float32() -> None:
    graph = GraphWriter("outer")
    x = graph.input("x", ("rows", 8, 8))
    moments = graph.op("MatMul", graph.op("Transpose", x, perm=[0, 2, 1]), x)
    graph.output("y", graph.op("MatMul", moments, graph.constant(np.eye(8), name="last")), ("rows", 8, 8))
    first = next(node for node in node_precisions(graph.model(), "fp16") if node.op_type == "MatMul")
    assert (first.precision, first.rule) == ("fp32", "wide")
    found = {node.precision for node in node_precisions(graph.model(), "bf16") if node.op_type == "MatMul"}
    assert "bf16" in found, "whose range is float32's"
