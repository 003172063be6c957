"""Training batches: crops of songs with noise, prompt, flow time, known frames, hints and a reference.

A pool renders every layer of its songs once; a row of a batch has the layers that it draws, the others are silent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.rendering import render
from configs.demo.recipe.corpus.songs import Song, draw_instruments, draw_song
from configs.demo.recipe.corpus.vocabulary import (
    ALWAYS_ID,
    BPM_CONCEPTS,
    KEY_CONCEPTS,
    MAX_CONDITION_TOKENS,
    MODE_CONCEPTS,
    draw_concepts,
    token_ids,
)
from configs.demo.recipe.instruments import LAYERS, TIMBRE_CHANNELS, channels_of
from configs.demo.recipe.latents import CANVAS_FRAMES, CHANNELS, SILENCE, FloatArray, latents_from_levels

SONG_FRAMES: Final = 2 * CANVAS_FRAMES
OVERLAP_FRAMES: Final = 64
REFERENCE_FRAMES: Final = 6
HINTED: Final = 0.26
# Of the rows with known frames, those in which other layers sound there: what plays on is what prompt and hints say.
CHANGING: Final = 0.4
ABSENT_WEIGHT: Final = 2.0
TIMBRE_WEIGHT: Final = 3.0
FIRST_TIMBRE: Final = min(channel for channels in TIMBRE_CHANNELS.values() for channel in channels)

Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
# Levels uint8 `[N, T, C]` of songs -> hints of the same shape.
MakeHints = Callable[[Bytes], Bytes]


@dataclass(frozen=True)
class Pool:
    """Songs with all of their layers, and hints of some of them; 255 = level 1.

    Songs 2i and 2i + 1 have the same notes, played by other instruments.
    """

    songs: tuple[Song, ...]
    levels: Bytes  # [N, SONG_FRAMES, C]
    hints: Bytes  # [N, SONG_FRAMES, C]


@dataclass(frozen=True)
class Batch:
    """One training step's arrays; float32 but for the ids, int64."""

    latents: FloatArray  # [B, T, C] clean
    noise: FloatArray  # [B, T, C]
    time: FloatArray  # [B]
    token_ids: npt.NDArray[np.int64]  # [B, L]
    mask: FloatArray  # [B, L], 1 keep
    reference: FloatArray  # [B, F, C]
    context: FloatArray  # [B, T, 2C]
    weight: FloatArray  # [B, 1, C] of the loss


@dataclass(frozen=True)
class Row:
    """What a row of a batch shows: crops of latents f32 `[T, C]` and what the decoder is told of them."""

    latents: FloatArray
    given: FloatArray  # silence, or hints, where frames are generated
    generate: Mask  # [T]
    reference: FloatArray  # [F, C]
    names: tuple[str, ...]
    layers: frozenset[str]
    longest_time: float


