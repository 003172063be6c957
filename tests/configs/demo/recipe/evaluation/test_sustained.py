"""Silence in sustained prompts, on a tone with a hole."""

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.evaluation.sustained import sustained_figures, sustained_row
from configs.demo.recipe.instruments import pitch_channels
from configs.demo.recipe.latents import CHANNELS, SAMPLE_RATE_HZ, latents_from_levels


def test_the_share_of_silence_and_the_longest_gap() -> None:
    levels = np.zeros((100, CHANNELS), np.float32)
    levels[:50, pitch_channels("pad")] = 0.5
    audio = np.full((4 * SAMPLE_RATE_HZ, 2), 0.1, np.float32)
    whole = sustained_row("a", 1, latents_from_levels(levels), audio)
    audio[:SAMPLE_RATE_HZ] = 1e-4
    holed = sustained_row("a", 2, latents_from_levels(levels), audio)
    assert (whole["quiet share"], whole["pad share"]) == (0.0, 0.5)
    assert holed["quiet share"] == pytest.approx(0.25, abs=0.02)
    figures = sustained_figures([whole, holed])
    assert figures["sustained_quiet_share"] == pytest.approx(0.125, abs=0.01)
    assert figures["sustained_quiet_share_max"] == pytest.approx(0.25, abs=0.02)
    assert figures["sustained_longest_gap_s"] == pytest.approx(1.0, abs=0.06)
