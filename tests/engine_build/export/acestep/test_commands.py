"""From random weights to figures and a file: the commands that the export names, one after the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.tiny_acestep import CHANNELS, VAE
from typer.testing import CliRunner

pytestmark = pytest.mark.export

pytest.importorskip("torch")
pytest.importorskip("diffusers")

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "in_channels": 3 * CHANNELS,
    "audio_acoustic_hidden_dim": CHANNELS,
    "encoder_hidden_size": 12,
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from engine_build.export.acestep.bundle_text import deployment_text
    from engine_build.export.acestep.export import Options, export_bundle
    from engine_build.export.acestep.sources import RandomWeights

    folder = tmp_path_factory.mktemp("random")
    source = RandomWeights(transformer_changes=SIZES, vae_changes=VAE)
    facts = export_bundle(source, folder / "x", Options(source.name, canvas_s=2.0), lambda text: None)
    (folder / "x.toml").write_text(deployment_text(facts, folder / "x", folder / "x.toml"))
    return folder / "x.toml"


def run(app: Any, *arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_build_bench_and_generate(deployment: Path, tmp_path: Path) -> None:
    from engine_build.cli import app as build
    from profiling.bench_cli import app as bench
    from runtime.cli import app as generate

    run(build, deployment)
    for more in ([], ["--guidance", 3]):
        card = json.loads(run(bench, deployment, "--depth", 2, "--ticks", 2, *more).splitlines()[-1])
        assert (card["bundle"], card["frames"], card["target"]) == ("acestep-random", 50, "cpu")
        assert card["shared_vs_alone"] < 1e-4
    run(generate, deployment, "--prompt", "", "--seconds", 3, "--out", tmp_path / "a.wav")
    assert len(soundfile.read(tmp_path / "a.wav")[0]) == 3 * 8000
    np.save(tmp_path / "tokens.npy", np.ones((4, 12), np.float32))
    run(generate, deployment, "--condition", tmp_path / "tokens.npy", "--out", tmp_path / "b.wav")
    assert (tmp_path / "b.wav").stat().st_size > 1000
