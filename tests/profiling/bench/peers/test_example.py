"""The example checkpoint: diffusers opens it, and its deployment file is valid. Needs the extra `export`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from helpers.tiny_acestep import diffusers_pipeline

from profiling.bench.peers.example import CHANNELS, DEPLOYMENT, END, save_example
from profiling.bench.peers.run import REQUESTS
from runtime.config.deployment import load_deployment

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]


def test_its_pipeline_opens_and_its_prompts_are_short(tmp_path: Path) -> None:
    save_example(tmp_path)
    pipeline = diffusers_pipeline(tmp_path / "checkpoint")
    assert (pipeline.sample_rate, pipeline.latents_per_second, pipeline.is_turbo) == (48_000, 25.0, False)
    assert pipeline.transformer.config.audio_acoustic_hidden_dim == CHANNELS
    text, _ = pipeline._format_prompt("warm piano, take 1", audio_duration=10.24)
    tokens = pipeline.tokenizer([text, text.replace("1\n", "8\n", 1)]).input_ids
    assert len(tokens[0]) == len(tokens[1]) < 128
    assert pipeline.tokenizer.convert_ids_to_tokens(tokens[0])[-1] == END
    deployment = tomllib.loads((tmp_path / "example.toml").read_text())
    assert (tmp_path / "example.toml").read_text() == DEPLOYMENT
    assert load_deployment(tmp_path / "demo.toml").loaded_bundle.name == "tickrt-demo"
    assert deployment["shapes"][0]["rows"]["max"] == 2 * max(REQUESTS) == 2 * deployment["runtime"]["depth"]
