"""Prepared graphs compute what they computed before, in forms that TensorRT takes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.paths import ROOT
from onnx import TensorProto, helper, numpy_helper

from engine_build.compile.rebuild_check import preparation_shapes
from engine_build.compile.verify import sample_inputs
from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.graph_view import attribute
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.tensorrt_preparation import prepare_model, prepared
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec
from engine_build.specs.engine_specs import engine_specs


@pytest.fixture(scope="module")
def specs() -> dict[str, EngineSpec]:
    return {spec.name: spec for spec in engine_specs(load_request(ROOT / "configs" / "demo.toml"))}


@pytest.fixture(scope="module")
def decoder(specs: dict[str, EngineSpec]) -> onnx.ModelProto:
    """The demo's decoder, prepared."""
    return prepare_model(model_of(specs["decoder"].graph), preparation_shapes(specs["decoder"]))


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))


@pytest.mark.parametrize("name", ["decoder", "codec_decode", "codec_encode", "structure_decode"])
def test_the_demo_computes_the_same(specs: dict[str, EngineSpec], decoder: onnx.ModelProto, name: str) -> None:
    spec = specs[name]
    model = model_of(spec.graph)
    made = decoder if name == "decoder" else prepare_model(model_of(spec.graph), preparation_shapes(spec))
    assert len(made.graph.node) < len(model.graph.node) or name == "structure_decode"
    for feeds in islice(sample_inputs(spec), 2):
        for found, expected in zip(run(made, feeds), run(model, feeds), strict=True):
            np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())


def test_the_keys_of_every_attention_are_transposed_by_one_node(
    specs: dict[str, EngineSpec], decoder: onnx.ModelProto
) -> None:
    def swaps(model: onnx.ModelProto) -> int:
        return sum(node.op_type == "Transpose" and attribute(node, "perm") == [0, 1, 3, 2] for node in model.graph.node)

    model = model_of(specs["decoder"].graph)
    attentions = sum(node.op_type == "Softmax" for node in model.graph.node)
    assert (swaps(model), swaps(decoder)) == (0, attentions)


def key_graph(result: list[int]) -> onnx.ModelProto:
    """`[rows, 2, frames, 3]` in two reshapes and a transposition to `[rows, ...result]`."""
    graph = GraphWriter("keys")
    x = graph.input("x", ("rows", 2, "frames", 3))
    flat = graph.op("Reshape", x, graph.constant([-1, 4, 3], np.int64))
    swapped = graph.op("Transpose", flat, perm=[0, 2, 1])
    graph.output("y", graph.op("Reshape", swapped, graph.constant([-1, *result], np.int64)), ("rows", "a", "b", "c"))
    return graph.model()


@pytest.mark.parametrize(
    ("result", "rows", "is_swap"),
    [([2, 3, 4], 5, True), ([3, 2, 4], 5, False), ([4, 2, 3], 5, False), ([2, 3, 4], 2, False)],
)
def test_only_a_swap_of_the_last_two_axes_becomes_one_node(result: list[int], rows: int, is_swap: bool) -> None:
    """With as many rows as heads the sizes do not show which is which: nothing changes."""
    model = key_graph(result)
    made = prepare_model(key_graph(result), [{"x": (rows, 2, 4, 3)}])
    assert len(made.graph.node) == (1 if is_swap else 3)
    feeds = {"x": np.arange(rows * 24, dtype=np.float32).reshape(rows, 2, 4, 3)}
    np.testing.assert_array_equal(run(made, feeds)[0], run(model, feeds)[0])


def test_constants_are_computed_and_what_nothing_reads_is_removed() -> None:
    graph = GraphWriter("kernel")
    x = graph.input("x", (1, 2, "frames"))
    window = graph.op("Cos", graph.constant(np.linspace(-1, 1, 3)))
    kernel = graph.op("Mul", graph.constant(np.ones((4, 2, 3))), window)
    graph.output("y", graph.op("Conv", x, kernel, kernel_shape=[3]), (1, 4, "out"))
    model = graph.model()
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 9)).astype(np.float32)}
    expected = run(model, feeds)[0]
    made = prepare_model(model, [{"x": (1, 2, 9)}])
    assert [node.op_type for node in made.graph.node] == ["Conv"]
    assert len(made.graph.initializer) == 1
    np.testing.assert_allclose(run(made, feeds)[0], expected, atol=1e-6)


def test_arguments_of_range_become_scalars() -> None:
    graph = GraphWriter("range")
    limit = graph.op("Squeeze", graph.op("Shape", graph.input("x", ("frames",))))
    start, delta = (graph.constant([value], np.int64) for value in (0, 1))
    graph.output("y", graph.op("Range", start, limit, delta), ("frames",), np.int64)
    made = prepare_model(graph.model(), [{"x": (5,)}])
    assert {tuple(tensor.dims) for tensor in made.graph.initializer} == {()}
    np.testing.assert_array_equal(run(made, {"x": np.zeros(5, np.float32)})[0], np.arange(5))


def test_external_weights_are_left_where_they_are(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(64, dtype=np.float32), "weight")
    nodes = [helper.make_node("Neg", ["weight"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], [weight]), opset_imports=[helper.make_opsetid("", 20)]
    )
    path = tmp_path / "g.onnx"
    onnx.save(model, path, save_as_external_data=True, location="g.data", size_threshold=0)
    origin = read_graph(path)
    made = prepared(origin, [{"x": (2, 64)}])
    assert (made.has_data_files, made.folder) == (True, tmp_path)
    assert [node.op_type for node in model_of(made).graph.node] == ["Neg", "MatMul"]
    assert prepared(made, [{"x": (2, 64)}]).folder == tmp_path


@pytest.mark.parametrize("is_computed", [True, False])
def test_truths_are_compared_without_equal(is_computed: bool) -> None:
    """TensorRT's Equal takes no BOOL; that of numbers stays."""
    graph = GraphWriter("floor")
    x, y = (graph.input(name, ("n",)) for name in "xy")
    signs = graph.op("Less", x, graph.constant(0.0))
    others = graph.op("Less", y, graph.constant(0.0)) if is_computed else graph.constant(True, np.bool_)
    graph.output("same", graph.op("Equal", signs, others), ("n",), np.bool_)
    graph.output("equal", graph.op("Equal", x, y), ("n",), np.bool_)
    made = prepare_model(graph.model(), [{"x": (4,), "y": (4,)}])
    assert sorted(node.op_type for node in made.graph.node if node.op_type != "Less") == ["Equal", "Not", "Xor"]
    feeds = {"x": np.array([-1, -1, 1, 1], np.float32), "y": np.array([-1, 1, -1, 1], np.float32)}
    for found, expected in zip(run(made, feeds), run(graph.model(), feeds), strict=True):
        np.testing.assert_array_equal(found, expected)
