"""Songs: deterministic, and everything that a prompt can name occurs."""

from functools import cache

import numpy as np

from configs.demo.recipe.corpus.genres import GENRES, METERS
from configs.demo.recipe.corpus.songs import BPM_RANGE, SECTIONS, Song, draw_instruments, draw_song
from configs.demo.recipe.corpus.theory import MODES
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS


@cache
def songs() -> list[Song]:
    return [draw_song(np.random.default_rng([9, index])) for index in range(1500)]


def test_a_seed_gives_one_song() -> None:
    assert draw_song(np.random.default_rng(1)) == draw_song(np.random.default_rng(1))
    assert draw_song(np.random.default_rng(1)) != draw_song(np.random.default_rng(2))


def test_everything_a_prompt_can_name_occurs() -> None:
    assert {song.root for song in songs()} == set(range(12))
    assert {song.mode for song in songs()} == set(MODES)
    assert {song.bpm for song in songs()} == set(range(BPM_RANGE[0], BPM_RANGE[1] + 1))
    assert {song.meter for song in songs()} == set(METERS)
    assert {song.genre for song in songs()} == set(GENRES)
    assert {song.section for song in songs()} == {None, *SECTIONS}
    assert {len(song.layers) for song in songs()} == set(range(1, len(LAYERS) + 1))
    for layer in LAYERS:
        assert {song.instruments[layer] for song in songs()} == set(INSTRUMENTS[layer])


def test_most_songs_are_what_their_genre_suggests() -> None:
    in_range = [song.rule.bpm[0] <= song.bpm <= song.rule.bpm[1] for song in songs()]
    assert np.mean(in_range) > 0.6
    assert np.mean([song.meter == song.rule.meter for song in songs()]) > 0.75
    assert np.mean([song.layers == song.rule.layer_set for song in songs()]) > 0.3


def test_a_beat_of_six_eight_is_a_dotted_quarter() -> None:
    beats = {song.meter: song.beats_per_bar for song in songs()}
    assert beats == {"4/4": 4, "3/4": 3, "6/8": 2}
    assert all(song.frames_per_beat == 1500 / song.bpm for song in songs())


def test_instruments_lean_towards_the_genre() -> None:
    drawn = [draw_instruments(np.random.default_rng(index), "reggae")["bass"] for index in range(200)]
    assert 0.5 < np.mean([name == "electric bass" for name in drawn]) < 0.85
