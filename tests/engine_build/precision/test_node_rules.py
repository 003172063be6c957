"""Node rules match by structure, also in graphs of other exporters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from helpers.planner_session import off
from helpers.tiny_planner import CONFIG, VOCABULARY, reference_logits, tiny_weights
from numpy.typing import NDArray
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference import ReferenceEvaluator

from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.graphs.planner_graph import Qwen3Sizes, cache_names, planner_graph
from engine_build.precision.node_rules import CACHE_UPDATE
from engine_build.precision.recipe import RECIPES, RecipeName, apply_recipe, node_precisions
from runtime.config.planner import NO_WINDOW

Written = Callable[[GraphWriter, str], str]
EPSILON = 1e-6


def model_with(written: Written) -> onnx.ModelProto:
    """Product, the nodes under test, product, output projection."""
    graph = GraphWriter("model")
    x = graph.input("x", ("rows", "frames", 8))
    hidden = graph.op("MatMul", x, graph.constant(np.eye(8) * 2, name="first"))
    with graph.scope("tested"):
        hidden = written(graph, hidden)
    hidden = graph.op("MatMul", hidden, graph.constant(np.eye(8) * 3, name="second"))
    graph.output("y", graph.op("MatMul", hidden, graph.constant(np.eye(8), name="last")), ("rows", "frames", 8))
    return graph.model()


def rules(written: Written) -> dict[str, str]:
    return {
        node.name.removeprefix("tested/"): node.rule
        for node in node_precisions(model_with(written), "bf16")
        if node.name.startswith("tested/")
    }


def mean_square(graph: GraphWriter, x: str) -> str:
    squares = graph.op("Pow", x, graph.constant(2.0))
    mean = graph.op("ReduceMean", squares, graph.constant([-1], np.int64), keepdims=1)
    return graph.op("Sqrt", graph.op("Add", mean, graph.constant(EPSILON)))


def weight(graph: GraphWriter) -> str:
    return graph.constant(np.linspace(0.5, 1.5, 8), name="weight")


def divided(graph: GraphWriter, x: str) -> str:
    return graph.op("Mul", graph.op("Div", x, mean_square(graph, x)), weight(graph))


def by_reciprocal(graph: GraphWriter, x: str) -> str:
    return graph.op("Mul", graph.op("Mul", x, graph.op("Reciprocal", mean_square(graph, x))), weight(graph))


def by_power(graph: GraphWriter, x: str) -> str:
    squares = graph.op("Mul", x, x)
    mean = graph.op("ReduceMean", squares, graph.constant([-1], np.int64), keepdims=1)
    root = graph.op("Pow", graph.op("Add", mean, graph.constant(EPSILON)), graph.constant(0.5))
    return graph.op("Mul", graph.op("Div", x, root), weight(graph))


def centred(graph: GraphWriter, x: str) -> str:
    centre = graph.op("Sub", x, graph.op("ReduceMean", x, graph.constant([-1], np.int64), keepdims=1))
    scaled = graph.op("Mul", graph.op("Div", centre, mean_square(graph, centre)), weight(graph))
    return graph.op("Add", scaled, graph.constant(np.linspace(0, 1, 8), name="bias"))


def fused(graph: GraphWriter, x: str) -> str:
    return graph.op("LayerNormalization", x, weight(graph), axis=-1)


@pytest.mark.parametrize("written", [divided, by_reciprocal, by_power, centred, fused])
def test_every_form_of_a_norm_is_recognized(written: Written) -> None:
    found = rules(written)
    assert set(found.values()) == {"norm"}, found


def test_a_root_of_other_values_is_no_norm() -> None:
    found = rules(lambda graph, x: graph.op("Mul", x, graph.op("Sqrt", graph.op("Abs", x))))
    assert set(found.values()) == {"pointwise"}


def test_a_reduction_is_in_full_precision_and_its_readers_in_low() -> None:
    def pooled(graph: GraphWriter, x: str) -> str:
        return graph.op("Add", x, graph.op("ReduceMean", x, graph.constant([1], np.int64), keepdims=1))

    assert rules(pooled) == {"ReduceMean": "reduction", "Add": "pointwise"}


def test_an_unknown_operator_stays_in_full_precision() -> None:
    assert rules(lambda graph, x: graph.op("CumSum", x, graph.constant(1, np.int64))) == {"CumSum": "unknown"}


def test_what_is_computed_of_exact_values_behind_a_product_modulates() -> None:
    def written(graph: GraphWriter, x: str) -> str:
        mean = graph.op("ReduceMean", x, graph.constant([-1], np.int64), keepdims=1)
        return graph.op("Mul", x, graph.op("Tanh", graph.op("Neg", mean)))

    found = rules(written)
    assert found == {"ReduceMean": "reduction", "Neg": "modulation", "Tanh": "modulation", "Mul": "pointwise"}


def test_values_are_rounded_before_they_are_moved() -> None:
    """The cast comes before the transposition, which then moves half of the bytes."""

    def moved(graph: GraphWriter, x: str) -> str:
        normal = divided(graph, x)
        there = graph.op("Transpose", normal, perm=[0, 2, 1])
        return graph.op("Transpose", there, perm=[0, 2, 1])

    found = rules(moved)
    assert (found["Transpose"], found["Transpose_2"]) == ("layout", "layout")


def test_of_a_cache_in_float32_only_the_part_that_is_read_is_rounded() -> None:
    model = planner_graph(Qwen3Sizes.of(CONFIG), 16, tiny_weights().__getitem__)
    widths = {(node.op_type, node.precision) for node in node_precisions(model, "bf16", without={CACHE_UPDATE})}
    assert {("TensorScatter", "fp32"), ("Slice", "fp32"), ("Attention", "bf16")} <= widths
    onnx.checker.check_model(apply_recipe(model, "bf16", without={CACHE_UPDATE}), full_check=True)


def logits_of(model: onnx.ModelProto, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """By ONNX's reference evaluator, in three executes, with caches of the graph's type."""
    inputs, evaluator = {value.name: value.type.tensor_type for value in model.graph.input}, ReferenceEvaluator(model)
    caches = {
        name: np.zeros((2, *(dim.dim_value for dim in kind.shape.dim[1:])), tensor_dtype_to_np_dtype(kind.elem_type))
        for name, kind in inputs.items()
        if name.startswith("past_")
    }
    logits = []
    for at in (0, 8, 16):
        places = {"position": np.full(2, at), "write": np.full(2, at), "window": np.full(2, NO_WINDOW)}
        pick = np.broadcast_to(np.arange(8)[:, None], (2, 8, 1))
        feeds = {**places, "tokens": tokens[:, at : at + 8], "slots": np.arange(32), "pick": pick, **caches}
        found = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
        caches = {name: found[name.replace("past_", "present_")] for name in caches}
        logits.append(found["logits"])
    return np.concatenate(logits, axis=1)


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_caches_are_inputs_and_outputs_in_16_bits_and_no_number_differs_by_that(recipe: RecipeName) -> None:
    """Attention reads them rounded in any case."""
    weights, tokens = tiny_weights(), np.random.default_rng(4).integers(0, VOCABULARY, (2, 24))
    source = planner_graph(Qwen3Sizes.of(CONFIG), 32, weights.__getitem__)
    model = apply_recipe(source, recipe)
    onnx.checker.check_model(model, full_check=True)
    kinds = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    narrow = {name for name, kind in kinds.items() if kind == RECIPES[recipe].kind}
    assert narrow == {name for names in cache_names(2) for name in names}
    found, wide = logits_of(model, tokens), apply_recipe(source, recipe, without={CACHE_UPDATE})
    np.testing.assert_array_equal(found, logits_of(wide, tokens))
    expected = np.stack([reference_logits(weights, row) for row in tokens])
    assert off(found, expected) < {"fp16": 0.02, "bf16": 0.05}[recipe] * np.abs(expected).max()


def test_a_layout_node_with_a_full_precision_reader_stays_in_full_precision() -> None:
    def moved(graph: GraphWriter, x: str) -> str:
        there = graph.op("Transpose", divided(graph, x), perm=[0, 2, 1])
        there = graph.op("Add", there, graph.op("ReduceMean", there, graph.constant([1], np.int64), keepdims=1))
        return graph.op("Transpose", there, perm=[0, 2, 1])

    assert rules(moved)["Transpose"] == "layout, full"


def test_a_layout_node_of_rounded_values_stays_rounded_before_a_full_precision_reader() -> None:
    """The cast comes behind the transposition, which moves half of the bytes."""

    def moved(graph: GraphWriter, x: str) -> str:
        there = graph.op("Transpose", x, perm=[0, 2, 1])
        mean = graph.op("ReduceMean", there, graph.constant([2], np.int64), keepdims=1)
        return graph.op("Add", x, graph.op("Transpose", mean, perm=[0, 2, 1]))

    found = rules(moved)
    assert (found["Transpose"], found["ReduceMean"]) == ("layout", "reduction")


def test_sources_follow_all_operators_except_shape() -> None:
    graph = GraphWriter("sources")
    x, t = graph.input("x", ("rows", "frames", 8)), graph.input("t", ("rows",))
    table = graph.op("Expand", graph.constant(1.0), graph.op("Shape", x))
    graph.output("table", table, ("rows", "frames", 8))
    graph.output("time", graph.op("Sin", t), ("rows",))
    column = graph.op("Unsqueeze", t, graph.constant([1, 2], np.int64))
    graph.output("both", graph.op("Mul", x, column), ("rows", "frames", 8))
    view = GraphView(graph.model())
    assert [view.sources(name) for name in ("table", "time", "both")] == [0, 1, 3]
