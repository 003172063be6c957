"""Training batches: known frames, generated frames, hints, references, prompts."""

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
from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.vocabulary import ALWAYS_ID, TOKEN_IDS
from configs.demo.recipe.instruments import LAYERS, channels_of
from configs.demo.recipe.latents import CHANNELS, SILENCE


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
