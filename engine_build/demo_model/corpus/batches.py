"""Training batches: crops of songs with noise, prompt, flow time and, for continuing and repainting, known frames."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine_build.demo_model.corpus.rendering import render
from engine_build.demo_model.corpus.songs import Song, draw_song
from engine_build.demo_model.corpus.vocabulary import ALWAYS_ID, draw_concepts, token_ids
from engine_build.demo_model.latents import CANVAS_FRAMES, CHANNELS, SILENCE, FloatArray, latents_from_levels

SONG_FRAMES = 2 * CANVAS_FRAMES
LONG_EVERY = 8


@dataclass(frozen=True)
class Pool:
    """Songs with their levels, uint8 `[N, SONG_FRAMES, C]`, 255 = level 1."""

    songs: tuple[Song, ...]
    levels: npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Batch:
    """One training step's arrays; float32 but for the ids, int64."""

    latents: FloatArray  # [B, T, C] clean
    noise: FloatArray  # [B, T, C]
    time: FloatArray  # [B]
    token_ids: npt.NDArray[np.int64]  # [B, L]
    mask: FloatArray  # [B, L], 1 keep
    context: FloatArray  # [B, T, 2C]


def make_pool(num_songs: int, seed: int) -> Pool:
    """Write `num_songs` songs, deterministic per seed."""
    songs = tuple(draw_song(np.random.default_rng([seed, index])) for index in range(num_songs))
    levels = np.empty((num_songs, SONG_FRAMES, CHANNELS), np.uint8)
    for index, song in enumerate(songs):
        levels[index] = np.round(render(song, SONG_FRAMES) * 255.0)
    return Pool(songs, levels)


def draw_batch(pool: Pool, rng: np.random.Generator, size: int, frames: int) -> Batch:
    """Draw a batch of crops: from the top, from anywhere with known frames, or from anywhere as a cover's source."""
    indices = rng.integers(len(pool.songs), size=size)
    time = draw_time(rng, size)
    latents = np.empty((size, frames, CHANNELS), np.float32)
    context = np.empty((size, frames, 2 * CHANNELS), np.float32)
    for row, index in enumerate(indices):
        kind = rng.choice(("top", "known", "cover"), p=(0.54, 0.36, 0.10))
        start = 0 if kind == "top" else int(rng.integers(SONG_FRAMES - frames + 1))
        latents[row] = latents_from_levels(pool.levels[index, start : start + frames] / np.float32(255.0))
        generate = draw_generate_mask(rng, frames) if kind == "known" else np.ones(frames, bool)
        context[row] = make_context(latents[row], generate)
        if kind == "cover":  # from pure noise, only the phase of a song's start is generated
            time[row] *= 0.75
    tokens, mask = draw_tokens([pool.songs[index] for index in indices], rng)
    noise = rng.standard_normal(latents.shape, np.float32)
    return Batch(latents, noise, time, tokens, mask, context)


def draw_time(rng: np.random.Generator, size: int) -> FloatArray:
    """Flow times f32 `[B]`: logit-normal, moved towards noise as the shifted schedule is."""
    return np.asarray(1.0 / (1.0 + np.exp(-rng.normal(0.8, 1.3, size))), np.float32)


def draw_generate_mask(rng: np.random.Generator, frames: int) -> npt.NDArray[np.bool_]:
    """Bool `[T]`, true where frames are to be generated: all but a known head, all but a known tail, or a hole."""
    kind = rng.choice(("head", "tail", "hole"), p=(0.5, 0.15, 0.35))
    generate = np.ones(frames, bool)
    if kind == "head":
        generate[: int(rng.integers(16, frames - 32))] = False
    elif kind == "tail":
        generate[int(rng.integers(32, frames - 16)) :] = False
    else:
        length = int(rng.integers(24, frames - 32))
        start = int(rng.integers(8, frames - length - 7))
        generate[:] = False
        generate[start : start + length] = True
    return generate


def make_context(latents: FloatArray, generate: npt.NDArray[np.bool_]) -> FloatArray:
    """Context f32 `[T, 2C]`: known latents (silence where frames are generated), then the mask, 1 = generate."""
    known = np.where(generate[:, None], np.float32(SILENCE), latents)
    mask = np.repeat(generate[:, None], CHANNELS, axis=1)
    return np.concatenate([known, mask.astype(np.float32)], axis=1)


def draw_tokens(songs: list[Song], rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Token ids int64 `[B, L]` and mask f32 `[B, L]` of drawn prompts; one in ten is empty."""
    return pack_tokens([[] if rng.random() < 0.1 else token_ids(draw_concepts(song, rng)) for song in songs])


def pack_tokens(rows: list[list[int]]) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Token ids int64 `[B, L]` with ALWAYS_ID first, and the mask f32 `[B, L]`, 1 keep."""
    width = 1 + max(len(row) for row in rows)
    tokens = np.full((len(rows), width), ALWAYS_ID, np.int64)
    mask = np.zeros((len(rows), width), np.float32)
    for index, row in enumerate(rows):
        tokens[index, 1 : 1 + len(row)] = row
        mask[index, : 1 + len(row)] = 1.0
    return tokens, mask
