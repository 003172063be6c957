"""All graphs of a deployment, prepared, are graphs that TensorRT takes; what it does not take is found."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime as ort
import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT
from onnx import TensorProto, helper, numpy_helper
from simulator.plans import cache_graph

from engine_build.compile.rebuild_check import preparation_shapes
from engine_build.compile.verify import sample_inputs
from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.graph_view import attribute
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.reference_session import model_of
from engine_build.graphs.tensorrt_preparation import prepare_model, prepared
from engine_build.graphs.tensorrt_rules import RULES, doubts, oversized, problems
from engine_build.request import load_request
from engine_build.specs.engine_spec import EngineSpec, input_shapes, sizes_at
from engine_build.specs.engine_specs import engine_specs
from runtime.engines.value_shapes import Values, value_shapes

OPSETS = range(9, 25)


def found_in(spec: EngineSpec, model: onnx.ModelProto) -> Iterator[str]:
    yield from (f"opset {item.version}" for item in model.opset_import if item.version not in OPSETS)
    for ranges in spec.ranges:
        values = value_shapes(model, input_shapes(spec, sizes_at(spec, ranges, 2)))
        yield from (*problems(model, values), *oversized(model, values))


def one_node(op: str, kind: int = TensorProto.FLOAT, **inputs: list[int]) -> onnx.ModelProto:
    """A node `n` with inputs of these shapes; names in capitals are constants."""
    constants = [
        numpy_helper.from_array(np.ones(shape, helper.tensor_dtype_to_np_dtype(kind)), name)
        for name, shape in inputs.items()
        if name.isupper()
    ]
    values = [helper.make_tensor_value_info(n, kind, shape) for n, shape in inputs.items() if not n.isupper()]
    y = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph([helper.make_node(op, list(inputs), ["y"], name="n")], "g", values, [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def values_of(model: onnx.ModelProto) -> Values:
    shapes = {item.name: tuple(dim.dim_value for dim in item.type.tensor_type.shape.dim) for item in model.graph.input}
    return value_shapes(model, shapes)


def best(count: int) -> onnx.ModelProto:
    """The `count` largest values."""
    graph = GraphWriter("best")
    largest, _ = graph.ops("TopK", 2, graph.input("x", (2, 8000)), graph.constant([count], "int64"))
    graph.output("y", largest, (2, count))
    return graph.model()


def integer_cache() -> onnx.ModelProto:
    graph = GraphWriter("cache", 24)
    past, new = graph.input("past", (2, 2, 8, 4), "int32"), graph.input("new", (2, 2, 1, 4), "int32")
    present = graph.op("TensorScatter", past, new, graph.input("write", (2,), "int64"), axis=-2)
    graph.output("present", present, (2, 2, 8, 4), "int32")
    return graph.model()


@pytest.mark.parametrize("bundle", ["demo", "tiny"])
def test_every_prepared_graph_is_taken(bundle: str, tmp_path: Path) -> None:
    more = {"conditions": True, "adapters": True, "planner": {"draft": True}}
    path = ROOT / "configs" / "demo.toml" if bundle == "demo" else tiny_deployment(tmp_path, **more)
    found = {}
    for spec in engine_specs(load_request(path)):
        found[spec.name] = list(found_in(spec, prepare_model(model_of(spec.graph), preparation_shapes(spec))))
    assert len(found) >= 25
    assert {name: refused for name, refused in found.items() if refused} == {}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ""),
        ({"mode": "circular"}, "mode circular"),
        ({"moved": True}, "its cache is not an input of the graph"),
        ({"axis": 1}, "expected a cache of 4 dimensions"),
        ({"rank": 3}, "expected a cache of 4 dimensions"),
        ({"capacity": "capacity"}, "capacity is dynamic"),
    ],
)
def test_a_cache_that_is_not_updated_in_place_is_found(changes: dict[str, Any], says: str) -> None:
    model = cache_graph(**changes)
    sizes = {"rows": 2, "capacity": 8}
    shapes = {
        item.name: tuple(sizes.get(dim.dim_param, dim.dim_value) for dim in item.type.tensor_type.shape.dim)
        for item in model.graph.input
    }
    found = list(problems(model, value_shapes(model, shapes)))
    assert len(found) == bool(says)
    assert all(says in text for text in found)


def test_attention_over_caches_of_its_own_is_found() -> None:
    graph = GraphWriter("attention", 24)
    heads = [graph.input(name, ("rows", 2, 4, 8)) for name in ("q", "k", "v")]
    past = [graph.input(name, ("rows", 2, 4, 8)) for name in ("past_k", "past_v")]
    outputs = graph.ops("Attention", 3, *heads, "", *past)
    graph.output("y", outputs[0], ("rows", 2, 4, 8))
    model = graph.model()
    found = list(problems(model, value_shapes(model, {item.name: (2, 2, 4, 8) for item in model.graph.input})))
    assert len(found) == 1
    assert "expected a mask alone" in found[0]


def attention(lengths: bool = False, **attributes: Any) -> onnx.ModelProto:
    graph = GraphWriter("attention", 24)
    heads = [graph.input(name, (2, 2, 4, 8)) for name in ("q", "k", "v")]
    more = ["", "", "", graph.input("lengths", (2,), "int64")] if lengths else []
    graph.output("y", graph.op("Attention", *heads, *more, **attributes), (2, 2, 4, 8))
    return graph.model()


def scattered(op: str, **attributes: Any) -> onnx.ModelProto:
    graph = GraphWriter("scattered", 24)
    x, places = graph.input("x", (2, 8), "int32"), graph.input("places", (2, 8), "int64")
    graph.output("y", graph.op(op, x, places, graph.input("new", (2, 8), "int32"), **attributes), (2, 8), "int32")
    return graph.model()


@pytest.mark.parametrize(
    ("model", "says", "targets"),
    [
        (attention(), "", ()),
        (attention(softcap=5.0), "softcap is not supported", ("tensorrt",)),
        (attention(softmax_precision=1), "softmax_precision is not supported", ("tensorrt",)),
        (attention(lengths=True), "is ignored", ("tensorrt", "tensorrt-rtx")),
        (best(3840), "", ()),
        (best(3841), "the 3841 largest, at most 3840", ("tensorrt",)),
        (one_node("CumSum", x=[2, 3], AXIS=[]), "", ()),
        (one_node("CumSum", x=[2, 3], axis=[]), "the axis 'axis' is computed", ("tensorrt",)),
    ],
)
def test_who_refuses_what(model: onnx.ModelProto, says: str, targets: tuple[str, ...]) -> None:
    for target in ("tensorrt", "tensorrt-rtx"):
        found = list(problems(model, values_of(model), target))
        assert len(found) == (target in targets)
        assert all(says in text for text in found)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (scattered("ScatterElements"), ""),
        (scattered("ScatterElements", reduction="add"), "reduces what it scatters"),
        (one_node("ConvTranspose", TensorProto.BFLOAT16, x=[1, 2, 8], W=[2, 3, 3]), "in BF16"),
        (one_node("ConvTranspose", TensorProto.FLOAT16, x=[1, 2, 8], W=[2, 3, 3]), ""),
        (integer_cache(), "a cache of integers"),
    ],
)
def test_what_only_tensorrt_rtx_refuses_is_a_doubt(model: onnx.ModelProto, says: str) -> None:
    values = values_of(model)
    found = list(doubts(model, values))
    assert len(found) == bool(says)
    assert all(says in text for text in found)
    assert list(problems(model, values)) == list(doubts(model, values, "tensorrt-rtx")) == []


def test_every_rule_has_its_evidence_and_a_target() -> None:
    assert all(rule.evidence and (rule.refused_by or rule.doubted_for) for rule in RULES)


@pytest.mark.parametrize(
    ("kind", "is_known"),
    [(TensorProto.INT8, True), (TensorProto.FLOAT8E4M3FN, True), (TensorProto.INT4, True),
     (TensorProto.FLOAT4E2M1, True), (TensorProto.UINT8, False)],
)  # fmt: skip
def test_quantized_types_are_in_the_table(kind: int, is_known: bool) -> None:
    node = helper.make_node("DequantizeLinear", ["x", "scale"], ["y"], "n")
    inputs = [helper.make_tensor_value_info("x", kind, [2, 16]), helper.make_tensor_value_info("scale", 1, [])]
    outputs = [helper.make_tensor_value_info("y", 1, [2, 16])]
    opsets = [helper.make_opsetid("", 23)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets)
    found = list(problems(model, {"x": ((2, 16), kind), "scale": ((), 1)}))
    assert len(found) == (not is_known)


def test_the_demo_codec_needs_to_be_prepared() -> None:
    """Kernels that are computed from constants: without preparation the builder refuses them."""
    specs = {spec.name: spec for spec in engine_specs(load_request(ROOT / "configs" / "demo.toml"))}
    assert any("kernel" in text for text in found_in(specs["codec_encode"], model_of(specs["codec_encode"].graph)))


def in_single(tensor: TensorProto) -> TensorProto:
    return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)


def with_doubles_as_floats(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as TensorRT's parser reads it: float64 as float32."""
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.DOUBLE:
            tensor.CopyFrom(in_single(tensor))
    for item in (item for node in model.graph.node for item in node.attribute):
        if item.name == "to" and item.i == TensorProto.DOUBLE:
            item.i = TensorProto.FLOAT
    return model


