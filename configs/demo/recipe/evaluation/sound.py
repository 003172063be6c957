"""Detectors on audio f32 `[samples, 2]` at 48 kHz: chroma, onsets, instruments' features, peaks, clicks."""

import math
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray
from engine_build.reports.end_to_end import mel_bands, spectrogram
from runtime.audio.finishing import TARGET_LUFS, block_energies, loudness_lufs

Values = npt.NDArray[np.float64]

CHROMA_SIZE: Final = 8192
CHROMA_HOP: Final = 4800
CHROMA_HZ: Final = (100.0, 2000.0)
QUIET_DB: Final = -120.0
# A click is a sample whose second difference is so many times the largest around it.
CLICK_RATIO: Final = 3.0
_AROUND: Final = 2400


def chroma_similarity(audio: FloatArray, other: FloatArray) -> float:
    """Mean cosine of the pitch classes' energies, frame by frame; about 0.35 for unrelated pieces."""
    first, second = chroma(audio), chroma(other)
    count = min(len(first), len(second))
    norms = np.linalg.norm(first[:count], axis=1) * np.linalg.norm(second[:count], axis=1)
    sounding = norms > 0
    if not sounding.any():
        return 0.0
    return float(((first[:count] * second[:count]).sum(axis=1)[sounding] / norms[sounding]).mean())


def chroma(audio: FloatArray) -> Values:
    """Energy `[frames, 12]` of the pitch classes, 0 = C, ten frames a second."""
    folded: Values = spectrogram(audio, CHROMA_SIZE, CHROMA_HOP) @ _pitch_classes()
    return folded


@cache
def _pitch_classes() -> Values:
    """Weights `[bins, 12]`: every bin in `CHROMA_HZ` belongs to the pitch class that is nearest to it."""
    frequencies = np.fft.rfftfreq(CHROMA_SIZE, 1 / SAMPLE_RATE_HZ)
    inside = (frequencies > CHROMA_HZ[0]) & (frequencies < CHROMA_HZ[1])
    pitch = np.round(12 * np.log2(np.maximum(frequencies, 1.0) / 440.0) + 69).astype(int) % 12
    weights: Values = (pitch[:, None] == np.arange(12)) * inside[:, None].astype(np.float64)
    return weights


def onset_correlation(audio: FloatArray, other: FloatArray) -> float:
    """Correlation of the onsets' strengths, 50 values a second, smoothed over 100 ms."""
    first, second = onsets(audio), onsets(other)
    count = min(len(first), len(second))
    first, second = first[:count] - first[:count].mean(), second[:count] - second[:count].mean()
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return float(first @ second) / size if size else 0.0


def onsets(audio: FloatArray) -> Values:
    """Rise of the mel bands' levels `[frames]`."""
    bands = np.log1p(1e4 * mel_bands(audio))
    rise = np.maximum(np.diff(bands, axis=0), 0.0).sum(axis=1)
    smooth: Values = np.convolve(rise, np.hanning(7)[1:-1] / np.hanning(7).sum(), "same")
    return smooth


def timbre_features(audio: FloatArray) -> Values:
    """What tells instruments apart `[200]`: the shape of the spectrum, its spread, its rises and falls."""
    bands = np.log10(mel_bands(audio) + 1e-7)
    level = bands.max(axis=1)
    loud = bands[level > np.quantile(level, 0.3)]
    shape = loud - loud.mean(axis=1, keepdims=True)
    steps = np.diff(bands, axis=0)
    rises, falls = np.maximum(steps, 0.0), np.minimum(steps, 0.0)
    return np.concatenate(
        [shape.mean(axis=0), shape.std(axis=0), rises.std(axis=0), falls.std(axis=0), falls.mean(axis=0)]
    )


def level_db(audio: FloatArray) -> float:
    """Root mean square in dB of full scale."""
    return 20 * math.log10(max(float(np.sqrt(np.mean(np.square(audio, dtype=np.float64)))), 10 ** (QUIET_DB / 20)))


def true_peak_db(audio: FloatArray) -> float:
    """The largest value between samples, at four times the rate, in dB of full scale (BS.1770-4, annex 2)."""
    peak, block, reach = 0.0, 1 << 15, 256
    padded = np.pad(audio, ((reach, reach + -len(audio) % block), (0, 0)))
    for start in range(0, len(padded) - 2 * reach, block):
        spectrum = np.fft.rfft(padded[start : start + block + 2 * reach], axis=0)
        dense = np.fft.irfft(spectrum, 4 * (block + 2 * reach), axis=0)[4 * reach : -4 * reach] * 4
        peak = max(peak, float(np.abs(dense).max()))
    return 20 * math.log10(max(peak, 1e-6))


def num_clicks(audio: FloatArray, positions: list[int]) -> int:
    """How many of the positions, in samples, have a jump that stands out of what is around them; 0 and the end too."""
    mono = np.pad(audio.mean(axis=1, dtype=np.float64), _AROUND + 8)
    bend = np.abs(np.diff(mono, 2))
    return sum(_is_click(bend, position + _AROUND + 8) for position in (0, *positions, len(audio)))


def _is_click(bend: Values, position: int) -> bool:
    around = np.concatenate([bend[position - _AROUND : position - 8], bend[position + 8 : position + _AROUND]])
    return bool(bend[position - 4 : position + 4].max() > CLICK_RATIO * around.max() + 1e-4)


def at_loudness(audio: FloatArray, target_lufs: float = TARGET_LUFS) -> FloatArray:
    """Audio as loud as finished audio is, by one gain; silence stays as it is."""
    loudness = loudness_lufs(block_energies(audio, SAMPLE_RATE_HZ))
    return audio if loudness is None else np.float32(10 ** ((target_lufs - loudness) / 20)) * audio
