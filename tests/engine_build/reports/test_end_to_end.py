"""Whole generations in 16 bits against float32, through the tick loop."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.paths import ROOT

from engine_build.reports.end_to_end import EndToEndComparison, compare_end_to_end
from runtime.config.deployment import load_deployment

DEMO = ROOT / "configs/demo.toml"
PROMPTS = ("pads and arpeggios in E minor at 90 bpm", "techno drums, bass and lead at 120 bpm")


@pytest.mark.parametrize(("recipe", "limit"), [pytest.param("bf16", 0.05, marks=pytest.mark.slow), ("fp16", 0.01)])
def test_four_steps_in_low_precision_stay_close(recipe: str, limit: float) -> None:
    """Within 5% (bf16) and 1% (fp16) of the latents' standard deviation, with guidance."""
    found = compare_end_to_end(load_deployment(DEMO), recipe, PROMPTS, steps=4)
    assert found.exact.shape == (2, 256, 64)
    assert (found.rms_rel < limit).all(), found.rms_rel
    assert (found.rms_rel > 1e-4).all(), "the recipe changed nothing"


def test_the_difference_is_measured_against_the_variation() -> None:
    exact = np.random.default_rng(0).standard_normal((1, 64, 8)).astype(np.float32) + 100
    assert EndToEndComparison(exact, exact * 1).rms_rel == pytest.approx(0)
    assert EndToEndComparison(exact, exact + np.float32(0.5)).rms_rel == pytest.approx(0.5, rel=0.1)
