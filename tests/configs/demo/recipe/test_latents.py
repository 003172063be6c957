"""The scaling between levels and latents."""

import numpy as np

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.latents import CHANNELS, SILENCE, latents_from_levels, levels_from_latents


def test_levels_survive_the_scaling() -> None:
    levels = np.random.default_rng(0).random((5, CHANNELS), np.float32)
    assert np.abs(levels_from_latents(latents_from_levels(levels)) - levels).max() < 1e-6


def test_silence_is_level_zero_and_below_is_clamped() -> None:
    assert np.all(latents_from_levels(np.zeros((3, CHANNELS))) == np.float32(SILENCE))
    assert not levels_from_latents(np.full((3, CHANNELS), SILENCE - 1.0)).any()


def test_the_corpus_is_of_unit_order() -> None:
    songs = [draw_song(np.random.default_rng(index)) for index in range(60)]
    latents = latents_from_levels(np.stack([render(song, 256, song.layers) for song in songs]))
    assert 0.5 < latents.std() < 1.5
    assert abs(latents.mean()) < 0.3
