"""The two files are read back as they were meant."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from helpers.factories import TinySpec, tiny_decoder

from engine_build.graphs.graph_file import read_graph
from engine_build.new_bundle.init import ModelFacts, bundle_toml, deployment_toml
from engine_build.new_bundle.probe import FrameCounts
from engine_build.new_bundle.roles import decoder_roles
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment


def facts_of(path: Path, spec: TinySpec) -> ModelFacts:
    onnx.save(tiny_decoder(spec), path)
    return ModelFacts(path, decoder_roles(read_graph(path), {}, lambda role, fitting: None), FrameCounts(2), 25.0)


def test_a_complete_decoder(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "My Model.onnx", TinySpec())
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "bundle.toml").write_text(bundle_toml(facts, folder))
    (folder / "deployment.toml").write_text(deployment_toml(facts))
    bundle, deployment = load_bundle(folder), load_deployment(folder / "deployment.toml")
    assert (bundle.name, bundle.latents.channels, bundle.latents.canvas_frames) == ("my-model", 8, 250)
    assert bundle.graph_path(bundle.decoder.graph).resolve() == facts.graph
    assert bundle.decoder.inputs.context == "context_latents"
    assert bundle.context is not None
    assert bundle.context.overlap_frames == 62
    (shapes,) = deployment.shapes
    assert (deployment.bundle, shapes.rows.max, shapes.frames.min, shapes.tokens.max) == (folder, 8, 2, 64)


@pytest.mark.parametrize(
    ("axes", "rows", "frames"), [((1, "l", "k"), (1, 1), (2, 250)), ((2, 16, 77), (2, 2), (16, 16))]
)
def test_fixed_dimensions_are_the_only_size(
    tmp_path: Path, axes: tuple[int | str, ...], rows: tuple[int, int], frames: tuple[int, int]
) -> None:
    facts = facts_of(tmp_path / "m.onnx", TinySpec(axes=axes))  # type: ignore[arg-type]
    (tmp_path / "d.toml").write_text(deployment_toml(facts))
    (shapes,) = load_deployment(tmp_path / "d.toml").shapes
    assert (shapes.rows.min, shapes.rows.max) == rows
    assert (shapes.frames.min, shapes.frames.max) == frames
    assert shapes.tokens.min == (77 if axes[2] == 77 else 1)
