"""Bars on the grid of codes."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.music.rhythm import Rhythm

RHYTHMS = [Rhythm(bpm, beats, 25.0, 5, 24, 100, 200) for bpm in (60, 97, 120, 131.5, 180) for beats in (4, 3, 2)]


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_bars_share_the_codes_of_a_piece_and_each_begins_in_its_first(rhythm: Rhythm) -> None:
    spans = [rhythm.code_range(bar, 1) for bar in range(40)]
    assert [code for span in spans for code in span] == list(range(spans[-1].stop))
    assert rhythm.code_range(8, 16) == range(spans[8].start, spans[23].stop)
    for bar, span in enumerate(spans):
        assert rhythm.frame(bar) in range(5 * span.start, 5 * (span.start + 1))


@pytest.mark.parametrize("rhythm", RHYTHMS, ids=str)
def test_markers_are_the_bar_that_begins_and_the_place_in_it(rhythm: Rhythm) -> None:
    for bar in range(8, 24):
        span = rhythm.code_range(bar, 1)
        assert [rhythm.bar_marker(code, 8) for code in span] == [(100 + bar - 8,)] + [()] * (len(span) - 1)
        clocks = np.array([rhythm.clock_marker(code) - 200 for code in span])
        assert 0 <= clocks[0] < clocks[-1] < 24 * rhythm.beats
        last_s = (5 * np.array(span) + 4) / 25.0 - rhythm.frame(bar) / 25.0
        assert np.all(np.abs(clocks - last_s * rhythm.bpm / 60.0 * 24) <= 1)


def test_recalled_tokens_stand_between_both_markers() -> None:
    assert RHYTHMS[0].markers(0, 0, (7, 8)) == (100, 7, 8, RHYTHMS[0].clock_marker(0))
    assert RHYTHMS[0].markers(1, 0, (7, 8)) == (7, 8, RHYTHMS[0].clock_marker(1))


@pytest.mark.parametrize(
    "rhythm", [*RHYTHMS, RHYTHMS[4].at(97.3, 4), Rhythm(140, 4, 25.0, 5, 24, 100, 200, 37.4)], ids=str
)
@pytest.mark.parametrize("steps", [(0.0, 0.25, 0.5, 0.75), (0.0, 0.667), tuple(k / 6 for k in range(6))], ids=str)
def test_each_step_is_the_frame_nearest_to_it_and_no_other_is_one(rhythm: Rhythm, steps: tuple[float, ...]) -> None:
    """Over 200 codes; halves go down."""
    codes = range(10, 210)
    found = [5 * code + place for code in codes for place in range(5) if rhythm.step_frames(code, steps) >> place & 1]
    beats = np.arange(400)[:, None] + np.array(steps)  # [beats, steps]
    positions = rhythm.first_frame + beats * 60.0 / rhythm.bpm * 25.0
    nearest = np.ceil(positions - 0.5 - 1e-3).astype(int)
    assert found == sorted(set(nearest[(nearest >= 50) & (nearest < 1050)].tolist()))


def test_without_steps_no_frame_is_one() -> None:
    assert RHYTHMS[0].step_frames(3, ()) == 0
