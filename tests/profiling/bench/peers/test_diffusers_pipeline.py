"""diffusers' pipeline as a peer. Needs the extra `export`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")
pytest.importorskip("transformers")

import torch
from diffusers import AceStepPipeline
from helpers.tiny_acestep import CHANNELS, HOP_SAMPLES, save_checkpoint

from profiling.bench.peers.diffusers_pipeline import DiffusersPipeline
from runtime.base.errors import ConfigError

pytestmark = [pytest.mark.export, pytest.mark.filterwarnings("ignore::FutureWarning")]

ASKED = {"seconds": 0.8, "steps": 2, "guidance": 1.0, "shift": 3.0}


def test_every_prompt_has_its_own_seed(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint")
    peer = DiffusersPipeline(str(checkpoint), compiled=False)
    first, second = peer.generate(["take 1", "take 2"], "latent", **ASKED)
    assert first.shape == second.shape == (20, CHANNELS)
    start = torch.randn(1, 20, CHANNELS, generator=torch.Generator().manual_seed(1))
    pipeline = AceStepPipeline.from_pretrained(checkpoint, torch_dtype=torch.float32)
    wanted = pipeline(
        "take 2", audio_duration=0.8, num_inference_steps=2, guidance_scale=1.0, shift=3.0,
        latents=start, output_type="latent",
    ).audios[0].numpy()  # fmt: skip
    assert np.abs(second - wanted).max() < 1e-5 < np.abs(first - wanted).max()
    (audio,) = peer.generate(["take 1"], "np", **ASKED)
    assert audio.shape == (2, 20 * HOP_SAMPLES)


def test_a_folder_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="AceStepPipeline does not open"):
        DiffusersPipeline(str(tmp_path), compiled=False)
