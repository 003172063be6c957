"""Levels and notes of single layers, and hints that repeat the first bars."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.note_simulation import SILENCE, SPEC
from numpy.typing import NDArray

from runtime.music.first_bars import MOST_BARS, STRENGTH, FirstBars
from runtime.music.part_moods import NO_MOODS, PartMoods, Thinning, part_moods
from runtime.requests.prompt_words import BoundMood

RATE_HZ = 25.0
SOFT, LOUD = BoundMood("soft", "bass", "bass", -6.0), BoundMood("loud", "drums", "kick", 6.0)


def latents(levels: dict[int, list[float]], frames: int = 40) -> NDArray[np.float32]:
    """`[T, C]` of levels by channel; the others are random."""
    made = np.random.default_rng(1).standard_normal((frames, len(SILENCE))).astype(np.float32)
    made[:, :5] = SILENCE[:5]
    for channel, values in levels.items():
        made[: len(values), channel] += np.float32(SPEC.scale) * np.array(values, np.float32)
    return made


def test_only_the_notes_of_a_layer_get_louder() -> None:
    given = latents({0: [0.5, 0.4], 3: [0.6, 0.3]})
    made = PartMoods({"bass": -6.0}).with_levels(given, SPEC, SILENCE)
    np.testing.assert_allclose((made - SILENCE)[:, :3], (given - SILENCE)[:, :3] * 10 ** (-0.3), rtol=1e-5)
    np.testing.assert_array_equal(made[:, 3:], given[:, 3:])
    assert NO_MOODS.with_levels(given, SPEC, SILENCE) is given


def test_levels_per_frame_are_those_of_the_whole() -> None:
    curve = np.linspace(-6.0, 0.0, 40, dtype=np.float32)
    given, moods = latents({0: [0.5] * 40}), PartMoods({"bass": curve})
    whole = moods.with_levels(given, SPEC, SILENCE)
    parts = [moods.with_levels(given[start : start + 20], SPEC, SILENCE, start) for start in (0, 20)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert whole[0, 0] < whole[39, 0]


def test_prompts_count_by_their_weights() -> None:
    assert part_moods([[SOFT, LOUD]], [1.0]) == PartMoods({"bass": -6.0, "drums": 6.0})
    assert part_moods([[SOFT], []], [1.0, 3.0]).level_db == {"bass": pytest.approx(-1.5)}
    curve = part_moods([[SOFT], [LOUD]], [np.array([1.0, 0.0], np.float32), 1.0]).level_db
    assert [np.round(level, 2).tolist() for level in curve.values()] == [[-3.0, 0.0], [3.0, 6.0]]
    thin = BoundMood("sparse", "bass", "bass", is_sparse=True)
    assert [part_moods([[thin], []], [1.0, weight]).sparse for weight in (0.5, 2.0)] == [{"bass"}, frozenset()]


def test_sparse_layers_have_one_note_in_a_beat_and_what_it_repeats_goes_on() -> None:
    """A beat of 120 bpm has 12.5 frames: of notes every 5 frames those at 0, 15 and 30 stay."""
    note = [0.8, 0.7, 0.6, 0.5, 0.4]
    given = latents({0: note * 8, 1: [0.0] * 5 + note, 3: note * 8})
    whole = Thinning(SPEC, SILENCE, ["bass"], 120.0, RATE_HZ).thinned(given)
    level = (whole - SILENCE)[:, 0] / SPEC.scale
    rises = np.flatnonzero(np.diff(level, prepend=0.0) > 0.05)
    assert rises.tolist() == [0, 15, 30]
    assert level.min() > 0.3, "it is held"
    np.testing.assert_allclose(whole[:, 1], SILENCE[1], atol=1e-6)
    np.testing.assert_array_equal(whole[:, 3:], given[:, 3:])
    thinning = Thinning(SPEC, SILENCE, ["bass"], 120.0, RATE_HZ)
    parts = [thinning.thinned(part) for part in np.split(given, [7, 16])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    again = Thinning(SPEC, SILENCE, ["bass"], 120.0, RATE_HZ).thinned(whole)
    np.testing.assert_allclose(again, whole, atol=1e-6)


def test_without_a_tempo_a_beat_is_half_a_second() -> None:
    given = latents({0: ([0.8] + [0.0] * 5) * 6})
    thinned = Thinning(SPEC, SILENCE, ["bass"], None, RATE_HZ).thinned(given)
    assert np.flatnonzero(thinned[:, 0] > SILENCE[0] + 0.1).tolist() == [0, 12, 24]


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
