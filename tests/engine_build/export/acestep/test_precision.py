"""Precision recipes on what was exported from diffusers: decoder, codec and text_encoder."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest

from engine_build.graphs.graph_file import read_graph
from engine_build.precision.error import recipe_error
from engine_build.precision.recipe import explain, write_recipe
from engine_build.precision.sample_states import decoder_sample_states
from runtime.config.bundle import load_bundle

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

LIMITS = {"bf16": 0.03, "fp16": 0.004}


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_the_decoder_is_off_by_rounding(bundle: Path, recipe: str) -> None:
    found = load_bundle(bundle)
    graph = read_graph(bundle / found.decoder.graph)
    error = recipe_error(graph, recipe, list(decoder_sample_states(found, graph, steps=3)))
    assert 1e-5 < max(error.max_rel) < LIMITS[recipe]
    full = {node.rule for node in error.nodes if node.name in error.flops and node.precision == "fp32"}
    assert full <= {"time", "output", "no kernel"}


def test_every_part_is_found(bundle: Path) -> None:
    """Three layers: self and cross attention, each with two norms inside, three norms around, one before the output."""
    parts = Counter(node.rule for node in explain(onnx.load(bundle / "decoder.onnx"), "bf16"))
    assert parts["norm"] == 6 * (3 * 7 + 1)
    assert parts["softmax"] == 3 * 2
    assert parts["unknown"] == 0


@pytest.mark.parametrize("recipe", ["bf16", "fp16"])
def test_every_graph_of_a_bundle_takes_a_recipe(bundle: Path, tmp_path: Path, recipe: str) -> None:
    for path in sorted(bundle.glob("*.onnx")):
        write_recipe(path, tmp_path / path.name, recipe)
        onnx.checker.check_model(str(tmp_path / path.name), full_check=True)
        assert list(onnx.load(path).graph.output) == list(onnx.load(tmp_path / path.name).graph.output)
