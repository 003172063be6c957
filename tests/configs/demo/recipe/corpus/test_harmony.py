"""Chords, arpeggios and bass follow the bars."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from configs.demo.recipe.corpus.form import Bar, Note, bars_of
from configs.demo.recipe.corpus.harmony import write_arp, write_bass, write_pad
from configs.demo.recipe.corpus.songs import Song, draw_song
from configs.demo.recipe.instruments import REGISTERS
from configs.demo.recipe.latents import FIRST_PITCH

SONG = replace(
    draw_song(np.random.default_rng(3)),
    genre="jazz",
    mode="major",
    meter="4/4",
    section=None,
    density=1,
    articulation=1,
)


def in_bar(notes: list[Note], bar: Bar, song: Song) -> list[Note]:
    return [note for note in notes if bar.start_beat <= note.start_beat < bar.start_beat + song.beats_per_bar]


def test_chords_are_the_bars_voicings() -> None:
    bars = bars_of(SONG, 8)
    notes = list(write_pad(SONG, bars, np.random.default_rng(0)))
    for bar in bars:
        assert {note.channel + FIRST_PITCH for note in in_bar(notes, bar, SONG)} == set(bar.voicing)


def test_arpeggios_are_broken_chords() -> None:
    bars = bars_of(SONG, 8)
    notes = list(write_arp(SONG, bars, np.random.default_rng(0)))
    for bar in bars:
        struck = in_bar(notes, bar, SONG)
        assert len({note.start_beat for note in struck}) == len(struck)
        assert {(note.channel + FIRST_PITCH) % 12 for note in struck} <= set(bar.chord)


def test_a_walking_bass_begins_on_the_root_and_leads_to_the_next() -> None:
    bars = bars_of(SONG, 9)
    notes = list(write_bass(SONG, bars, np.random.default_rng(0)))
    for bar, following in pairwise(bars):
        walked = [(note.channel + FIRST_PITCH) % 12 for note in in_bar(notes, bar, SONG)]
        assert len(walked) == 4
        assert walked[0] == bar.chord[0]
        assert min((walked[-1] - following.chord[0]) % 12, (following.chord[0] - walked[-1]) % 12) <= 2
    low, high = REGISTERS["bass"]
    assert all(low <= note.channel + FIRST_PITCH <= high for note in notes)


def test_reggae_chords_are_off_the_beat() -> None:
    song = replace(SONG, genre="reggae", mode="minor", density=0)
    notes = list(write_pad(song, bars_of(song, 4), np.random.default_rng(1)))
    assert notes
    assert all(note.start_beat % 4 != 0 for note in notes)


def test_staccato_is_short() -> None:
    bars = bars_of(SONG, 4)
    lengths = []
    for articulation in (0, 1):
        notes = write_pad(replace(SONG, articulation=articulation), bars, np.random.default_rng(0))
        lengths.append(np.mean([note.end_beat - note.start_beat for note in notes]))
    assert lengths[0] < 0.7 * lengths[1]
