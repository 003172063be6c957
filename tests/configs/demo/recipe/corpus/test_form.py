"""Bars, patterns and where steps lie in time."""

from dataclasses import replace

import numpy as np
import pytest

from configs.demo.recipe.corpus.form import accents, bars_of, degrees_of, hits_of, step_beats
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.corpus.theory import LEADING_DEGREES, num_clashes
from configs.demo.recipe.instruments import REGISTERS

SONG = replace(draw_song(np.random.default_rng(3)), genre="pop", mode="major", meter="4/4", section=None)


def test_phrases_follow_the_form() -> None:
    degrees, bars = degrees_of(SONG, 16), bars_of(SONG, 16)
    phrases = [degrees[start : start + 4] for start in range(0, 16, 4)]
    assert "".join(bar.phrase for bar in bars[::4]) == "AABA"
    assert phrases[1] == phrases[3]
    assert phrases[0][:2] == phrases[1][:2]
    assert [phrase[0] for phrase in phrases] == [0, 0, 0, 0]
    assert phrases[1][2:] == [LEADING_DEGREES[SONG.mode], 0], "the second A goes home"
    assert all(bar.start_beat == 4 * bar.index for bar in bars)


def test_a_piece_that_ends_goes_home_in_its_last_bars() -> None:
    bars, endless = bars_of(SONG, 7, ends=True), bars_of(SONG, 7)
    assert [bar.is_final for bar in bars] == [False] * 6 + [True]
    assert not any(bar.is_final for bar in endless)
    assert bars[6].triad == bars[0].triad
    assert bars[5].next_root == SONG.root
    assert [bar.chord for bar in bars[:5]] == [bar.chord for bar in endless[:5]]


def test_a_blues_has_twelve_bars() -> None:
    blues = replace(SONG, genre="blues", mode="mixolydian")
    degrees = degrees_of(blues, 24)
    assert degrees[:12] == degrees[12:]
    assert degrees[4:6] == [3, 3]


def test_voicings_stay_in_the_register_of_chords() -> None:
    low, high = REGISTERS["pad"]
    for index in range(30):
        song = draw_song(np.random.default_rng([4, index]))
        for bar in bars_of(song, 8):
            assert all(low <= pitch <= high for pitch in bar.voicing)
            assert {pitch % 12 for pitch in bar.voicing} == set(bar.chord)
            assert not num_clashes(bar.voicing)


def test_a_density_keeps_the_hits_of_its_letters() -> None:
    assert [hit.step for hit in hits_of("X.o.x.O.", 0)] == [0, 6]
    assert [hit.step for hit in hits_of("X.o.x.O.", 1)] == [0, 4, 6]
    assert [hit.step for hit in hits_of("X.o.x.O.", 2)] == [0, 2, 4, 6]
    assert [(hit.step, hit.end) for hit in hits_of("X-x-X...", 0)] == [(0, 4), (4, 5)], "a held hit takes over"
    assert [(hit.step, hit.end) for hit in hits_of("X.x-X...", 0)] == [(0, 1), (4, 5)]
    assert [hit.letter for hit in hits_of("R-f-", 1)] == ["R", "f"]


def test_swing_moves_what_lies_off_the_beat() -> None:
    assert step_beats("4/4", 4, 0.5, 0.5)[:5] == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert step_beats("4/4", 4, 0.667, 0.5)[2] == 0.667
    assert step_beats("4/4", 4, 0.5, 0.6)[1] == 0.3
    assert step_beats("6/8", 2, 0.667, 0.6) == tuple(step / 6 for step in range(13))


def test_sections_change_density_and_dynamics() -> None:
    song = replace(SONG, density=1, loudness=1)
    by_section = {
        name: bars_of(replace(song, section=name), 16) for name in ("intro", "chorus", "break", "build", "outro")
    }
    assert [bar.density for bar in by_section["intro"]][:4] == [0, 0, 0, 0]
    assert by_section["intro"][12].density == 1
    assert {bar.density for bar in by_section["chorus"]} == {2}
    assert {bar.density for bar in by_section["break"]} == {0}
    assert by_section["build"][0].velocity < by_section["build"][7].velocity
    assert by_section["outro"][0].velocity > by_section["outro"][8].velocity


@pytest.mark.parametrize(("meter", "beats"), [("4/4", (0, 4, 8, 12)), ("3/4", (0, 4, 8)), ("6/8", (0, 6))])
def test_beats_weigh_more_than_what_lies_between(meter: str, beats: tuple[int, ...]) -> None:
    weights = accents(meter)
    assert weights[0] == max(weights)
    assert {step for step, weight in enumerate(weights) if weight >= 0.9} == set(beats)
