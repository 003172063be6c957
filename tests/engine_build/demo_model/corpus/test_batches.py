"""Training batches: known frames, generated frames, prompts."""

import numpy as np
import pytest

from engine_build.demo_model.corpus.batches import (
    Pool,
    draw_batch,
    draw_generate_mask,
    draw_time,
    make_context,
    make_pool,
    pack_tokens,
)
from engine_build.demo_model.corpus.vocabulary import ALWAYS_ID
from engine_build.demo_model.latents import CHANNELS, SILENCE


@pytest.fixture(scope="module")
def pool() -> Pool:
    return make_pool(12, seed=3)


def test_a_pool_is_deterministic(pool: Pool) -> None:
    again = make_pool(12, seed=3)
    assert pool.songs == again.songs
    assert np.array_equal(pool.levels, again.levels)
    assert make_pool(12, seed=4).songs != pool.songs


def test_a_batch_is_deterministic(pool: Pool) -> None:
    first, again = (draw_batch(pool, np.random.default_rng(1), 6, 64) for _ in range(2))
    assert np.array_equal(first.latents, again.latents)
    assert np.array_equal(first.noise, again.noise)
    assert np.array_equal(first.token_ids, again.token_ids)


def test_the_context_holds_what_is_known_and_silence_elsewhere() -> None:
    latents = np.random.default_rng(0).standard_normal((10, CHANNELS)).astype(np.float32)
    generate = np.arange(10) >= 4
    context = make_context(latents, generate)
    assert np.array_equal(context[:4, :CHANNELS], latents[:4])
    assert np.all(context[4:, :CHANNELS] == np.float32(SILENCE))
    assert np.array_equal(context[:, CHANNELS:], np.repeat(generate[:, None], CHANNELS, axis=1))


def test_a_third_of_the_rows_knows_frames(pool: Pool) -> None:
    batch = draw_batch(pool, np.random.default_rng(2), 300, 64)
    knows = (batch.context[:, :, CHANNELS:] == 0).any(axis=(1, 2))
    assert 0.25 < knows.mean() < 0.45
    known = batch.context[:, :, CHANNELS] == 0
    assert np.array_equal(batch.context[:, :, :CHANNELS][known], batch.latents[known])


def test_one_prompt_in_ten_is_empty(pool: Pool) -> None:
    batch = draw_batch(pool, np.random.default_rng(2), 400, 64)
    assert np.all(batch.token_ids[:, 0] == ALWAYS_ID)
    assert np.all(batch.mask[:, 0] == 1.0)
    assert 0.05 < (batch.mask.sum(axis=1) == 1).mean() < 0.15


def test_masks_have_known_and_generated_frames() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        generate = draw_generate_mask(rng, 256)
        assert 24 <= generate.sum() <= 256 - 15


def test_flow_times_are_in_range_and_mostly_noisy() -> None:
    times = draw_time(np.random.default_rng(0), 4000)
    assert 0.0 < times.min() < times.max() < 1.0
    assert 0.6 < times.mean() < 0.7


def test_rows_of_tokens_are_padded_at_the_end() -> None:
    tokens, mask = pack_tokens([[3, 5], []])
    assert tokens.tolist() == [[ALWAYS_ID, 3, 5], [ALWAYS_ID, ALWAYS_ID, ALWAYS_ID]]
    assert mask.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]
