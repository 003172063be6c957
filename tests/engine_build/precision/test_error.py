"""The error of a recipe over the demo bundle's own states."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.factories import tiny_bundle
from helpers.paths import ROOT

from engine_build.graphs.graph_file import Graph, graph_of, read_graph
from engine_build.graphs.graph_writer import GraphWriter
from engine_build.precision.error import AUDIBLE_DB, RecipeError, codec_snr_db, recipe_error
from engine_build.precision.sample_states import decoder_sample_states
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


def test_feeds_of_bundles_without_mask_context_or_text_encoder(tmp_path: Path) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path, context=False, mask=False, text_encoder=False, codec=False))
    feeds = list(decoder_sample_states(bundle, read_graph(tmp_path / "decoder.onnx"), steps=2))
    assert set(feeds[0]) == {"hidden_states", "timestep", "encoder_hidden_states"}
    assert feeds[0]["encoder_hidden_states"].shape == (2, 8, 12)
