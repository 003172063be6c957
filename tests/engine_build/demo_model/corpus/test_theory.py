"""Scales, chords and voice leading."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine_build.demo_model.corpus.theory import (
    MODES,
    PROGRESSIONS,
    chord_pitch_classes,
    chord_pitches,
    lead_voices,
    scale_pitch_classes,
    scale_pitches,
)


def test_scales_start_on_their_root() -> None:
    assert scale_pitch_classes(0, "major") == (0, 2, 4, 5, 7, 9, 11)
    assert scale_pitch_classes(9, "minor") == (9, 11, 0, 2, 4, 5, 7)
    assert set(scale_pitch_classes(9, "minor")) == set(scale_pitch_classes(0, "major"))
    assert scale_pitches(0, "major", 60, 72) == (60, 62, 64, 65, 67, 69, 71, 72)


def test_chords_are_stacked_thirds() -> None:
    assert chord_pitch_classes(0, "major", 0, 3) == (0, 4, 7)
    assert chord_pitch_classes(0, "major", 4, 4) == (7, 11, 2, 5)
    assert chord_pitches((0, 4, 7), 60, 72) == (60, 64, 67, 72)


@pytest.mark.parametrize("mode", list(MODES))
def test_progressions_start_on_the_tonic(mode: str) -> None:
    assert all(degrees[0] == 0 and len(degrees) == 4 for degrees in PROGRESSIONS[mode])


def test_voices_move_as_little_as_possible() -> None:
    first = lead_voices((0, 4, 7), (), 48, 63)
    assert {pitch % 12 for pitch in first} == {0, 4, 7}
    second = lead_voices((9, 0, 4), first, 48, 63)
    assert len(set(first) & set(second)) == 2, "C major and A minor share two pitches"
    assert lead_voices((0, 4, 7), first, 48, 63) == first


def test_semitone_clashes_are_avoided() -> None:
    voicing = lead_voices((0, 4, 7, 11), (), 48, 63)
    assert all(high - low > 1 for low, high in pairwise(voicing))
