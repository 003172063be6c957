"""The corpus as sound: rendering and batches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from configs.demo.recipe.corpus.batches import (
    ABSENT_WEIGHT,
    FIRST_TIMBRE,
    OVERLAP_FRAMES,
    TIMBRE_WEIGHT,
    Batch,
    Bytes,
    Pool,
    draw_batch,
    draw_generate_mask,
    draw_songs,
    draw_time,
    make_context,
    make_pool,
    pack_tokens,
    silent_channels,
)
from configs.demo.recipe.corpus.rendering import nearest_frames, notes_of, render
from configs.demo.recipe.corpus.songs import SECTIONS, Song, draw_instruments, draw_song
from configs.demo.recipe.corpus.theory import scale_pitch_classes
from configs.demo.recipe.corpus.vocabulary import ALWAYS_ID, TOKEN_IDS
from configs.demo.recipe.instruments import LAYERS, TIMBRE_CHANNELS, channels_of, pitch_channels, timbre_levels
from configs.demo.recipe.latents import CHANNELS, FIRST_PITCH, NUM_PITCHES, SILENCE

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


def half(levels: Bytes) -> Bytes:
    """Hints of half the level."""
    return np.asarray(levels // 2, np.uint8)


@pytest.fixture(scope="module")
def pool() -> Pool:
    return make_pool(draw_songs(12, 3), 3, half)


@pytest.fixture(scope="module")
def batch(pool: Pool) -> Batch:
    return draw_batch(pool, np.random.default_rng(2), 300, 128)


def test_a_pool_is_deterministic(pool: Pool) -> None:
    again = make_pool(draw_songs(12, 3), 3, half)
    assert pool.songs == again.songs
    assert np.array_equal(pool.levels, again.levels)
    assert np.array_equal(pool.hints, again.hints)
    assert draw_songs(12, 4) != pool.songs


def test_songs_come_in_pairs_with_the_same_notes(pool: Pool) -> None:
    first, second = pool.songs[4], pool.songs[5]
    assert first.instruments != second.instruments
    assert first.seed == second.seed
    starts = [render(song, 200)[:, :55] > 0 for song in (first, second)]
    assert (starts[0] == starts[1]).mean() > 0.9


def test_hints_are_of_the_songs_with_some_layers(pool: Pool) -> None:
    heard = pool.hints.any(axis=1)
    for index in range(len(pool.songs)):
        for layer in LAYERS:
            channels = list(channels_of(layer))
            if heard[index, channels].any():
                assert np.array_equal(pool.hints[index][:, channels], pool.levels[index][:, channels] // 2)


def test_a_batch_is_deterministic(pool: Pool) -> None:
    first, again = (draw_batch(pool, np.random.default_rng(1), 6, 64) for _ in range(2))
    assert all(
        np.array_equal(one, other) for one, other in zip(vars(first).values(), vars(again).values(), strict=True)
    )


def test_the_context_holds_what_is_known_and_what_is_given_elsewhere() -> None:
    rng = np.random.default_rng(0)
    latents, given = (rng.standard_normal((10, CHANNELS)).astype(np.float32) for _ in range(2))
    generate = np.arange(10) >= 4
    context = make_context(latents, given, generate)
    assert np.array_equal(context[:4, :CHANNELS], latents[:4])
    assert np.array_equal(context[4:, :CHANNELS], given[4:])
    assert np.array_equal(context[:, CHANNELS:], np.repeat(generate[:, None], CHANNELS, axis=1))


def test_a_third_of_the_rows_knows_frames(batch: Batch) -> None:
    knows = (batch.context[:, :, CHANNELS:] == 0).any(axis=(1, 2))
    assert 0.25 < knows.mean() < 0.5
    known = batch.context[:, :, CHANNELS] == 0
    assert np.array_equal(batch.context[:, :, :CHANNELS][known], batch.latents[known])


def test_a_quarter_of_the_rows_has_hints(batch: Batch) -> None:
    generated = batch.context[:, :, CHANNELS] == 1
    has_hints = [
        (row[own][:, :CHANNELS] != np.float32(SILENCE)).any() for row, own in zip(batch.context, generated, strict=True)
    ]
    assert 0.18 < np.mean(has_hints) < 0.34


def test_some_rows_have_a_reference_and_name_no_instrument(batch: Batch) -> None:
    has_reference = (batch.reference != np.float32(SILENCE)).any(axis=(1, 2))
    assert 0.06 < has_reference.mean() < 0.2
    players = [TOKEN_IDS[name] for name in TOKEN_IDS if name.split(":")[0] in LAYERS]
    assert not np.isin(batch.token_ids[has_reference], players).any()
    assert np.isin(batch.token_ids[~has_reference], players).any()


def test_silent_layers_weigh_more_and_are_exactly_silent(batch: Batch) -> None:
    notes, timbres = batch.weight[:, 0, :FIRST_TIMBRE], batch.weight[:, 0, FIRST_TIMBRE:]
    silent = np.hstack([notes, timbres / TIMBRE_WEIGHT]) == ABSENT_WEIGHT
    assert 0.2 < silent.mean() < 0.7
    for latents, context, channels in zip(batch.latents, batch.context, silent, strict=True):
        is_generated = context[:, CHANNELS] == 1.0
        assert np.all(latents[is_generated][:, channels] == np.float32(SILENCE))
    assert len(silent_channels(frozenset({"drums"}))) == 60


def test_known_frames_are_as_they_were_and_may_have_other_layers(batch: Batch) -> None:
    changes = []
    for latents, context, weight in zip(batch.latents, batch.context, batch.weight, strict=True):
        is_known = context[:, CHANNELS] == 0.0
        np.testing.assert_array_equal(latents[is_known], context[is_known, :CHANNELS])
        absent = np.flatnonzero(weight[0] == ABSENT_WEIGHT)
        changes += [bool((latents[is_known][:, absent] != np.float32(SILENCE)).any())] * bool(is_known.any())
    assert 0.1 < np.mean(changes) < 0.6


def test_one_prompt_in_ten_is_empty(batch: Batch) -> None:
    assert np.all(batch.token_ids[:, 0] == ALWAYS_ID)
    assert np.all(batch.mask[:, 0] == 1.0)
    assert 0.05 < (batch.mask.sum(axis=1) == 1).mean() < 0.16


def test_masks_have_known_and_generated_frames() -> None:
    rng = np.random.default_rng(0)
    masks = [draw_generate_mask(rng, 256) for _ in range(200)]
    assert all(24 <= generate.sum() <= 256 - 15 for generate in masks)
    overlaps = [not generate[:OVERLAP_FRAMES].any() and generate[OVERLAP_FRAMES:].all() for generate in masks]
    assert 0.3 < np.mean(overlaps) < 0.6


def test_flow_times_are_in_range_and_mostly_noisy() -> None:
    times = draw_time(np.random.default_rng(0), 4000)
    assert 0.0 < times.min() < times.max() < 1.0
    assert 0.6 < times.mean() < 0.7


def test_rows_of_tokens_are_padded_at_the_end() -> None:
    tokens, mask = pack_tokens([[3, 5], []])
    assert tokens.shape == mask.shape == (2, 32)
    assert tokens[0, :4].tolist() == [ALWAYS_ID, 3, 5, ALWAYS_ID]
    assert mask[:, :4].tolist() == [[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
