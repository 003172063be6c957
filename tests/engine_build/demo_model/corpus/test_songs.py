"""The corpus: deterministic, in key, in time, in its registers."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from engine_build.demo_model.corpus.songs import (
    BEATS_PER_BAR,
    LAYERS,
    REGISTERS,
    TEMPOS_BPM,
    Song,
    draw_song,
    notes,
    render,
)
from engine_build.demo_model.corpus.theory import MODES, lead_voices, scale_pitch_classes
from engine_build.demo_model.latents import FIRST_PITCH, NUM_PITCHES, RESERVED

FRAMES = 256


def songs(count: int) -> Iterable[Song]:
    return [draw_song(np.random.default_rng([9, index])) for index in range(count)]


def test_a_seed_gives_one_song_and_one_roll() -> None:
    first, again, other = (draw_song(np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert np.array_equal(render(first, FRAMES), render(again, FRAMES))


def test_a_longer_roll_begins_with_the_shorter_one() -> None:
    for song in songs(10):
        assert np.array_equal(render(song, 2 * FRAMES)[: FRAMES - 50], render(song, FRAMES)[: FRAMES - 50])


def test_levels_are_levels_and_the_reserved_channel_is_silent() -> None:
    for song in songs(20):
        levels = render(song, FRAMES)
        assert levels.min() >= 0.0
        assert levels.max() <= 1.0
        assert not levels[:, RESERVED].any()


def test_every_note_is_in_key() -> None:
    for song in songs(40):
        pitches = {note.channel + FIRST_PITCH for note in notes(song, 32.0) if note.channel < NUM_PITCHES}
        assert {pitch % 12 for pitch in pitches} <= set(scale_pitch_classes(song.root, song.mode))


def test_a_piece_begins_on_its_tonic() -> None:
    for song in songs(40):
        bass = list(notes(replace(song, layers=frozenset({"bass"})), 4.0))
        assert bass[0].channel % 12 == song.root
        assert bass[0].start_beat == 0.0


def test_every_layer_sounds_in_its_own_register_only() -> None:
    for layer in LAYERS:
        for song in songs(10):
            levels = render(replace(song, layers=frozenset({layer})), FRAMES)
            low, high = REGISTERS.get(layer, (FIRST_PITCH + NUM_PITCHES, FIRST_PITCH + RESERVED - 1))
            sounding = np.flatnonzero(levels.any(axis=0)) + FIRST_PITCH
            assert len(sounding)
            assert low <= sounding.min()
            assert sounding.max() <= high


def test_a_layer_does_not_depend_on_the_others() -> None:
    song = replace(draw_song(np.random.default_rng(3)), layers=frozenset(LAYERS))
    alone = render(replace(song, layers=frozenset({"melody"})), FRAMES)
    together = render(song, FRAMES)
    low, high = (pitch - FIRST_PITCH for pitch in REGISTERS["melody"])
    assert np.array_equal(alone[:, low : high + 1], together[:, low : high + 1])


@pytest.mark.parametrize("bpm", TEMPOS_BPM)
def test_notes_start_on_the_grid(bpm: int) -> None:
    song = replace(draw_song(np.random.default_rng(5)), bpm=bpm, layers=frozenset(LAYERS), density=2)
    assert all((4 * note.start_beat) % 1 == 0 for note in notes(song, 16.0))
    assert song.frames_per_beat == pytest.approx(1500 / bpm)


def test_tempos_are_distinguishable() -> None:
    ratios = np.array(TEMPOS_BPM[1:]) / np.array(TEMPOS_BPM[:-1])
    assert ratios.min() > 1.09
    assert TEMPOS_BPM[-1] / TEMPOS_BPM[0] < 2.0


def test_everything_a_prompt_can_name_occurs() -> None:
    drawn = list(songs(400))
    assert {song.root for song in drawn} == set(range(12))
    assert {song.mode for song in drawn} == set(MODES)
    assert {song.bpm for song in drawn} == set(TEMPOS_BPM)
    assert {len(song.layers) for song in drawn} == set(range(1, len(LAYERS) + 1))


def test_voices_move_little_between_chords() -> None:
    low, high = REGISTERS["pad"]
    first = lead_voices((0, 4, 7), (), low, high)
    second = lead_voices((9, 0, 4), first, low, high)
    assert len(set(first) & set(second)) == 2
    assert all(low <= pitch <= high for pitch in (*first, *second))


def test_a_dense_song_has_more_notes_than_a_sparse_one() -> None:
    song = replace(draw_song(np.random.default_rng(5)), layers=frozenset(LAYERS))
    counts = [len(list(notes(replace(song, density=density), 4.0 * BEATS_PER_BAR))) for density in range(3)]
    assert counts == sorted(counts)
    assert counts[0] < counts[2]
