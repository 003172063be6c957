"""Chords, arpeggios and bass follow the bars."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from configs.demo.recipe.corpus.form import Bar, Note, bars_of
from configs.demo.recipe.corpus.harmony import write_arp, write_bass, write_pad
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import Song, draw_song
from configs.demo.recipe.instruments import REGISTERS, pitch_channels
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
    song = replace(SONG, genre="reggae", mode="minor", density=1)
    notes = list(write_pad(song, bars_of(song, 4), np.random.default_rng(1)))
    assert notes
    assert all(note.start_beat % 4 != 0 for note in notes)


@pytest.mark.parametrize(
    "change", [{"density": 0}, {"articulation": 2}, {"instruments": {**SONG.instruments, "pad": "strings"}}]
)
def test_chords_are_held_in_calm_songs_and_by_strings(change: dict[str, Any]) -> None:
    song = replace(SONG, genre="reggae", mode="minor", **change)
    share, staccato = (
        (render(each, 400, ["pad"])[:, list(pitch_channels("pad"))].max(axis=1) > 0.05).mean()
        for each in (song, replace(song, articulation=0))
    )
    assert share > 0.95
    assert staccato < 0.8


def test_every_layer_ends_on_one_stroke_of_the_tonic() -> None:
    bars = bars_of(SONG, 4, ends=True)
    for layer, write in (("pad", write_pad), ("arp", write_arp), ("bass", write_bass)):
        last = [note for note in write(SONG, bars, np.random.default_rng(1)) if note.start_beat >= bars[3].start_beat]
        assert {note.start_beat for note in last} == {bars[3].start_beat}
        assert {note.end_beat for note in last} == {bars[3].start_beat + SONG.beats_per_bar}
        pitches = {(note.channel + FIRST_PITCH) % 12 for note in last}
        assert SONG.root in pitches, layer
        assert pitches <= set(bars[3].triad), layer


def test_arpeggios_begin_on_the_root() -> None:
    bars = bars_of(replace(SONG, genre="rock"), 4)
    notes = [
        note for note in write_arp(SONG, bars, np.random.default_rng(1)) if note.start_beat % SONG.beats_per_bar == 0
    ]
    assert [(note.channel + FIRST_PITCH) % 12 for note in notes] == [bar.chord[0] for bar in bars]


def test_staccato_is_short() -> None:
    bars = bars_of(SONG, 4)
    lengths = []
    for articulation in (0, 1):
        notes = write_pad(replace(SONG, articulation=articulation), bars, np.random.default_rng(0))
        lengths.append(np.mean([note.end_beat - note.start_beat for note in notes]))
    assert lengths[0] < 0.7 * lengths[1]
