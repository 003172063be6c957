"""Whole pieces in 16 bits, through the real tick loop, and the command that tells of all this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT

from engine_build.reports.end_to_end import EndToEndComparison, compare_end_to_end
from runtime.config.deployment import load_deployment

DEMO = ROOT / "configs/demo.toml"
PROMPTS = ("pads and arpeggios in E minor at 90 bpm", "techno drums, bass and lead at 120 bpm")


@pytest.mark.parametrize(("recipe", "limit"), [("bf16", 0.05), ("fp16", 0.01)])
def test_four_steps_stay_the_same_music(recipe: str, limit: float) -> None:
    """At most 5% (bf16) and 1% (fp16) of the latents' own variation, guidance included."""
    played = compare_end_to_end(load_deployment(DEMO), recipe, PROMPTS, steps=4)
    assert played.exact.shape == (2, 256, 64)
    assert (played.rms_rel < limit).all(), played.rms_rel
    assert (played.rms_rel > 1e-4).all(), "the recipe was not played"


def test_the_difference_is_measured_against_the_variation() -> None:
    exact = np.random.default_rng(0).standard_normal((1, 64, 8)).astype(np.float32) + 100
    assert EndToEndComparison(exact, exact * 1).rms_rel == pytest.approx(0)
    assert EndToEndComparison(exact, exact + np.float32(0.5)).rms_rel == pytest.approx(0.5, rel=0.1)


def test_the_command_prints_parts_and_errors() -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost"]
    command += [str(DEMO), "--recipe", "bf16", "--target", "cuda"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    for wanted in ("bf16 on cuda", "time embedding and AdaLN tables", "no kernel", "0.900", "of the work in bf16"):
        assert wanted in result.stdout


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost", str(tmp_path / "none.toml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert "none.toml" in result.stderr
    assert "Traceback" not in result.stderr
