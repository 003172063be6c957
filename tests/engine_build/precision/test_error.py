"""The error of a recipe over the demo bundle's own states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers.factories import SECOND_FAMILY, TinySpec, tiny_bundle, tiny_decoder
from helpers.paths import ROOT, TESTS
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from engine_build.graphs.graph_file import Graph, graph_of, read_graph
from engine_build.graphs.graph_view import GraphView
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.error import AUDIBLE_DB, RecipeError, codec_snr_db, emulated, recipe_error
from engine_build.precision.recipe import RECIPES, apply_recipe
from engine_build.precision.sample_states import calibration_states, decoder_sample_states, middle
from engine_build.precision.wide_values import SCALE
from runtime.base.errors import BuildError
from runtime.config.bundle import load_bundle

LIMITS = {"bf16": (0.03, 0.015), "fp16": (0.005, 0.003)}


@pytest.fixture(scope="module")
def demo() -> tuple[Graph, list[dict[str, np.ndarray]]]:
    bundle = load_bundle(ROOT / "configs/demo")
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    return graph, [dict(feed) for feed in decoder_sample_states(bundle, graph, threads=1)]


@pytest.fixture(scope="module", params=["bf16", "fp16"])
def found(request: pytest.FixtureRequest, demo: tuple[Graph, list[dict[str, np.ndarray]]]) -> tuple[str, RecipeError]:
    return request.param, recipe_error(demo[0], request.param, demo[1], threads=1)


def test_sample_states_go_from_noise_to_music(demo: tuple[Graph, list[dict[str, np.ndarray]]]) -> None:
    feeds = demo[1]
    times = [float(feed["timestep"][0]) for feed in feeds]
    assert times == sorted(times, reverse=True)
    assert (len(times), times[0]) == (8, 1.0)
    assert feeds[0]["hidden_states"].std() == pytest.approx(1.0, abs=0.05)
    sounding = feeds[-1]["hidden_states"] > 2.0
    assert 0.005 < sounding.mean() < 0.2, "a few notes stand out of silence"
    assert feeds[0]["condition_mask"].sum(axis=1).tolist() == [1.0, 14.0]


def test_the_error_on_real_latents_is_rounding(found: tuple[str, RecipeError]) -> None:
    recipe, error = found
    largest, rms = LIMITS[recipe]
    assert len(error.max_rel) == len(error.rms_rel) == 8
    assert 0.05 * largest < max(error.max_rel) < largest
    assert 0.05 * rms < max(error.rms_rel) < rms


def test_expensive_products_are_in_low_precision(found: tuple[str, RecipeError]) -> None:
    _, error = found
    assert error.low_work >= 0.95
    full = {node.name: node.rule for node in error.nodes if node.name in error.flops and node.precision == "fp32"}
    assert set(full.values()) <= {"time", "output", "no kernel"}


@pytest.fixture(scope="module")
def figures(demo: tuple[Graph, list[dict[str, np.ndarray]]]) -> dict[str, float]:
    """Of the graph as it is, in one state."""
    return recipe_error(demo[0], "bf16", demo[1][:1], threads=1).summary()


def test_the_summary_goes_into_a_manifest(figures: dict[str, float]) -> None:
    assert list(figures) == ["recipe_max_rel", "recipe_rms_rel", "recipe_low_work"]
    assert all(type(value) is float for value in figures.values())


def test_work_is_counted_of_nodes_without_names(
    demo: tuple[Graph, list[dict[str, np.ndarray]]], figures: dict[str, float]
) -> None:
    graph, feeds = demo
    assert isinstance(graph.source, Path)
    bare = onnx.load(graph.source)
    for node in bare.graph.node:
        node.name = ""
    nameless = recipe_error(graph_of(bare), "bf16", feeds[:1], threads=1).summary()
    assert nameless["recipe_low_work"] == pytest.approx(figures["recipe_low_work"])


def test_weights_in_files_of_their_own_give_the_same(
    tmp_path: Path, demo: tuple[Graph, list[dict[str, np.ndarray]]], figures: dict[str, float]
) -> None:
    graph, feeds = demo
    assert isinstance(graph.source, Path)
    onnx.save(onnx.load(graph.source), tmp_path / "big.onnx", save_as_external_data=True, size_threshold=1024)
    assert recipe_error(read_graph(tmp_path / "big.onnx"), "bf16", feeds[:1], threads=1).summary() == pytest.approx(
        figures
    )


def test_the_noise_of_the_demos_codec_is_heard_in_bf16_and_not_in_fp16() -> None:
    bundle = load_bundle(ROOT / "configs/demo")
    assert bundle.codec is not None
    graph = read_graph(bundle.graph_path(bundle.codec.decode.graph))
    latents = np.random.default_rng(1).standard_normal((1, 16, bundle.latents.channels)).astype(np.float32)
    feed = {bundle.codec.decode.inputs.latents: latents} | {
        name: np.zeros(1, np.int64) for name in (bundle.codec.decode.inputs.start_frame,) if name is not None
    }
    found = [codec_snr_db(graph, recipe, feed, 4800, threads=1) for recipe in ("fp32", "fp16", "bf16")]
    assert found[0] > 200
    assert found[1] > AUDIBLE_DB + 5
    assert AUDIBLE_DB - 15 < found[2] < AUDIBLE_DB


@pytest.mark.parametrize(
    ("offset", "gain", "least", "most"),
    [(0.0, 1.0, 60, 80), (1000.0, 1.0, 0, 20), (0.0, 1e8, -1000, 0)],
    ids=["ordinary", "a difference of large values", "overflows"],
)
def test_noise_is_that_of_the_worst_window(offset: float, gain: float, least: float, most: float) -> None:
    graph = GraphWriter("codec")
    x = graph.op("Reshape", graph.input("latents", (1, 64, 4)), graph.constant([64, 4], np.int64))
    moved = graph.op("Gemm", x, graph.constant(np.eye(4)), graph.constant(np.full(4, offset)))
    hidden = graph.op("Mul", graph.op("Sub", moved, graph.constant(offset)), graph.constant(1 / gain))
    graph.output("audio", graph.op("MatMul", graph.constant(np.eye(64)), hidden), (64, 4))
    latents = np.random.default_rng(0).standard_normal((1, 64, 4)).astype(np.float32)
    latents[:, 40:] *= 1e-3
    feed = {"latents": latents * np.float32(gain)}
    assert least < codec_snr_db(graph_of(graph.model()), "fp16", feed, 4, threads=1) < most


def test_a_result_that_is_not_finite_is_refused() -> None:
    graph = GraphWriter("growing")
    x = graph.input("x", ("rows", "frames", 4))
    hidden = graph.op("MatMul", x, graph.constant(np.full((4, 4), 1e3), name="w"))
    graph.output("y", graph.op("MatMul", hidden, graph.constant(np.eye(4))), ("rows", "frames", 4))
    feed = {"x": np.full((1, 2, 4), 1e4, np.float32)}
    assert recipe_error(graph_of(graph.model()), "bf16", [feed]).summary()["recipe_max_rel"] < 0.01
    with pytest.raises(BuildError, match="y is not finite"):
        recipe_error(graph_of(graph.model()), "fp16", [feed]).summary()


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


@pytest.mark.parametrize("changes", [{}, {"text_encoder": False}, {"mask": False, "context": False}])
def test_every_step_has_all_inputs(tmp_path: Path, changes: dict[str, bool]) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny", **changes))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    states = list(decoder_sample_states(bundle, graph, steps=3, threads=1))
    assert len(states) == 3
    for state in states:
        assert set(state) == {info.name for info in graph.inputs}
        assert all(len(values) == 2 for values in state.values()), "a positive and a negative row"
    times = [float(state[bundle.decoder.inputs.time][0]) for state in states]
    assert times == sorted(times, reverse=True)
    first, last = (state[bundle.decoder.inputs.latents] for state in (states[0], states[-1]))
    assert not np.array_equal(first, last)


def test_a_generation_has_the_times_of_its_bundle_and_guidance_where_it_may(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny", **SECOND_FAMILY))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    first, second = decoder_sample_states(bundle, graph, steps=2, threads=1)
    names = bundle.decoder.inputs
    middle_time = 1 / (1 + np.exp(-2.1))
    np.testing.assert_allclose([first[names.time][0], second[names.time][0]], [1.0, middle_time], rtol=1e-6)
    runner = ort.InferenceSession(str(bundle.graph_path(bundle.decoder.graph)))
    velocity = runner.run(None, dict(first))[0][1]  # of the positive row
    expected = first[names.latents][1] + (middle_time - 1) * velocity
    np.testing.assert_allclose(second[names.latents][1], expected, atol=1e-5)


def test_the_states_are_the_same_every_time(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph = read_graph(bundle.graph_path(bundle.decoder.graph))
    first, second = (list(decoder_sample_states(bundle, graph, steps=2, threads=1)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        for name, values in one.items():
            np.testing.assert_array_equal(values, other[name])


def test_calibration_has_several_generations_that_continue_each_other(tmp_path: Path) -> None:
    """Other ones than those that errors are measured on."""
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph, names = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder.inputs
    states = list(calibration_states(bundle, graph, steps=2, threads=1))
    assert len(states) == 6
    assert names.context is not None
    first, second = states[0][names.context][0], states[2][names.context][0]
    half, channels = len(first) // 2, bundle.latents.channels
    assert (first[:, channels:] == 1).all()
    np.testing.assert_array_equal(second[:, channels] == 0, np.arange(len(second)) < half)
    assert not np.array_equal(first[:half, :channels], second[:half, :channels])
    measured = next(iter(decoder_sample_states(bundle, graph, steps=2, threads=1)))
    assert not np.array_equal(measured[names.latents], states[0][names.latents])


def test_prompts_are_cut_to_the_words_that_the_model_accepts(tmp_path: Path) -> None:
    """A token for each letter, and one for the null prompt, to which a first word that is too long is cut."""
    for limit, expected in ((32, [31, 31, 28]), (6, [1, 5, 5])):
        bundle = load_bundle(tiny_bundle(tmp_path / f"tiny-{limit}", max_tokens=limit))
        graph, names = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder.inputs
        assert names.condition is not None
        assert names.condition_mask is not None
        states = list(calibration_states(bundle, graph, steps=1, threads=1))
        assert [state[names.condition_mask].sum(axis=1).tolist() for state in states] == [[1, n] for n in expected]
        for state in states:
            null, positive = state[names.condition]
            assert not null[1:].any(), "padded"
            assert positive.any(axis=1).all()


def test_the_middle_of_a_state_is_one_too(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny"))
    graph, names = read_graph(bundle.graph_path(bundle.decoder.graph)), bundle.decoder.inputs
    state = next(iter(calibration_states(bundle, graph, steps=1, threads=1)))
    whole, cut = state[names.latents], middle(bundle, state, 4)
    start = (whole.shape[1] - 4) // 2
    np.testing.assert_array_equal(cut[names.latents], whole[:, start : start + 4])
    assert {name for name in state if cut[name].shape != state[name].shape} == {names.latents, names.context}
    assert middle(bundle, state, 10**6)[names.latents].shape == whole.shape
