"""Scales, chords, progressions and voice leading."""

import pytest

from configs.demo.recipe.corpus.theory import (
    GENRE_PROGRESSIONS,
    MODES,
    PROGRESSIONS,
    chord_pitch_classes,
    chord_pitches,
    lead_voices,
    num_clashes,
    scale_pitch_classes,
    scale_pitches,
)


def test_scales_start_on_their_root() -> None:
    assert scale_pitch_classes(0, "major") == (0, 2, 4, 5, 7, 9, 11)
    assert scale_pitch_classes(9, "minor") == (9, 11, 0, 2, 4, 5, 7)
    assert set(scale_pitch_classes(9, "minor")) == set(scale_pitch_classes(0, "major"))
    assert set(scale_pitch_classes(9, "minor pentatonic")) == set(scale_pitch_classes(0, "pentatonic"))
    assert scale_pitches(0, "major", 60, 72) == (60, 62, 64, 65, 67, 69, 71, 72)


def test_chords_are_stacked_thirds() -> None:
    assert chord_pitch_classes(0, "major", 0, 3) == (0, 4, 7)
    assert chord_pitch_classes(0, "major", 4, 4) == (7, 11, 2, 5)
    assert chord_pitch_classes(0, "major", 3, 5) == (5, 9, 4, 7)
    assert chord_pitch_classes(0, "major", 0, 5) == (0, 4, 7), "the tonic is a triad"
    assert chord_pitch_classes(0, "major", 1, 5) == (2, 5, 9, 0), "a ninth would lie a semitone from the third"
    assert chord_pitch_classes(9, "harmonic minor", 4, 3) == (4, 8, 11)
    assert chord_pitch_classes(0, "minor", 0, 2) == (0, 7)
    assert chord_pitches((0, 4, 7), 60, 72) == (60, 64, 67, 72)


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_chords_belong_to_their_scale(mode: str, size: int) -> None:
    for root in range(12):
        for degree in range(len(MODES[mode])):
            chord = chord_pitch_classes(root, mode, degree, size)
            assert set(chord) <= set(scale_pitch_classes(root, mode))
            is_triad = degree == 0 and len(MODES[mode]) == 7
            assert len(set(chord)) == len(chord) == min(size, 3 if is_triad else 4)
            assert chord[0] == scale_pitch_classes(root, mode)[degree]


@pytest.mark.parametrize("mode", list(MODES))
def test_progressions_start_on_the_tonic(mode: str) -> None:
    assert all(degrees[0] == 0 and len(degrees) == 4 for degrees in PROGRESSIONS[mode])
    named = [degrees for modes in GENRE_PROGRESSIONS.values() for degrees in modes.get(mode, ())]
    assert all(degrees[0] == 0 and len(degrees) in (4, 8, 12) for degrees in named)
    assert all(max(degrees) < len(MODES[mode]) for degrees in (*PROGRESSIONS[mode], *named))


def test_voices_move_as_little_as_possible() -> None:
    first = lead_voices((0, 4, 7), (), 48, 60)
    assert {pitch % 12 for pitch in first} == {0, 4, 7}
    second = lead_voices((9, 0, 4), first, 48, 60)
    assert len(set(first) & set(second)) == 2, "C major and A minor share two pitches"
    assert lead_voices((0, 4, 7), first, 48, 60) == first


def test_semitone_clashes_are_avoided_where_there_is_room() -> None:
    assert not num_clashes(lead_voices((0, 4, 7, 11), (), 48, 60))
    assert num_clashes(lead_voices((5, 9, 0, 4), (), 48, 60)) == 1
