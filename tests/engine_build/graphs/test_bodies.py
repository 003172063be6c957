"""Every pass over graphs, on random graphs with bodies that read what lies around them and with local functions.

ONNX Runtime runs the graphs as they are; what a pass makes of them gives the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import onnxruntime
import pytest
from helpers.graphs_with_bodies import FRAMES, C, graph_with_bodies
from onnx import helper, numpy_helper

from engine_build.compile.onnxruntime_compiler import at_cuda_opset
from engine_build.export.cleanup import tidy
from engine_build.graphs.adapter_graph import adapter_graph
from engine_build.graphs.cpu_graph import cpu_graph
from engine_build.graphs.graph_file import graph_of
from engine_build.graphs.graph_view import remove_unused
from engine_build.graphs.plain_graph import plain
from engine_build.graphs.tensorrt_preparation import prepare_model
from engine_build.graphs.tensorrt_rules import problems
from engine_build.precision.casts import InlineWeights
from engine_build.precision.error import emulated
from engine_build.precision.recipe import apply_recipe, normalized_graph
from engine_build.precision.sensitivity import quantization_by_token, quantization_of
from runtime.base.errors import BuildError, ConfigError
from runtime.config.decoder import AdapterMatrix, AdapterSpec
from runtime.engines.adapters import FACTORS_A, FACTORS_B, ROW_WEIGHTS
from runtime.engines.value_shapes import value_shapes

# The first ones in every run: they have most kinds of bodies, and take a second.
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else []) for seed in range(120)]
ROWS = (1, 2)  # on both sides of the conditions

Feeds = dict[str, np.ndarray]


def feeds(rows: int) -> Feeds:
    random = np.random.default_rng(rows)
    latents = random.standard_normal((rows, FRAMES, C)).astype(np.float32)
    return {"latents": latents, "time": random.random(rows).astype(np.float32)}


def run(model: onnx.ModelProto, given: Feeds, *outputs: str) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return list(onnxruntime.InferenceSession(model.SerializeToString(), options).run(list(outputs) or None, given))


@cache
def expected(seed: int) -> list[np.ndarray]:
    """What ONNX Runtime gives for the graph as it is, of each number of rows."""
    return [run(graph_with_bodies(seed), feeds(rows))[0] for rows in ROWS]


def shapes() -> list[dict[str, tuple[int, ...]]]:
    return [{name: array.shape for name, array in feeds(rows).items()} for rows in ROWS]


def in_8_bits(model: onnx.ModelProto) -> onnx.ModelProto:
    graph = graph_of(model)
    calibration = [feeds(rows) for rows in ROWS]
    decided = quantization_of(graph, "int8", calibration, calibration)
    return emulated(apply_recipe(model, "int8", quantization=decided))


def by_token(model: onnx.ModelProto) -> onnx.ModelProto:
    quantization_by_token(graph_of(model), [feeds(2)])
    return apply_recipe(model, "int8")


def unused_removed(model: onnx.ModelProto) -> onnx.ModelProto:
    remove_unused(model.graph)
    return model


def with_adapters(model: onnx.ModelProto) -> onnx.ModelProto:
    """Every matrix that can have one has a term, which a scale of 0 takes away."""
    matrices: dict[str, AdapterMatrix] = {}
    for node in [node for node in model.graph.node if node.op_type == "MatMul"]:
        matrix = {node.output[0]: AdapterMatrix(weight=node.input[1], inputs=C, outputs=C)}
        with contextlib.suppress(ConfigError, BuildError):  # no constant, or read twice, or of a rank that is not known
            adapter_graph(model, AdapterSpec(matrices=matrix), "latents")
            matrices |= matrix
    if not matrices:
        return model
    made, width = adapter_graph(model, AdapterSpec(matrices=matrices), "latents"), C * len(matrices)
    given = {FACTORS_A: (1, width), FACTORS_B: (1, width), ROW_WEIGHTS: (1, 1)}
    made.graph.initializer.extend(numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in given.items())
    return plain(made)


def tidied(model: onnx.ModelProto) -> onnx.ModelProto:
    """As the exporters' graphs are; they have the shapes of their values."""
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    tidy(model, {})
    return model


EXACT: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "plain": lambda model: model,
    "unused": unused_removed,
    "exported": tidied,
    "tensorrt": lambda model: prepare_model(model, shapes()),
    "cpu": cpu_graph,
    "cuda": at_cuda_opset,
    "normalized": lambda model: normalized_graph(model, "bf16", InlineWeights()),
    "fp32": lambda model: apply_recipe(model, "fp32"),
    "adapters": with_adapters,
}
ROUNDED: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "bf16": lambda model: emulated(apply_recipe(model, "bf16")),
    "fp16": lambda model: emulated(apply_recipe(model, "fp16")),
    "8 bits": in_8_bits,
    "int8": by_token,
}


def off(model: onnx.ModelProto, seed: int) -> float:
    """The largest error over the largest value."""
    pairs = zip((run(model, feeds(rows))[0] for rows in ROWS), expected(seed), strict=True)
    return max(float(np.abs(found - wanted).max() / np.abs(wanted).max()) for found, wanted in pairs)


@pytest.mark.parametrize("seed", SEEDS)
def test_passes_keep_what_a_graph_computes(seed: int) -> None:
    for name, change in EXACT.items():
        assert off(change(plain(graph_with_bodies(seed))), seed) < 1e-5, name


@pytest.mark.parametrize("seed", SEEDS)
def test_recipes_keep_it_but_for_rounding(seed: int) -> None:
    for name, change in ROUNDED.items():
        assert off(change(plain(graph_with_bodies(seed))), seed) < 0.2, name


@pytest.mark.parametrize("seed", SEEDS)
def test_the_shapes_of_values_are_those_of_an_execute(seed: int) -> None:
    model = plain(graph_with_bodies(seed))
    for rows, sizes in zip(ROWS, shapes(), strict=True):
        found = value_shapes(model, sizes)
        made = [name for node in model.graph.node for name in node.output if name in found]
        del model.graph.output[:]
        model.graph.output.extend(helper.make_tensor_value_info(name, found[name][1], None) for name in made)
        for value, array in zip(model.graph.output, run(model, feeds(rows)), strict=True):
            assert found[value.name][0] == array.shape, value.name


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plain_graph_has_no_functions_and_constants_in_one_place(seed: int) -> None:
    model = plain(graph_with_bodies(seed))
    onnx.checker.check_model(model)
    assert not model.functions
    assert plain(onnx.ModelProto.FromString(model.SerializeToString())) == model
    assert not [problem for problem in problems(model, {}) if "Block" in problem]
