"""The judge of generated music: what is silent, clipped or out of key."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from helpers.sound import judged, named_keys

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import draw_song
from configs.demo.recipe.latents import CHANNELS, FIRST_PITCH, SAMPLE_RATE_HZ

SONG = replace(draw_song(np.random.default_rng(5)), root=9, mode="minor", loudness=2)
LEVELS = render(SONG, 256, ["pad", "bass"])
TONE = (0.3 * np.sin(np.arange(2 * SAMPLE_RATE_HZ) / 20.0))[:, None].astype(np.float32)


def test_the_keys_of_a_prompt() -> None:
    assert named_keys("pads in C sharp major") == [(1, "major")]
    assert {root for root, _ in named_keys("bass in A")} == {9}
    assert len(named_keys("dark bass")) > 12


def test_music_in_its_key_is_found() -> None:
    assert judged(TONE, LEVELS, "pads in A minor").in_key > 0.99
    assert judged(TONE, LEVELS, "pads").in_key > 0.99
    assert judged(TONE, LEVELS, "pads in B major").in_key < 0.7


def test_all_pitches_at_once_are_in_no_key() -> None:
    levels = np.zeros((10, CHANNELS), np.float32)
    levels[:, 48 - FIRST_PITCH : 72 - FIRST_PITCH] = 0.5
    assert judged(TONE, levels, "pads").in_key < 0.6


def test_silence_and_clipping_are_found() -> None:
    assert judged(TONE, LEVELS, "").median_rms > 0.1
    assert judged(TONE, LEVELS, "").clipped_share == 0.0
    rests = np.concatenate((TONE, np.zeros_like(TONE), TONE))
    assert judged(rests, LEVELS, "").median_rms > 0.1
    assert judged(np.concatenate((rests, np.zeros_like(rests))), LEVELS, "").median_rms == 0.0
    assert judged(np.sign(TONE), LEVELS, "").clipped_share > 0.9
