"""The Stable Audio 3 deployments: they load, and their ranges take what their bundles make. Needs no bundle, no GPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

from engine_build.export.stable_audio_3.bundle_text import StableAudioFacts
from engine_build.request import check_ranges, read_options
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import load_deployment

HEADS = {"small": 16, "medium": 24}
MEMORY_TOKENS = 64


def published(size: str, folder: Path) -> Bundle:
    """bundle.toml as the export writes it for the published checkpoint."""
    facts = StableAudioFacts(
        name=f"stable-audio-3-{size}",
        description="",
        channels=256,
        frame_rate_hz=44_100 / 4096,
        frame_multiple=2 if size == "small" else 1,
        canvas_s=120.0,
        sample_rate_hz=44_100,
        audio_channels=2,
        hop_samples=4096,
        decode_margin_frames=2 if size == "small" else 12,
        encode_margin_frames=2 if size == "small" else 12,
        align_frames=2 if size == "small" else 1,
        tokens=(1, 257),
        is_distilled=True,
        logsnr=(-6.2, 2.0),
        has_null_condition=False,
        text_encoder={"max_tokens": 256},
    )
    (folder / "bundle.toml").write_text(facts.bundle_text())
    np.save(folder / "silence.npy", np.zeros((4, 256), np.float32))
    return load_bundle(folder)


@pytest.mark.parametrize("size", ["small", "medium"])
def test_every_length_up_to_the_canvas_has_a_range(size: str, tmp_path: Path) -> None:
    deployment = load_deployment(ROOT / "configs" / f"stable-audio-3-{size}.toml")
    bundle = published(size, tmp_path)
    check_ranges(deployment, bundle)
    assert deployment.bundle.name == bundle.name
    assert read_options(deployment).precision == "bf16"
    latents = bundle.latents
    assert latents.canvas_frames == 1292
    for frames in range(latents.frame_multiple, latents.canvas_frames + 1, latents.frame_multiple):
        assert deployment.rows_limit(frames, 257) >= 8
    ends = {shape.frames.max for shape in deployment.shapes}
    assert ends == {324 if size == "small" else 323, 646, 1292}


@pytest.mark.parametrize("size", ["small", "medium"])
def test_attention_scores_stay_below_tensorrts_limit(size: str) -> None:
    deployment = load_deployment(ROOT / "configs" / f"stable-audio-3-{size}.toml")
    for shape in deployment.shapes:
        assert shape.rows.max * HEADS[size] * (shape.frames.max + MEMORY_TOKENS) ** 2 < 2**31
