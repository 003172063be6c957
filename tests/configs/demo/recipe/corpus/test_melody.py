"""The melody: phrases that repeat, vary and come to rest."""

from dataclasses import replace

import numpy as np
import pytest

from configs.demo.recipe.corpus.form import Note, bars_of
from configs.demo.recipe.corpus.melody import write_melody
from configs.demo.recipe.corpus.songs import Song, draw_song
from configs.demo.recipe.instruments import REGISTERS
from configs.demo.recipe.latents import FIRST_PITCH


def song(seed: int, **fields: object) -> Song:
    drawn = draw_song(np.random.default_rng([7, seed]))
    return replace(drawn, **{"genre": "pop", "meter": "4/4", "section": None, "density": 1, **fields})  # type: ignore[arg-type]


def melody(of: Song, num_bars: int = 16) -> list[Note]:
    return list(write_melody(of, bars_of(of, num_bars), np.random.default_rng(of.seed)))


def rhythm(notes: list[Note], bar: int) -> list[float]:
    return [note.start_beat - 4 * bar for note in notes if 0 <= note.start_beat - 4 * bar < 4]


@pytest.mark.parametrize("seed", range(12))
def test_a_phrase_repeats_its_motif_and_closes_with_a_rest_on_a_chord_tone(seed: int) -> None:
    of = song(seed)
    notes, bars = melody(of), bars_of(of, 16)
    assert rhythm(notes, 0) == rhythm(notes, 2) == rhythm(notes, 4)
    for bar in bars[3::4]:
        last = [note for note in notes if note.start_beat < bar.start_beat + 4][-1]
        assert (last.channel + FIRST_PITCH) % 12 in bar.triad
        assert last.end_beat <= bar.start_beat + 3.0


def test_phrase_b_has_motifs_of_its_own() -> None:
    differ = [rhythm(melody(song(seed)), 0) != rhythm(melody(song(seed)), 8) for seed in range(12)]
    assert np.mean(differ) > 0.5


def test_the_melody_stays_in_its_register_and_moves_in_small_steps() -> None:
    low, high = REGISTERS["melody"]
    for seed in range(12):
        pitches = np.array([note.channel + FIRST_PITCH for note in melody(song(seed))])
        assert low <= pitches.min() < pitches.max() <= high
        assert np.median(np.abs(np.diff(pitches))) <= 4


def test_a_riff_is_one_figure() -> None:
    notes = melody(song(1, genre="techno"))
    assert rhythm(notes, 0) == rhythm(notes, 1) == rhythm(notes, 2)


def test_a_chorus_lies_above_a_verse() -> None:
    means = [
        np.mean([note.channel for seed in range(12) for note in melody(song(seed, section=section))])
        for section in ("verse", "chorus")
    ]
    assert means[0] + 1 < means[1]
