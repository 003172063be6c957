"""Rendered songs: deterministic, in key, in time, in their registers, every layer in every ten seconds."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from configs.demo.recipe.corpus.rendering import nearest_frames, notes_of, render
from configs.demo.recipe.corpus.songs import SECTIONS, Song, draw_instruments, draw_song
from configs.demo.recipe.corpus.theory import scale_pitch_classes
from configs.demo.recipe.instruments import LAYERS, TIMBRE_CHANNELS, channels_of, pitch_channels, timbre_levels
from configs.demo.recipe.latents import CHANNELS, FIRST_PITCH, NUM_PITCHES

FRAMES = 512
WINDOW_FRAMES = 250  # 10 s


def songs(count: int) -> Iterable[Song]:
    return [draw_song(np.random.default_rng([9, index])) for index in range(count)]


def test_a_song_gives_one_roll_and_a_longer_one_begins_with_it() -> None:
    for song in songs(20):
        levels = render(song, FRAMES)
        assert np.array_equal(levels, render(song, FRAMES))
        assert np.array_equal(levels[:200], render(song, 256)[:200])


def test_levels_are_levels() -> None:
    for song in songs(40):
        levels = render(song, FRAMES)
        assert levels.shape == (FRAMES, CHANNELS)
        assert 0.0 <= levels.min() <= levels.max() <= 1.0


def test_every_note_is_in_key() -> None:
    for song in songs(40):
        notes = [note for listed in notes_of(song, 32.0).values() for note in listed]
        pitches = {note.channel + FIRST_PITCH for note in notes if note.channel < NUM_PITCHES}
        assert {pitch % 12 for pitch in pitches} <= set(scale_pitch_classes(song.root, song.mode))


def test_a_piece_begins_on_its_tonic() -> None:
    for song in songs(60):
        bass = notes_of(song, 4.0, ["bass"])["bass"][0]
        assert (bass.channel + FIRST_PITCH) % 12 == song.root


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_sounds_in_its_own_channels_beside_other_layers(layer: str) -> None:
    for song in songs(10):
        alone, together = render(song, 256, [layer]), render(song, 256)
        channels = list(channels_of(layer))
        assert np.array_equal(alone[:, channels], together[:, channels])
        assert not np.delete(alone, channels, axis=1).any()
        assert np.allclose(alone[:, TIMBRE_CHANNELS[layer]], timbre_levels(layer, song.instruments[layer]))


def test_every_layer_sounds_in_every_ten_seconds() -> None:
    for song in [*songs(40), *(replace(song, section=section) for section in SECTIONS for song in songs(4))]:
        levels = render(song, FRAMES)
        for start in (0, 131, FRAMES - WINDOW_FRAMES):
            for layer in LAYERS:
                window = levels[start : start + WINDOW_FRAMES, list(pitch_channels(layer))].max(axis=1)
                assert (window > 0.2).mean() > 0.025, (song, layer)


def test_the_halves_of_a_song_differ() -> None:
    for song in songs(40):
        first, second = np.split(render(song, FRAMES), 2)
        assert np.linalg.norm(first - second) > 0.3 * np.linalg.norm(first)


def test_other_instruments_play_the_same_notes_with_other_envelopes() -> None:
    for song in songs(10):
        other = replace(song, instruments=draw_instruments(np.random.default_rng(song.seed), song.genre))
        for layer in LAYERS:
            notes, others = notes_of(song, 16.0)[layer], notes_of(other, 16.0)[layer]
            assert [note[:4] for note in notes] == [note[:4] for note in others]
    piano, organ = (
        render(replace(song, instruments={**song.instruments, "pad": name}), 256, ["pad"])
        for name in ("piano", "organ")
    )
    assert not np.array_equal(piano, organ)


@pytest.mark.parametrize("bpm", [60, 97, 131, 180])
@pytest.mark.parametrize("meter", ["4/4", "3/4", "6/8"])
def test_drums_repeat_with_the_bar(bpm: int, meter: str) -> None:
    song = replace(draw_song(np.random.default_rng(5)), bpm=bpm, meter=meter, section=None, density=1)
    kicks = [
        note.start_beat for note in notes_of(song, 8.0 * song.beats_per_bar, ["drums"])["drums"] if note.channel == 52
    ]
    bars = [
        [beat - bar for beat in kicks if 0 <= beat - bar < song.beats_per_bar]
        for bar in range(0, 8, song.beats_per_bar)
    ]
    assert all(np.allclose(bar, bars[0]) for bar in bars)
    assert song.frames_per_beat == pytest.approx(1500 / bpm)


def test_a_dense_song_has_more_notes_than_a_sparse_one() -> None:
    for song in songs(20):
        song = replace(song, section=None)
        counts = [sum(map(len, notes_of(replace(song, density=density), 32.0).values())) for density in range(3)]
        assert counts[0] < counts[1] < counts[2]


def test_halves_of_a_frame_go_down() -> None:
    assert nearest_frames(np.array([0.0, 0.5, 0.502, 1.5, 2.0])).tolist() == [0, 0, 1, 1, 2]
