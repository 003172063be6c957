"""Judges generated music: not silent, not clipped, in the key that its prompt names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from configs.demo.recipe.corpus.theory import MODES, NOTE_NAMES
from configs.demo.recipe.evaluation.measure import in_key_energy
from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray, levels_from_latents
from configs.demo.recipe.tokenizer import build_tokenizer, key_word, word_concepts
from runtime.audio.decoding import read_audio
from runtime.pipeline.pipeline import Pipeline

FULL_SCALE = 0.99
MAX_SECONDS = 600.0


@dataclass(frozen=True)
class Sound:
    """RMS of the median second (music has rests), share of samples at full scale, share of the energy in the key."""

    median_rms: float
    clipped_share: float
    in_key: float


def named_keys(prompt: str) -> list[tuple[int, str]]:
    """Root and mode of the keys that a prompt names; all of them where it names none."""
    concepts, tokens = word_concepts(), build_tokenizer().encode(prompt).tokens
    roots = [index for index in range(len(NOTE_NAMES)) if key_word(index) in tokens]
    modes = [concepts[token].removeprefix("mode:") for token in tokens if concepts.get(token, "").startswith("mode:")]
    return [(root, mode) for root in roots or range(len(NOTE_NAMES)) for mode in modes or MODES]


def judged(pcm: FloatArray, levels: FloatArray, prompt: str) -> Sound:
    """Judge audio `[samples, channels]` and its levels `[T, C]`; of several keys the one that fits best counts."""
    seconds = np.array_split(pcm, max(1, len(pcm) // SAMPLE_RATE_HZ))
    return Sound(
        median_rms=float(np.median([np.sqrt(np.mean(second**2)) for second in seconds])),
        clipped_share=float((np.abs(pcm) > FULL_SCALE).mean()),
        in_key=max(in_key_energy(levels, root, mode) for root, mode in named_keys(prompt)),
    )


def judged_file(pipeline: Pipeline, file: Path, prompt: str) -> Sound:
    """Judge a file by its samples, and by the latents that the pipeline's codec makes of them."""
    assert pipeline.codec is not None
    pcm = read_audio(file, pipeline.codec.sample_rate_hz, pipeline.codec.channels, MAX_SECONDS)
    return judged(pcm, levels_from_latents(pipeline.codec.encode(pcm)), prompt)