def test_doubles_may_become_floats() -> None:
    """The demo codec computes phases in float64, for any start frame."""
    specs = [
        spec for spec in engine_specs(load_request(ROOT / "configs" / "demo.toml")) if spec.kind.startswith("codec")
    ]
    doubles = 0
    for spec in specs:
        model = model_of(spec.graph)
        doubles += sum(tensor.data_type == TensorProto.DOUBLE for tensor in model.graph.initializer)
        feeds = next(sample_inputs(spec))
        if "start_frame" in feeds:
            feeds["start_frame"][:] = 123_456_789
        exact = ort.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
        single = with_doubles_as_floats(prepare_model(model, preparation_shapes(spec)))
        found = ort.InferenceSession(single.SerializeToString()).run(None, feeds)[0]
        assert np.abs(found - exact).max() <= 1e-5 * np.abs(exact).max()
    assert doubles > 0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (one_node("Unique", x=[2]), "does not support this operator"),
        (one_node("Softmax", TensorProto.INT64, x=[2]), "data of type INT64, TensorRT takes BF16, FP16, FP32"),
        (one_node("Neg", x=[2]), None),
        (one_node("Squeeze", TensorProto.INT64, x=[1, 2], axes=[1]), "the axes 'axes' are computed"),
        (one_node("Squeeze", TensorProto.INT64, x=[2, 1], AXES=[1]), None),
        (one_node("Range", TensorProto.INT64, START=[1], limit=[], DELTA=[]), "input 0 has shape [1]"),
        (one_node("Range", TensorProto.INT64, START=[], limit=[1], DELTA=[]), "input 1 has shape [1]"),
        (one_node("Range", TensorProto.INT64, START=[], limit=[], DELTA=[]), None),
        (one_node("Conv", x=[1, 2, 8], w=[3, 2, 3]), "kernel or bias 'w' is computed"),
        (one_node("Conv", x=[1, 2, 8], W=[3, 2, 3]), None),
        (one_node("Conv", x=[1, 2, 8], W=[3, 2, 3], b=[3]), "kernel or bias 'b' is computed"),
        (one_node("ConvTranspose", x=[1, 2, 8], w=[2, 3, 3]), "kernel or bias 'w' is computed"),
    ],
)
def test_what_the_parser_refuses_is_found(model: onnx.ModelProto, says: str | None) -> None:
    found = list(problems(model, values_of(model)))
    assert not found if says is None else len(found) == 1 and f"node 'n' ({model.graph.node[0].op_type})" in found[0]
    assert says is None or says in found[0]


@pytest.mark.parametrize(("rows", "is_refused"), [(8, False), (14, False), (15, True), (16, True)])
def test_scores_of_attention_have_less_than_two_to_the_31_elements(rows: int, is_refused: bool) -> None:
    """240 s at 25 Hz in patches of two frames, 16 heads: 15 rows are too many."""
    model = one_node("MatMul", q=[rows, 16, 3000, 128], k=[rows, 16, 128, 3000])
    found = list(oversized(model, values_of(model)))
    assert bool(found) == is_refused
    assert not is_refused or f"{rows} x 16 x 3000 x 3000" in found[0]


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
