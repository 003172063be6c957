"""Drums: grooves, fills, breaks and builds."""

from dataclasses import replace

import numpy as np

from configs.demo.recipe.corpus.drums import write_drums
from configs.demo.recipe.corpus.form import Note, bars_of
from configs.demo.recipe.corpus.songs import Song, draw_song
from configs.demo.recipe.latents import HAT, KICK, SNARE

SONG = replace(
    draw_song(np.random.default_rng(3)), genre="house", meter="4/4", section=None, density=1, loudness=2, bpm=120
)


def drums(song: Song, num_bars: int = 8, seed: int = 0) -> list[Note]:
    return list(write_drums(song, bars_of(song, num_bars), np.random.default_rng(seed)))


def beats(notes: list[Note], channel: int, bar: int) -> list[float]:
    return [
        note.start_beat - 4 * bar for note in notes if note.channel == channel and 0 <= note.start_beat - 4 * bar < 4
    ]


def test_house_has_four_on_the_floor_and_hats_between() -> None:
    notes = drums(SONG)
    assert beats(notes, KICK, 0) == [0.0, 1.0, 2.0, 3.0]
    assert beats(notes, SNARE, 0) == [1.0, 3.0]
    assert {0.5, 1.5, 2.5, 3.5} <= set(beats(notes, HAT, 0))


def test_a_waltz_has_one_kick_a_bar() -> None:
    song = replace(SONG, genre="waltz", meter="3/4")
    kicks = [note.start_beat for note in drums(song) if note.channel == KICK]
    assert kicks == [3.0 * bar for bar in range(8)]


def test_jazz_swings() -> None:
    notes = drums(replace(SONG, genre="jazz"))
    assert any(abs(beat % 1 - 0.667) < 1e-6 for beat in beats(notes, HAT, 0))


def test_phrases_end_with_fills() -> None:
    has_fill = [
        beats(drums(SONG, seed=seed), SNARE, 3) != beats(drums(SONG, seed=seed), SNARE, 2) for seed in range(20)
    ]
    assert 0.5 < np.mean(has_fill) < 1.0


def test_dense_songs_have_ghost_notes() -> None:
    snares = [note.velocity for note in drums(replace(SONG, genre="funk", density=2)) if note.channel == SNARE]
    assert min(snares) < 0.5 * max(snares)


def test_a_break_has_no_snare_and_a_build_rolls() -> None:
    assert not [note for note in drums(replace(SONG, section="break")) if note.channel == SNARE]
    build = drums(replace(SONG, section="build", density=2))
    assert len(beats(build, SNARE, 4)) < len(beats(build, SNARE, 5)) < len(beats(build, SNARE, 7)) == 16
