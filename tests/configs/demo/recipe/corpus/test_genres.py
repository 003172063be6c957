"""The table of genres: patterns of the right length and letters, real instruments, tempos and modes in range."""

import pytest

from configs.demo.recipe.corpus.genres import (
    BEATS_PER_BAR,
    GENRES,
    METER_GROOVES,
    METERS,
    STEPS_PER_BEAT,
    Groove,
)
from configs.demo.recipe.corpus.songs import BPM_RANGE
from configs.demo.recipe.corpus.theory import GENRE_PROGRESSIONS, MODES
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS


def check_patterns(groove: Groove, meter: str) -> None:
    size = BEATS_PER_BAR[meter] * STEPS_PER_BEAT[meter]
    for pattern in (groove.kick, groove.snare, groove.hat, *groove.chords):
        assert len(pattern) == size
        assert set(pattern) <= set("XxOo-.")
    for pattern in groove.bass:
        assert len(pattern) == size
        assert set(pattern) <= set("RFTArfta-.")
    assert all(any(letter in "XO" for letter in pattern) for pattern in (groove.kick, *groove.chords))
    assert all(any(letter.isupper() for letter in pattern) for pattern in groove.bass)


@pytest.mark.parametrize("name", list(GENRES))
def test_a_genre_is_a_whole_rule(name: str) -> None:
    genre = GENRES[name]
    check_patterns(genre.groove, genre.meter)
    assert BPM_RANGE[0] <= genre.bpm[0] < genre.bpm[1] <= BPM_RANGE[1]
    assert genre.layer_set <= set(LAYERS)
    assert len(genre.layer_set) >= 2
    assert set(genre.modes) <= set(MODES)
    assert not genre.progressions or genre.progressions in GENRE_PROGRESSIONS
    for layer in LAYERS:
        assert set(genre.instruments[layer]) <= set(INSTRUMENTS[layer])


@pytest.mark.parametrize("meter", METERS)
def test_every_meter_has_a_groove(meter: str) -> None:
    check_patterns(METER_GROOVES[meter], meter)


def test_no_two_genres_have_the_same_groove() -> None:
    grooves = [(genre.groove, genre.bpm) for genre in GENRES.values()]
    assert len(set(grooves)) == len(grooves)
