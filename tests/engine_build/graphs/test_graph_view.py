"""Floating-point operations, counted by hand; types without weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.adapters import deltas, merged, random_factors
from helpers.factories import tiny_bundle
from helpers.graph_engine import GraphEngine
from helpers.paths import ROOT
from onnx import TensorProto, helper, numpy_helper
from onnx.checker import ValidationError

from engine_build.graphs.adapter_graph import adapter_graph, linear_matrices
from engine_build.graphs.graph_view import (
    LARGEST_CONSTANT,
    GraphView,
    Matcher,
    is_small,
    node_flops,
    op,
    product_values,
    with_weights_as_inputs,
)
from engine_build.graphs.graph_writer import GraphWriter
from runtime.base.errors import ConfigError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.decoder import AdapterMatrix, AdapterSpec

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


NODES = [
    helper.make_node("Mul", ["a", "two"], ["double"]),
    helper.make_node("Add", ["double", "b"], ["sum"]),
    helper.make_node("Transpose", ["sum"], ["turned"], perm=[1, 0]),
    helper.make_node("Sub", ["turned", "double"], ["difference"]),
    helper.make_node("Mul", ["double", "double"], ["square"]),
    helper.make_node("Slice", ["square", "axes", "two"], ["part"]),
    helper.make_node("Gemm", ["a", "b"], ["product"], alpha=2.0, transB=1),
]
CONSTANTS = [
    numpy_helper.from_array(np.array(2.0, np.float32), "two"),
    numpy_helper.from_array(np.array([0, 2]), "axes"),
    numpy_helper.from_array(np.zeros(LARGEST_CONSTANT + 1), "weight"),
]


@pytest.fixture
def matcher() -> Matcher:
    return Matcher(NODES, CONSTANTS)


@pytest.mark.parametrize(
    ("pattern", "value", "found"),
    [
        (op("Mul", "x", 2.0), "double", {"x": "a"}),
        (op("Mul", 2, "x"), "double", {"x": "a"}),
        (op("Add", "y", op("Mul", "x", 2.0)), "sum", {"x": "a", "y": "b"}),
        (op("Mul", "x", "x"), "square", {"x": "double"}),
        (op("Sub", "x", "y"), "difference", {"x": "turned", "y": "double"}),
        (op("Sub", op("Transpose", op("Add", "x", "y")), "x"), "difference", {"x": "double", "y": "b"}),
        (op("Transpose", "x", perm=[1, 0]), "turned", {"x": "sum"}),
        (op("Transpose", op("Add", "x", "y").named("z")), "turned", {"x": "double", "y": "b", "z": "sum"}),
        (op("Slice", "x", (0, 2), 2.0), "part", {"x": "square"}),
        (op("Slice", "x"), "part", {"x": "square"}),
        (op("Gemm", "x", "y", alpha=2.0, transB=1), "product", {"x": "a", "y": "b"}),
        ([op("Sub", "x", "y"), op("Slice", "x", "y")], "part", {"x": "square", "y": "axes"}),
    ],
)
def test_fits(matcher: Matcher, pattern: Any, value: str, found: dict[str, str]) -> None:
    assert matcher.find(pattern, value) == found


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (op("Mul", "x", 3.0), "double"),
        (op("Mul", "x", "x"), "double"),
        (op("Sub", op("Mul", "x", 2.0), "y"), "difference"),
        (op("Sub", op("Transpose", "x", perm=[0, 1]), "y"), "difference"),
        (op("Slice", "x", (0, 1), 2.0), "part"),
        (op("Slice", "x", (0, 2), 2.0, "steps"), "part"),
        (op("Mul", "x", "y"), "a"),
        (op("Gemm", "x", "y", alpha=2.0, transB=0), "product"),
        ([], "double"),
    ],
)
def test_does_not_fit(matcher: Matcher, pattern: Any, value: str) -> None:
    assert matcher.find(pattern, value) is None


def test_added_nodes_replace_those_that_make_the_same_value(matcher: Matcher) -> None:
    matcher.add([helper.make_node("Neg", ["c"], ["double"])])
    assert matcher.find(op("Add", op("Neg", "x"), "b"), "sum") == {"x": "c", "b": "b"}
    assert matcher.producer("double").op_type == "Neg"  # type: ignore[union-attr]


def test_equal_constants_are_stored_once() -> None:
    graph = GraphWriter("constants")
    x = graph.input("x", ("n",))
    same = [graph.constant(1.0), graph.constant(1.0), graph.constant(np.float32(1))]
    others = [graph.constant(1, np.int64), graph.constant([1.0]), graph.constant(1.0, name="weight")]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 4
    graph.output("y", graph.op("Add", x, same[0]), ("n",))
    assert len(graph.model().graph.initializer) == 4


def test_an_output_renames_its_value_everywhere() -> None:
    graph = GraphWriter("outputs")
    x = graph.input("x", (2,))
    doubled = graph.op("Add", x, x)
    shifted = graph.op("Add", doubled, graph.constant(1.0))
    graph.output("doubled", doubled, (2,))
    graph.output("shifted", shifted, (2,))
    graph.output("same", x, (2,))
    graph.output("again", "doubled", (2,))
    model = graph.model()
    results = ort.InferenceSession(model.SerializeToString()).run(None, {"x": np.float32([1, 2])})
    np.testing.assert_array_equal(results, [[2, 4], [3, 5], [1, 2], [2, 4]])
    assert [node.op_type for node in model.graph.node] == ["Add", "Add", "Identity", "Identity"]


def test_an_invalid_graph_is_refused() -> None:
    graph = GraphWriter("wrong")
    graph.output("y", graph.op("Add", graph.input("x", ("n",)), "nowhere"), ("n",))
    with pytest.raises(ValidationError, match="nowhere"):
        graph.model()


R, T, L = 3, 6, 4


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return load_bundle(tiny_bundle(tmp_path / "tiny", adapters=True))


def feeds(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    shapes = {"hidden_states": (R, T, 8), "encoder_hidden_states": (R, L, 12), "context_latents": (R, T, 16)}
    values = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**values, "timestep": np.linspace(0.1, 0.9, R, dtype=np.float32), "condition_mask": np.ones((R, L), "f4")}


def packed(spec: AdapterSpec, factors: list[dict[str, Any]]) -> dict[str, Any]:
    """The factors of adapters, each of rank 4, below each other."""
    a = [np.concatenate([one[f"{path}.lora_A.weight"] for path in spec.matrices], 1) for one in factors]
    b = [np.concatenate([one[f"{path}.lora_B.weight"].T for path in spec.matrices], 1) for one in factors]
    return {"adapter_a": np.concatenate(a), "adapter_b": np.concatenate(b)}


def run(model: onnx.ModelProto, inputs: dict[str, Any]) -> Any:
    return GraphEngine(model).run(inputs)["velocity"]


def test_each_row_has_the_velocity_of_its_own_merged_weights(bundle: Bundle) -> None:
    spec = bundle.adapters
    assert spec is not None
    factors = [random_factors(spec, 4, seed=seed) for seed in (1, 2)]
    strengths = [(0.0, 0.0), (0.7, 0.0), (1.0, -0.5)]
    weights = np.repeat(np.array(strengths, np.float32), 4, axis=1)
    model = adapter_graph(onnx.load(bundle.graph_path("decoder.onnx")), spec, "hidden_states")
    onnx.checker.check_model(model, full_check=True)
    found = run(model, {**feeds(), **packed(spec, factors), "adapter_weights": weights})
    for row, pair in enumerate(strengths):
        changes = [(strength, deltas(one, 1.0)) for strength, one in zip(pair, factors, strict=True)]
        np.testing.assert_allclose(found[row], run(merged(bundle.folder, changes), feeds())[row], atol=1e-5)
    assert np.abs(found[1] - found[0]).max() > 0.05


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (AdapterMatrix(weight="nowhere", inputs=8, outputs=16), "no initializer 'nowhere'"),
        (AdapterMatrix(weight="w_in", inputs=8, outputs=17), r"is .*17.*the graph has .*16"),
    ],
)
def test_matrices_that_the_graph_does_not_have_are_refused(matrix: Any, message: str, bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match=message):
        adapter_graph(
            onnx.load(bundle.graph_path("decoder.onnx")), AdapterSpec(matrices={"a": matrix}), "hidden_states"
        )


def test_the_matrices_of_an_exported_decoder_are_its_linear_layers() -> None:
    model = onnx.load(ROOT / "configs/demo/decoder.onnx")
    found = linear_matrices(model)
    names = ("to_q", "to_k", "to_v", "to_out.0")
    attention = [f"layers.{n}.{kind}_attn.{name}" for n in range(4) for kind in ("self", "cross") for name in names]
    mlp = [f"layers.{n}.mlp.{name}_proj" for n in range(4) for name in ("gate", "up", "down")]
    assert {*attention, *mlp, "condition_embedder", "time_embed.time_proj"} <= found.keys()
    assert found["layers.0.self_attn.to_k"].model_dump(exclude={"weight"}) == {"inputs": 256, "outputs": 128}
    adapter_graph(model, AdapterSpec(matrices=found), "hidden_states")


@pytest.mark.parametrize("rows", ["rows", 3])
def test_rows_have_weights_as_many_as_the_decoder_takes(rows: Any, bundle: Bundle) -> None:
    assert bundle.adapters is not None
    model = onnx.load(bundle.graph_path("decoder.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        setattr(dim, "dim_param" if isinstance(rows, str) else "dim_value", rows)
    changed = adapter_graph(model, bundle.adapters, "hidden_states")
    (weights,) = (value for value in changed.graph.input if value.name == "adapter_weights")
    dim = weights.type.tensor_type.shape.dim[0]
    assert (dim.dim_param or dim.dim_value) == rows
