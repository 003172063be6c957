"""A bundle that says its stems sum to its mix is believed only where they do."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.factories import NOTES, TinySpec, tiny_bundle, tiny_deployment

from engine_build.compile.builder import build_deployment
from engine_build.compile.graph_checks import check_stems
from engine_build.config import BuildConfig
from runtime.base.errors import BuildError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import load_deployment

STEMS = '[stems]\nsaturation = "tanh"\n'


def test_a_codec_that_sums_its_layers_passes(tmp_path: Path) -> None:
    assert check_stems(load_bundle(tiny_bundle(tmp_path, stems=True)), BuildConfig()) < -100


def test_another_codec_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path, spec=TinySpec())
    with (tmp_path / "tiny" / "bundle.toml").open("a", encoding="utf-8") as file:
        file.write(NOTES + STEMS)
    deployment = load_deployment(path)
    with pytest.raises(BuildError, match=r"the stems of tiny differ from its mix by -?\d+ dB, allowed are -60"):
        build_deployment(deployment)
    assert not list(deployment.engine_folder("cpu").glob("*.json"))


def test_another_saturation_than_the_codec_s_is_refused(tmp_path: Path) -> None:
    path = tiny_bundle(tmp_path, stems=True) / "bundle.toml"
    path.write_text(
        path.read_text(encoding="utf-8").replace('"tanh"', '"none"').replace("scale = 0.5", "scale = 20.0"),
        encoding="utf-8",
    )
    with pytest.raises(BuildError, match="say its saturation"):
        check_stems(load_bundle(tmp_path), BuildConfig())
