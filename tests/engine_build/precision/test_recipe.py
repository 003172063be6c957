"""Precision recipes: which nodes run in 16 bits, and that the result is a valid graph."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import TinySpec, tiny_decoder
from helpers.paths import ROOT
from onnx import TensorProto, helper, numpy_helper

from engine_build.graphs.graph_file import read_graph
from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.plain_graph import plain
from engine_build.precision.node_rules import NODE_RULES, PRODUCTS
from engine_build.precision.recipe import (
    RECIPES,
    RecipeName,
    apply_recipe,
    changes_anything,
    node_precisions,
    without_kernel,
    write_recipe,
)
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


def test_explain_agrees_with_the_rewritten_graph() -> None:
    result = apply_recipe(decoder("demo"), "bf16")
    view = GraphView(result)
    tables = [node for node in view.nodes if any("scale_shift_table" in name for name in node.input)]
    assert len(tables) == 5
    for node in tables:
        assert tensor_types(result, node, view) == {TensorProto.FLOAT}


def test_every_product_of_the_trunk_is_low() -> None:
    """All 61 MatMuls of the demo decoder: projections, attention, feed-forward."""
    result = apply_recipe(decoder("demo"), "bf16")
    view = GraphView(result)
    products = [node for node in view.nodes if node.op_type == "MatMul"]
    assert len(products) == 61
    assert all(tensor_types(result, node, view) == {TensorProto.BFLOAT16} for node in products)


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
