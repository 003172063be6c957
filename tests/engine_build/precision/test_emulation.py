"""The emulation of 16-bit arithmetic, against an implementation that is not ours: ONNX's reference evaluator."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import TinySpec, tiny_decoder
from helpers.paths import TESTS
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.error import emulated
from engine_build.precision.recipe import RECIPES, apply_recipe
from engine_build.precision.wide_values import SCALE

PARITY = TESTS / "data/tick_parity/decoder.onnx"

Array = NDArray[np.float32]


def feeds_of(model: onnx.ModelProto, sizes: dict[str, int]) -> dict[str, Array]:
    random = np.random.default_rng(7)
    feeds = {}
    for value in model.graph.input:
        shape = [sizes.get(d.dim_param, d.dim_value) or sizes["rows"] for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = random.uniform(0.1, 0.9, shape) if len(shape) < 3 else random.standard_normal(shape)
        if "mask" in value.name:
            feeds[value.name] = (np.arange(shape[1])[None] < [[shape[1]], [shape[1] // 2]]).astype(np.float32)
    return {name: array.astype(np.float32) for name, array in feeds.items()}


def run(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: Array = ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]
    return found


def rms(array: Array) -> float:
    return float(np.sqrt(np.mean(array.astype(np.float64) ** 2)))


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_it_computes_what_the_reference_evaluator_computes(recipe: str) -> None:
    model = tiny_decoder(TinySpec())
    feeds = feeds_of(model, {"rows": 2, "frames": 16, "tokens": 5})
    low = apply_recipe(model, recipe)
    found, reference = run(emulated(low), feeds), ReferenceEvaluator(low).run(None, feeds)[0]
    rounding = rms(found - run(model, feeds))
    assert rounding > 1e-5, "nothing was rounded"
    assert rms(found - reference) < 0.1 * rounding


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_a_whole_transformer_errs_as_much_as_in_the_reference_evaluator(recipe: str) -> None:
    """Sums in another order round another way here and there, and hundreds of operators carry that on."""
    model = onnx.load(PARITY)
    feeds = feeds_of(model, {"rows": 2, "batch": 2, "frames": 16, "tokens": 9})
    low, exact = apply_recipe(model, recipe), run(model, feeds)
    ours, theirs = run(emulated(low), feeds) - exact, ReferenceEvaluator(low).run(None, feeds)[0] - exact
    assert 0.6 < rms(ours) / rms(theirs) < 1.6


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_products_are_summed_in_full_and_rounded_once(recipe: str) -> None:
    """4096 ones: a sum that was rounded at every step would stop at 256 in bfloat16 and at 2048 in float16."""
    graph = GraphWriter("sum")
    x = graph.input("x", (1, 1, 4096))
    hidden = graph.op("MatMul", x, graph.constant(np.ones((4096, 4)), name="ones"))
    graph.output("y", graph.op("Softmax", hidden, axis=-1), (1, 1, 4))
    low = apply_recipe(graph.model(), recipe)
    wide = emulated(low)
    product = next(node for node in wide.graph.node if node.op_type == "MatMul")
    wide.graph.output.append(helper.make_tensor_value_info(product.output[0], TensorProto.FLOAT, (1, 1, 4)))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    ones = np.full((1, 1, 4096), 1 / SCALE if RECIPES[recipe].is_narrow else 1.0, np.float32)
    sums = ort.InferenceSession(wide.SerializeToString(), options).run(None, {"x": ones})
    np.testing.assert_array_equal(sums[1], 4096.0)


@pytest.mark.parametrize("recipe", ["fp16", "bf16"])
def test_every_rounded_value_is_one_that_the_type_has(recipe: str) -> None:
    model = tiny_decoder(TinySpec())
    low = apply_recipe(model, recipe)
    wide = emulated(low)
    view = GraphView(low)
    rounded = [name for node in low.graph.node for name in node.output if view.types[name] == RECIPES[recipe].kind]
    assert len(rounded) > 5
    for name in rounded:
        wide.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    feeds = feeds_of(model, {"rows": 2, "frames": 16, "tokens": 5})
    session = ort.InferenceSession(wide.SerializeToString())
    dtype = helper.tensor_dtype_to_np_dtype(RECIPES[recipe].kind)
    for name, array in zip(rounded, session.run(rounded, feeds), strict=True):
        np.testing.assert_array_equal(array, array.astype(dtype).astype(np.float32), err_msg=name)


def test_weights_stay_small() -> None:
    low = apply_recipe(onnx.load(PARITY), "bf16")
    assert emulated(low).ByteSize() < 1.2 * low.ByteSize()
