"""What the encode graph hears: magnitudes of semitones, and the energies of bands four times per frame. Pure numpy."""

import itertools
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.latents import HOP_SAMPLES, SAMPLE_RATE_HZ

Float64Array = npt.NDArray[np.float64]

DECIMATION: Final = 4  # semitones are measured at 12 kHz
DECIMATOR_TAPS: Final = 63
KERNEL_FRAMES: Final = 9
KERNEL_PITCHES: Final = range(36, 110)

BAND_EDGES_HZ: Final = (30.0, 130.0, 400.0, 1000.0, 2200.0, 4500.0, 7500.0, 11_000.0, 17_000.0)
BLOCKS_PER_FRAME: Final = 4
BLOCK_SAMPLES: Final = HOP_SAMPLES // BLOCKS_PER_FRAME

NUM_BANDS: Final = len(BAND_EDGES_HZ) - 1
NUM_FEATURES: Final = len(KERNEL_PITCHES) + NUM_BANDS * BLOCKS_PER_FRAME

_CYCLES: Final = 34.0
_LOW_RATE_HZ: Final = SAMPLE_RATE_HZ // DECIMATION
_LOW_HOP: Final = HOP_SAMPLES // DECIMATION


def decimator() -> Float64Array:
    """A low pass `[taps]` in front of the decimation (Kaiser windowed sinc)."""
    offsets = np.arange(DECIMATOR_TAPS) - (DECIMATOR_TAPS - 1) / 2
    taps = np.sinc(offsets / DECIMATION * 0.92) * np.kaiser(DECIMATOR_TAPS, 6.0)
    return np.asarray(taps / taps.sum())


def kernel_frequencies_hz() -> Float64Array:
    """Centre frequencies of the semitones' kernels."""
    return 440.0 * 2.0 ** ((np.array(KERNEL_PITCHES) - 69) / 12.0)


def kernel_positions() -> Float64Array:
    """Positions of a kernel's samples at the low rate, in seconds, 0 at its centre."""
    num_samples = KERNEL_FRAMES * _LOW_HOP
    return np.asarray((np.arange(num_samples) - (num_samples - 1) / 2) / _LOW_RATE_HZ, np.float64)


def kernel_windows() -> Float64Array:
    """Hann windows of the kernels `[semitones, samples]`: constant Q from 2 frames to `KERNEL_FRAMES`. A sine of
    amplitude 1 on a kernel's frequency gives 1."""
    frame_s = HOP_SAMPLES / SAMPLE_RATE_HZ
    lengths_s = np.clip(_CYCLES / kernel_frequencies_hz(), 2.0 * frame_s, KERNEL_FRAMES * frame_s)[:, None]
    share = kernel_positions() / lengths_s
    hann = np.where(np.abs(share) <= 0.5, 1.0 + np.cos(2 * np.pi * share), 0.0)
    return np.asarray(2.0 * hann / hann.sum(axis=1, keepdims=True))


def block_transform() -> Float64Array:
    """Windowed cosines and sines of a block's spectrum `[block, 2 * bins]`."""
    samples = np.arange(BLOCK_SAMPLES)
    window = np.sin(np.pi * (samples + 0.5) / BLOCK_SAMPLES)
    turns = samples[:, None] * np.arange(BLOCK_SAMPLES // 2 + 1) / BLOCK_SAMPLES
    waves = np.concatenate([np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)], axis=1)
    return np.asarray(window[:, None] * waves * 2.0 / BLOCK_SAMPLES)


def band_sums() -> Float64Array:
    """Which of a block's squares `[2 * bins]` belong to which band: `[2 * bins, NUM_BANDS]` of 0 and 1."""
    frequencies = np.arange(BLOCK_SAMPLES // 2 + 1) * SAMPLE_RATE_HZ / BLOCK_SAMPLES
    bands = np.stack([(frequencies >= low) & (frequencies < high) for low, high in itertools.pairwise(BAND_EDGES_HZ)])
    return np.asarray(np.tile(bands.T, (2, 1)), np.float64)


def feature_octaves() -> Float64Array:
    """How far each feature lies above middle C, in octaves, `[NUM_FEATURES]`."""
    edges = np.array(BAND_EDGES_HZ)
    bands = np.tile(np.sqrt(edges[1:] * edges[:-1]), BLOCKS_PER_FRAME)
    return np.asarray(np.log2(np.append(kernel_frequencies_hz(), bands) / 262.0))
