"""Whole generations in 16 bits against float32, through the tick loop."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
from conftest import Built
from helpers.paths import ROOT

from configs.demo.recipe.evaluation.evaluate import held_out_requests, score
from configs.demo.recipe.latents import levels_from_latents
from engine_build.precision.recipe import RecipeName
from engine_build.reports.end_to_end import (
    HOP,
    NUM_MELS,
    SAMPLE_RATE_HZ,
    EndToEndComparison,
    compare_end_to_end,
    mel_bands,
    mel_distance_db,
)
from runtime.config.deployment import load_deployment

DEMO = ROOT / "configs/demo.toml"
PROMPTS = ("pads and arpeggios in E minor at 90 bpm", "techno drums, bass and lead at 120 bpm")


@pytest.mark.shipped
@pytest.mark.parametrize(("recipe", "limit"), [pytest.param("bf16", 0.05, marks=pytest.mark.slow), ("fp16", 0.01)])
def test_four_steps_in_low_precision_stay_close(recipe: str, limit: float) -> None:
    """Within 5% (bf16) and 1% (fp16) of the latents' standard deviation, with guidance."""
    found = compare_end_to_end(load_deployment(DEMO), recipe, PROMPTS, steps=4)
    assert found.exact.shape == (2, 256, 64)
    assert (found.rms_rel < limit).all(), found.rms_rel
    assert (found.rms_rel > 1e-4).all(), "the recipe changed nothing"
    assert (found.mel_db < 100 * limit).all(), found.mel_db


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fp8", "int8"])
def test_the_demo_plays_what_it_is_asked_for_in_8_bits_too(recipe: RecipeName) -> None:
    """As the demo's evaluation measures it, on as many of its held-out prompts as PROMPTS_PLAYED says (default 16)."""
    requests = held_out_requests(int(os.environ.get("PROMPTS_PLAYED", "16")))
    found = compare_end_to_end(load_deployment(DEMO), recipe, [item.prompt for item in requests], seed=1000)
    exact, rounded = (score(requests, levels_from_latents(latents)) for latents in (found.exact, found.rounded))
    medians = f"latents {np.median(found.rms_rel):.3f}, audio {np.median(found.mel_db):.2f} dB"
    others = [mel_distance_db(one, other) for (one, _), (other, _) in pairwise(found.audio)]
    print(f"{recipe}: {medians} (another piece: {np.median(others):.1f} dB); {exact} -> {rounded}")
    for name, value in vars(exact).items():
        assert getattr(rounded, name) > value - 0.01, name
    assert np.median(found.rms_rel) < 0.15


def test_the_difference_is_measured_against_the_variation() -> None:
    exact = np.random.default_rng(0).standard_normal((1, 64, 8)).astype(np.float32) + 100
    assert EndToEndComparison(exact, exact * 1).rms_rel == pytest.approx(0)
    assert EndToEndComparison(exact, exact + np.float32(0.5)).rms_rel == pytest.approx(0.5, rel=0.1)


def test_the_distance_of_mel_spectra_is_in_db() -> None:
    audio = 0.1 * np.random.default_rng(0).standard_normal((48_000, 2)).astype(np.float32)
    assert mel_distance_db(audio, audio) == 0
    assert mel_distance_db(audio, audio * np.float32(2)) == pytest.approx(6.02, abs=0.01)


def test_mel_bands_are_in_the_order_of_frequencies() -> None:
    times_s = np.arange(SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    tones = [np.sin(2 * np.pi * hz * times_s).astype(np.float32) for hz in (100.0, 500.0, 2000.0, 9000.0)]
    found = [mel_bands(np.stack([tone, tone], axis=1)) for tone in tones]
    assert {bands.shape[1] for bands in found} == {NUM_MELS}
    assert len(found[0]) == (SAMPLE_RATE_HZ - 2048) // HOP + 1
    assert mel_bands(np.ones((9, 2), np.float32)).shape == (1, NUM_MELS), "silence follows what is too short"
    loudest = [int(bands.mean(axis=0).argmax()) for bands in found]
    assert loudest == sorted(set(loudest))


def test_both_decoders_make_the_same_requests(built: Built) -> None:
    found = compare_end_to_end(built(), "fp16", ["a", "b"], steps=2)
    assert found.exact.shape == found.rounded.shape == (2, 32, 8)
    assert len(found.audio) == 2
    assert np.abs(found.exact[0] - found.exact[1]).max() > 0.1
    assert (found.rms_rel > 1e-6).all()
    assert (found.rms_rel < 0.05).all()
