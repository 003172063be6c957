"""Precision recipes: which nodes run in 16 bits, and that the result is a valid graph."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import TinySpec, tiny_decoder
from helpers.paths import DEMO_BUNDLE, ROOT
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from engine_build.config import EIGHT_BITS
from engine_build.graphs.graph_file import graph_of, read_graph
from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.plain_graph import plain
from engine_build.precision.casts import DATA_ALIGNMENT_BYTES, FileWeights, InlineWeights, Rewriter
from engine_build.precision.error import recipe_error
from engine_build.precision.node_rules import NODE_RULES, PRODUCTS
from engine_build.precision.normalize import normalized, raised, widened
from engine_build.precision.recipe import (
    RECIPES,
    RecipeName,
    apply_recipe,
    changes_anything,
    node_precisions,
    normalized_graph,
    without_kernel,
    write_recipe,
)
from engine_build.precision.sensitivity import quantization_of
from engine_build.precision.wide_values import in_range
from runtime.base.errors import BuildError

FILES = {"demo": ROOT / "configs/demo/decoder.onnx", "parity": ROOT / "tests/data/tick_parity/decoder.onnx"}
SCOPES = "pkg.torch.onnx.name_scopes"


def decoder(name: str) -> onnx.ModelProto:
    return tiny_decoder(TinySpec()) if name == "tiny" else onnx.load(FILES[name])


def tensor_types(model: onnx.ModelProto, node: onnx.NodeProto, view: GraphView) -> set[int]:
    return {view.types[name] for name in (*node.input, *node.output) if name and view.is_float(name)}


@pytest.fixture(scope="module", params=["demo", "parity", "tiny"])
def source(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return decoder(request.param)


@pytest.fixture(scope="module")
def applied(source: onnx.ModelProto) -> Callable[[RecipeName], onnx.ModelProto]:
    """`applied("bf16")`: the source with a recipe, rewritten once."""
    return cache(lambda recipe: apply_recipe(source, recipe))


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_every_operator_gets_one_floating_point_type(
    applied: Callable[[RecipeName], onnx.ModelProto], recipe: RecipeName
) -> None:
    result = applied(recipe)
    onnx.checker.check_model(result, full_check=True)
    view = GraphView(result)
    mixed = [node.name for node in view.nodes if node.op_type != "Cast" and len(tensor_types(result, node, view)) > 1]
    assert mixed == []
    used = {kind for node in view.nodes for kind in tensor_types(result, node, view)}
    assert used == {TensorProto.FLOAT, RECIPES[recipe].kind}


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "bf16"])
def test_inputs_and_outputs_stay_as_they_are(
    source: onnx.ModelProto, applied: Callable[[RecipeName], onnx.ModelProto], recipe: RecipeName
) -> None:
    result = applied(recipe)
    assert list(result.graph.input) == list(source.graph.input)
    assert list(result.graph.output) == list(source.graph.output)


def test_fp32_changes_nothing(source: onnx.ModelProto, applied: Callable[[RecipeName], onnx.ModelProto]) -> None:
    assert applied("fp32") == source


def test_the_source_is_not_touched(source: onnx.ModelProto) -> None:
    before = source.SerializeToString(deterministic=True)
    apply_recipe(source, "bf16")
    assert source.SerializeToString(deterministic=True) == before


def test_a_recipe_gives_the_same_graph_every_time(
    source: onnx.ModelProto, applied: Callable[[RecipeName], onnx.ModelProto]
) -> None:
    models = applied("bf16"), apply_recipe(source, "bf16")
    first, second = (model.SerializeToString(deterministic=True) for model in models)
    assert first == second


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_no_cast_is_made_twice_or_undone(applied: Callable[[RecipeName], onnx.ModelProto], recipe: RecipeName) -> None:
    result = applied(recipe)
    casts = [node for node in result.graph.node if node.op_type == "Cast" and node.name.startswith("cast/")]
    assert casts
    assert max(Counter((node.input[0], node.attribute[0].i) for node in casts).values()) == 1
    made = {node.output[0] for node in casts}
    assert not [node.name for node in casts if node.input[0] in made]


def test_norms_time_embedding_and_output_are_in_full_precision() -> None:
    """By the module names of the exporter, which the recipe does not use."""
    result = apply_recipe(decoder("demo"), "bf16")
    view = GraphView(result)
    checked = Counter[str]()
    for node in view.nodes:
        module = _module(node)
        for module_part in ("time_embed", "norm", "proj_out_conv"):
            if module_part in module and node.op_type != "Cast" and tensor_types(result, node, view):
                checked[module_part] += 1
                assert tensor_types(result, node, view) == {TensorProto.FLOAT}, (module, node.op_type)
    assert checked["time_embed"] > 20
    assert checked["norm"] == 6 * 29
    assert checked["proj_out_conv"] == 1


def test_weights_are_stored_as_they_are_used() -> None:
    source = decoder("demo")
    result = apply_recipe(source, "bf16")
    kinds = {tensor.name: tensor.data_type for tensor in result.graph.initializer}
    for node in result.graph.node:
        if node.op_type == "MatMul" and node.input[1] in kinds:
            assert kinds[node.input[1]] == TensorProto.BFLOAT16
    used = {name for node in result.graph.node for name in node.input}
    assert set(kinds) <= used
    assert result.ByteSize() < 0.7 * source.ByteSize()


def test_attention_is_scaled_before_it_is_rounded() -> None:
    result = apply_recipe(decoder("demo"), "bf16")
    view = GraphView(result)
    scale = next(name for name, tensor in view.initializers.items() if _is_scale(tensor))
    scaled = [node for node in view.nodes if scale in node.input]
    assert len(scaled) == 16
    for node in scaled:
        maker = view.producer(node.input[0])
        assert maker is not None
        assert maker.op_type in ("Add", "Mul"), "rotation or the norm's weight, not a transposition"
        assert tensor_types(result, node, view) == {TensorProto.FLOAT}


@pytest.mark.parametrize("name", ["demo", "parity"])
@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_masks_stay_finite(name: str, recipe: str) -> None:
    limit = float(np.finfo(np.float32).max)
    source, result = decoder(name), apply_recipe(decoder(name), recipe)
    assert max(_largest(source)) == limit, "this test has nothing to find"
    assert max(_largest(result)) <= RECIPES[recipe].mask_limit
    low = helper.tensor_dtype_to_np_dtype(RECIPES[recipe].kind)
    assert np.isfinite(np.float32(2 * RECIPES[recipe].mask_limit * 0.99).astype(low).astype(np.float32))


def test_a_weight_that_does_not_fit_is_refused() -> None:
    graph = GraphWriter("big")
    x = graph.input("x", ("rows", "frames", 4))
    hidden = graph.op("MatMul", x, graph.constant(np.full((4, 4), 1e5), name="huge"))
    graph.output("y", graph.op("MatMul", hidden, graph.constant(np.eye(4), name="last")), ("rows", "frames", 4))
    assert apply_recipe(graph.model(), "bf16")
    with pytest.raises(BuildError, match="'huge' has values up to 1e\\+05: out of fp16's range") as raised:
        apply_recipe(graph.model(), "fp16")
    assert "bf16" in raised.value.fix


def test_a_graph_that_is_not_fp32_is_refused() -> None:
    with pytest.raises(BuildError, match="the graph has bfloat16 tensors"):
        apply_recipe(apply_recipe(decoder("tiny"), "bf16"), "bf16")


def test_a_function_of_another_opset_is_refused_by_name() -> None:
    """Pad of opset 11 has no axes: it cannot be inlined into opset 20, and a recipe does not see into it."""
    padded = helper.make_node("Pad", ["x", "pads"], ["y"])
    function = helper.make_function("own", "Padded", ["x", "pads"], ["y"], [padded], [helper.make_opsetid("", 11)])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ("rows", 4)) for name in "xy")
    pads = helper.make_tensor("pads", TensorProto.INT64, [4], [0, 0, 0, 0])
    call = helper.make_node("Padded", ["x", "pads"], ["y"], domain="own")
    graph = helper.make_graph([call], "model", [x], [y], [pads])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    model = plain(helper.make_model(graph, opset_imports=opsets, functions=[function]))
    with pytest.raises(BuildError, match="the graph's function 'Padded' has operators of another opset"):
        apply_recipe(model, "bf16")


def test_an_output_from_the_trunk_is_widened() -> None:
    graph = GraphWriter("softmax_last")
    x = graph.input("x", ("rows", "frames", 4))
    graph.output("y", graph.op("Softmax", graph.op("MatMul", x, graph.constant(np.eye(4))), axis=-1), ("rows", 4, 4))
    result = apply_recipe(graph.model(), "bf16")
    onnx.checker.check_model(result, full_check=True)
    last = result.graph.node[-1]
    assert (last.op_type, list(last.output)) == ("Cast", ["y"])


def test_operators_without_a_kernel_stay_exact() -> None:
    assert "Conv" in without_kernel("cuda", "bf16")
    assert without_kernel("cuda", "fp16") == without_kernel("tensorrt", "fp16") == frozenset()
    assert "ConvTranspose" in without_kernel("tensorrt", "bf16") == without_kernel("tensorrt-rtx", "bf16")
    plain = {node.name: node for node in node_precisions(decoder("parity"), "fp16")}
    kept = {node.name: node for node in node_precisions(decoder("parity"), "fp16", without={"Conv"})}
    changed = {name for name in plain if plain[name].precision != kept[name].precision}
    assert {kept[name].op_type for name in changed} <= {"Conv", "Transpose", "Add", "Concat"}
    assert [kept[name].rule for name in changed if kept[name].op_type == "Conv"] == ["no kernel"]


@pytest.mark.parametrize(("opset", "expected"), [(20, ("bf16", "product")), (19, ("fp32", "no kernel"))])
def test_convolutions_are_bf16_where_the_graph_can_be_raised_to_opset_22(opset: int, expected: tuple[str, str]) -> None:
    model = decoder("parity")
    model.opset_import[0].version = opset
    (conv,) = [node for node in node_precisions(model, "bf16") if node.op_type == "Conv"]
    assert (conv.precision, conv.rule) == expected
    onnx.checker.check_model(apply_recipe(model, "bf16"), full_check=True)


@pytest.mark.parametrize("recipe", ["fp16", "bf16", "int8"])
def test_a_recipe_that_changes_nothing_is_seen(recipe: RecipeName) -> None:
    graph = GraphWriter("sums")
    x = graph.input("x", ("rows", 4))
    graph.output("y", graph.op("Add", x, x), ("rows", 4))
    assert not changes_anything(apply_recipe(graph.model(), recipe), recipe)
    assert changes_anything(apply_recipe(decoder("demo"), recipe), recipe)


def test_every_node_has_a_reason(source: onnx.ModelProto) -> None:
    nodes = node_precisions(source, "bf16")
    assert len(nodes) == len(source.graph.node)
    assert {node.rule for node in nodes} <= set(NODE_RULES)
    assert all(node.reason == NODE_RULES[node.rule].reason for node in nodes)
    assert {node.precision for node in nodes} == {"fp32", "bf16", "index"} - (set() if _has_index(nodes) else {"index"})
    assert all(node.precision == "bf16" for node in nodes if node.rule == "product")
    assert {node.op_type for node in nodes if node.rule == "product"} <= PRODUCTS


def test_explain_agrees_with_apply_recipe() -> None:
    result = apply_recipe(decoder("demo"), "bf16")
    view = GraphView(result)
    explained = {
        node.name: node.precision for node in node_precisions(decoder("demo"), "bf16") if node.precision != "index"
    }
    kinds = {"fp32": TensorProto.FLOAT, "bf16": TensorProto.BFLOAT16}
    done = {node.name: tensor_types(result, node, view) for node in view.nodes if node.name in explained}
    assert len(done) == len(explained)
    assert all(done[name] == {kinds[precision]} for name, precision in explained.items())


@pytest.mark.parametrize("recipe", ["fp32", "fp16", "bf16"])
def test_external_weights_stay_external(tmp_path: Path, recipe: str) -> None:
    source = tmp_path / "source" / "decoder.onnx"
    source.parent.mkdir()
    onnx.save(decoder("demo"), source, save_as_external_data=True, location="decoder.bin", size_threshold=1024)
    target = tmp_path / "decoder.onnx"
    write_recipe(read_graph(source), target, recipe)
    onnx.checker.check_model(str(target), full_check=True)
    assert target.stat().st_size < (tmp_path / "decoder.onnx.data").stat().st_size
    found = {tensor.name: tensor for tensor in onnx.load(target).graph.initializer}
    expected = {tensor.name: tensor for tensor in apply_recipe(decoder("demo"), recipe).graph.initializer}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].data_type == tensor.data_type
        np.testing.assert_array_equal(numpy_helper.to_array(found[name]), numpy_helper.to_array(tensor))


def test_one_weight_at_a_time_is_in_memory(tmp_path: Path) -> None:
    count, size = 16, 512
    graph = GraphWriter("wide")
    value = graph.input("x", ("rows", "frames", size))
    random = np.random.default_rng(0)
    for index in range(count):
        value = graph.op("MatMul", value, graph.constant(random.standard_normal((size, size)), name=f"w{index}"))
    graph.output("y", value, ("rows", "frames", size))
    source = tmp_path / "wide.onnx"
    onnx.save(graph.model(), source, save_as_external_data=True, location="wide.bin", size_threshold=1024)
    tracemalloc.start()
    write_recipe(read_graph(source), tmp_path / "low.onnx", "bf16")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one = size * size * 4
    assert peak < 4 * one < count * one


def _module(node: onnx.NodeProto) -> str:
    scopes = [item.value for item in node.metadata_props if item.key == SCOPES]
    return scopes[0].split("'")[-4] if scopes and scopes[0].count("'") >= 4 else ""


def _is_scale(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type != TensorProto.FLOAT or list(tensor.dims) != []:
        return False
    return bool(np.isclose(numpy_helper.to_array(tensor), 64**-0.25, rtol=1e-5))


def _largest(model: onnx.ModelProto) -> list[float]:
    floats = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    return [float(np.abs(array.astype(np.float64)).max()) for array in floats if array.dtype.kind not in "ib"]


def _has_index(nodes: tuple[object, ...]) -> bool:
    return any(getattr(node, "rule", "") == "index" for node in nodes)


def two_products(weight: float = 1.0) -> onnx.ModelProto:
    graph = GraphWriter("two")
    x = graph.input("x", ("rows", 4))
    shared = graph.constant(weight * np.eye(4), name="w")
    graph.output("y", graph.op("MatMul", graph.op("MatMul", x, shared), shared), ("rows", 4))
    return graph.model()


def rewritten(model: onnx.ModelProto, *rules: str) -> onnx.ModelProto:
    chosen = [NODE_RULES[name] for name in rules]
    result = Rewriter(GraphView(model), chosen, TensorProto.FLOAT16, "fp16", InlineWeights()).rewrite()
    onnx.checker.check_model(result, full_check=True)
    return result


def test_values_are_cast_where_precisions_differ() -> None:
    result = rewritten(two_products(), "product", "output")
    assert [node.op_type for node in result.graph.node] == ["Cast", "MatMul", "Cast", "MatMul"]
    kinds = {tensor.name: tensor.data_type for tensor in result.graph.initializer}
    assert kinds == {"w.fp16": TensorProto.FLOAT16, "w": TensorProto.FLOAT}


def test_nothing_is_cast_between_nodes_of_one_precision() -> None:
    result = rewritten(two_products(), "product", "product")
    assert [node.op_type for node in result.graph.node] == ["Cast", "MatMul", "MatMul", "Cast"]
    assert [tensor.name for tensor in result.graph.initializer] == ["w.fp16"]
    assert result.graph.node[-1].output[0] == "y"


def test_a_size_is_read_of_the_value_that_there_is() -> None:
    graph = GraphWriter("size")
    product = graph.op("MatMul", graph.input("x", ("rows", 4)), graph.constant(np.eye(4), name="w"))
    graph.output("size", graph.op("Shape", product), (2,), np.int64)
    for rule, expected in (("product", ["Cast", "MatMul", "Shape"]), ("output", ["MatMul", "Shape"])):
        assert [node.op_type for node in rewritten(graph.model(), rule, "index").graph.node] == expected


def test_large_constants_go_into_an_aligned_file(tmp_path: Path) -> None:
    weights = FileWeights(tmp_path, tmp_path / "weights.data")
    arrays = {name: np.full((40, 16), value, np.float16) for name, value in (("a", 1), ("b", 2))}
    tensors = {name: weights.write(name, array) for name, array in arrays.items()}
    small = weights.write("small", np.float32([1, 2]))
    assert small.data_location != TensorProto.EXTERNAL
    for name, tensor in tensors.items():
        entries = {item.key: item.value for item in tensor.external_data}
        assert int(entries["offset"]) % DATA_ALIGNMENT_BYTES == 0
        np.testing.assert_array_equal(InlineWeights(tmp_path).read(tensor), arrays[name])


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


WIDTH, HEADS, FRAMES = 32, 2, 24
# As of the residual stream and the last projection of ACE-Step's lyric encoder; FLOAT16_END is float16's largest.
LARGEST, FLOAT16_END = 505_000.0, 65_504.0


class Block:
    """Writes blocks of a transformer: norms, attention with rotation, a gated product, sums into a stream."""

    def __init__(self, seed: int = 3, opset: int = 20) -> None:
        self.graph, self._random = GraphWriter("blocks", opset), np.random.default_rng(seed)

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


@pytest.mark.parametrize("end", ["is added", "is a result"])
def test_what_float16_does_not_hold_is_followed_to_where_it_ends(end: str) -> None:
    """A product's result, multiplied twice and added to the stream, or turned as a result of the graph."""
    block = Block(opset=24)
    graph = block.graph
    x = graph.input("x", ("rows", FRAMES, WIDTH))
    moved = block.product(block.norm(x), WIDTH, WIDTH, LARGEST)
    if end == "is added":
        for factor in (0.5, 2.0):
            moved = graph.op("Mul", moved, graph.constant(factor))
        moved = block.product(block.norm(graph.op("Add", x, moved)), WIDTH, WIDTH)
    else:
        tables = (graph.constant(np.full((FRAMES, WIDTH // HEADS // 2), value)) for value in (0.6, 0.8))
        places = graph.constant(np.tile(np.arange(FRAMES), (2, 1)), np.int64)
        moved = graph.op("RotaryEmbedding", moved, *tables, places, num_heads=HEADS)
    graph.output("y", moved, ("rows", FRAMES, WIDTH))
    assert max(recipe_error(graph_of(graph.model()), "fp16", feeds(), threads=1).rms_rel) < 4e-3


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
