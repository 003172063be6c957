"""Hints that repeat the first bars of music."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.note_simulation import SILENCE, SPEC

from runtime.music.first_bars import MOST_BARS, STRENGTH, FirstBars

C = len(SILENCE)
KEYS = 5  # of bass and drums, in the first channels


def ramp(frames: int) -> np.ndarray:
    """Latents whose level is the number of their frame in every channel."""
    return SILENCE + np.arange(frames, dtype=np.float32)[:, None] * np.ones((1, C), np.float32)


@pytest.mark.parametrize(("frames", "bars"), [(64, MOST_BARS), (30, 2), (11, 1)])
def test_whole_bars_are_repeated_with_a_part_of_their_level(frames: int, bars: int) -> None:
    bar_frames = 10.4
    first = FirstBars(SPEC, SILENCE, ramp(frames), bar_frames, start_frame=100)
    hints = first.hints(90, 200)
    levels = (hints - SILENCE) / np.float32(STRENGTH)  # [T, C]
    places = (np.arange(90, 290) - 100) % (bars * bar_frames)
    off = np.abs(levels[:, 0] - places)
    assert np.minimum(off, bars * bar_frames - off).max() <= 1.0
    np.testing.assert_allclose(levels[:, :KEYS], np.tile(levels[:, :1], KEYS), rtol=1e-5)
    np.testing.assert_array_equal(hints[:, KEYS:], np.broadcast_to(SILENCE[KEYS:], (200, C - KEYS)))


def test_the_beat_does_not_drift() -> None:
    """A kick with every bar, of a length that is no number of frames, is on its bar after a thousand bars."""
    latents = np.tile(SILENCE, (64, 1))
    latents[[0, 10, 21, 31], 3] += 1.0
    first = FirstBars(SPEC, SILENCE, latents.astype(np.float32), 10.4)
    struck = np.flatnonzero(first.hints(0, 10_400)[:, 3] > SILENCE[3])
    assert np.abs(struck - 10.4 * np.round(struck / 10.4)).max() <= 1.0
    assert len(struck) == pytest.approx(1000, abs=3)