def draw_songs(num_songs: int, seed: int) -> tuple[Song, ...]:
    """Songs in pairs that differ in their instruments alone, deterministic per seed."""
    songs: list[Song] = []
    for index in range(num_songs // 2):
        rng = np.random.default_rng([seed, index])
        song = draw_song(rng)
        songs += [song, replace(song, instruments=draw_instruments(rng, song.genre))]
    return tuple(songs)


def render_songs(songs: Sequence[Song]) -> Bytes:
    """Levels of all layers, uint8 `[N, SONG_FRAMES, C]`."""
    levels = np.empty((len(songs), SONG_FRAMES, CHANNELS), np.uint8)
    for index, song in enumerate(songs):
        levels[index] = np.round(render(song, SONG_FRAMES) * 255.0)
    return levels


def make_pool(songs: Sequence[Song], seed: int, make_hints: MakeHints) -> Pool:
    """Write songs, and hints of each one's layers or of some of them; deterministic per seed."""
    levels, rng = render_songs(songs), np.random.default_rng([seed, 1])
    heard = levels.copy()
    for index, song in enumerate(songs):
        heard[index][:, silent_channels(draw_layers(song, rng))] = 0
    return Pool(tuple(songs), levels, make_hints(heard))


def draw_layers(song: Song, rng: np.random.Generator) -> frozenset[str]:
    """The song's layers, or any."""
    if rng.random() < 0.5:
        return song.layers
    count = int(rng.integers(1, len(LAYERS) + 1))
    return frozenset(str(layer) for layer in rng.choice(LAYERS, count, replace=False))


def draw_batch(pool: Pool, rng: np.random.Generator, size: int, frames: int) -> Batch:
    """Draw rows: from the top, or from anywhere with known frames, with hints, or as what denoising starts from."""
    rows = [_draw_row(pool, rng, frames) for _ in range(size)]
    latents = np.stack([row.latents for row in rows])
    tokens, mask = pack_tokens([token_ids(row.names) for row in rows])
    return Batch(
        latents=latents,
        noise=rng.standard_normal(latents.shape, np.float32),
        time=draw_time(rng, size) * np.array([row.longest_time for row in rows], np.float32),
        token_ids=tokens,
        mask=mask,
        reference=np.stack([row.reference for row in rows]),
        context=np.stack([make_context(row.latents, row.given, row.generate) for row in rows]),
        weight=np.stack([_weight(row) for row in rows]),
    )


def _draw_row(pool: Pool, rng: np.random.Generator, frames: int) -> Row:
    index = int(rng.integers(len(pool.songs)))
    song, is_hinted, partner = pool.songs[index], rng.random() < HINTED, index ^ int(rng.random() < 0.5)
    kind = str(rng.choice(("free", "known", "source"), p=(0.65, 0.3, 0.05) if is_hinted else (0.5, 0.42, 0.08)))
    start = 0 if kind == "free" and not is_hinted else int(rng.integers(SONG_FRAMES - frames + 1))
    layers = draw_layers(song, rng)
    latents = _crop(pool.levels[index], start, frames, layers)
    generate = draw_generate_mask(rng, frames) if kind == "known" else np.ones(frames, bool)
    is_referred, names = rng.random() < 0.12, tuple[str, ...]()
    if rng.random() >= 0.1:
        names = draw_concepts(song, rng, layers, names_instruments=not is_referred)
        if kind == "known" and rng.random() < CHANGING:
            before = _crop(pool.levels[index], start, frames, draw_layers(song, rng))
            latents = np.where(generate[:, None], latents, before)
    is_misled = is_hinted and rng.random() < 0.5
    return Row(
        latents=latents,
        given=_hints(pool.hints[partner], start, frames, rng) if is_hinted else _silence(frames),
        generate=generate,
        reference=_reference(pool.levels[index, :1], layers, rng) if is_referred else _silence(REFERENCE_FRAMES),
        names=_misled(names, rng) if is_misled else tuple(names),
        layers=layers if names else frozenset(LAYERS),
        longest_time=0.75 if kind == "source" else 1.0,
    )


def _crop(levels: Bytes, start: int, frames: int, layers: frozenset[str]) -> FloatArray:
    latents = latents_from_levels(levels[start : start + frames] / np.float32(255.0))
    latents[:, silent_channels(layers)] = SILENCE
    return latents


def _hints(hints: Bytes, start: int, frames: int, rng: np.random.Generator) -> FloatArray:
    """A crop of hints, mostly at full strength: the strength interpolates from silence."""
    strength = 1.0 if rng.random() < 0.75 else float(rng.random())
    return latents_from_levels(strength * (hints[start : start + frames] / np.float32(255.0)))


def _reference(levels: Bytes, layers: frozenset[str], rng: np.random.Generator) -> FloatArray:
    """Frames of a piece of the same instruments, with more layers or not, a little wrong as an encoder hears them."""
    frame = _crop(levels, 0, 1, frozenset(LAYERS) if rng.random() < 0.5 else layers)
    return frame + np.float32(0.15) * rng.standard_normal((REFERENCE_FRAMES, CHANNELS), np.float32)


def _misled(names: tuple[str, ...], rng: np.random.Generator) -> tuple[str, ...]:
    """Names with another tempo, and another key and mode or none: what hints say counts more."""
    kept = [name for name in names if not name.startswith(("bpm:", "key:", "mode:"))]
    others = [str(rng.choice(BPM_CONCEPTS))] if names else []
    if names and rng.random() < 0.3:
        others += [str(rng.choice(KEY_CONCEPTS)), str(rng.choice(MODE_CONCEPTS))]
    return (*kept, *others)


def silent_channels(layers: frozenset[str]) -> list[int]:
    """The channels of all other layers."""
    return [channel for layer in LAYERS if layer not in layers for channel in channels_of(layer)]


def _silence(frames: int) -> FloatArray:
    return np.full((frames, CHANNELS), SILENCE, np.float32)


def _weight(row: Row) -> FloatArray:
    """A layer that must not sound is easy in all frames but one, and timbres are few channels: those count more."""
    weight = np.ones((1, CHANNELS), np.float32)
    weight[:, FIRST_TIMBRE:] = TIMBRE_WEIGHT
    weight[:, silent_channels(row.layers)] *= ABSENT_WEIGHT
    return weight


def draw_time(rng: np.random.Generator, size: int) -> FloatArray:
    """Flow times f32 `[B]`: logit-normal, moved towards noise as the shifted schedule is."""
    return np.asarray(1.0 / (1.0 + np.exp(-rng.normal(0.8, 1.3, size))), np.float32)


def draw_generate_mask(rng: np.random.Generator, frames: int) -> Mask:
    """Bool `[T]`, true where frames are to be generated: all but a known head, all but a known tail, or a hole.

    Most heads are as long as what a longer piece keeps of the canvas before.
    """
    kind = rng.choice(("overlap", "head", "tail", "hole"), p=(0.45, 0.15, 0.1, 0.3))
    generate = np.ones(frames, bool)
    if kind == "overlap":
        generate[: min(OVERLAP_FRAMES, frames - 32)] = False
    elif kind == "head":
        generate[: int(rng.integers(16, frames - 32))] = False
    elif kind == "tail":
        generate[int(rng.integers(32, frames - 16)) :] = False
    else:
        length = int(rng.integers(24, frames - 32))
        start = int(rng.integers(8, frames - length - 7))
        generate[:] = False
        generate[start : start + length] = True
    return generate


def make_context(latents: FloatArray, given: FloatArray, generate: Mask) -> FloatArray:
    """Context f32 `[T, 2C]`: known latents, `given` where frames are generated, then the mask, 1 = generate."""
    known = np.where(generate[:, None], given, latents)
    mask = np.repeat(generate[:, None], CHANNELS, axis=1)
    return np.concatenate([known, mask.astype(np.float32)], axis=1)


def pack_tokens(rows: list[list[int]]) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """Token ids int64 `[B, MAX_CONDITION_TOKENS]` with ALWAYS_ID first, and the mask f32 of the same shape, 1 keep."""
    tokens = np.full((len(rows), MAX_CONDITION_TOKENS), ALWAYS_ID, np.int64)
    mask = np.zeros(tokens.shape, np.float32)
    for index, row in enumerate(rows):
        tokens[index, 1 : 1 + len(row)] = row
        mask[index, : 1 + len(row)] = 1.0
    return tokens, mask
