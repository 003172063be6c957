"""Detectors on levels `[T, C]`: key, layers, tempo, difference. Their own accuracy on the corpus is the ceiling."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from engine_build.demo_model.corpus.songs import LAYERS, REGISTERS, TEMPOS_BPM
from engine_build.demo_model.corpus.theory import scale_pitch_classes
from engine_build.demo_model.latents import FIRST_PITCH, FRAME_RATE_HZ, HAT, KICK, NUM_PITCHES, FloatArray

SOUNDING_LEVEL: Final = 0.2
PRESENT_SHARE: Final = 0.03
TEMPO_TOLERANCE: Final = 0.05
_CANDIDATES_PER_OCTAVE: Final = 200
# Lags in beats and their weights. All songs are in 4/4: what repeats in thirds of a beat speaks against a candidate.
_COMB: Final = ((1.0, 1.0), (2.0, 1.0), (4.0, 2.0), (8.0, 1.0))
_AGAINST: Final = ((1 / 3, 0.2), (2 / 3, 0.4), (4 / 3, 0.4))


def in_key_energy(levels: FloatArray, root: int, mode: str) -> float:
    """Share of the pitches' energy (squared levels) on pitch classes of the scale; 1 where no pitch sounds."""
    energy = np.square(levels[:, :NUM_PITCHES]).sum(axis=0)
    in_key = np.isin((np.arange(NUM_PITCHES) + FIRST_PITCH) % 12, scale_pitch_classes(root, mode))
    return float(energy[in_key].sum() / energy.sum()) if energy.sum() > 0 else 1.0


def layer_share(levels: FloatArray, layer: str) -> float:
    """Share of frames in which something in the layer's register sounds."""
    if layer == "drums":
        return float((levels[:, KICK : HAT + 1].max(axis=1) > SOUNDING_LEVEL).mean())
    low, high = REGISTERS[layer]
    return float((levels[:, low - FIRST_PITCH : high + 1 - FIRST_PITCH].max(axis=1) > SOUNDING_LEVEL).mean())


def layers_present(levels: FloatArray) -> frozenset[str]:
    """The layers that sound in more than `PRESENT_SHARE` of the frames."""
    return frozenset(layer for layer in LAYERS if layer_share(levels, layer) > PRESENT_SHARE)


def onset_strength(levels: FloatArray) -> npt.NDArray[np.float64]:
    """Rise of all levels per frame, `[T]`, smoothed over a frame to each side, mean 0."""
    rise = np.maximum(np.diff(levels, axis=0, prepend=np.zeros((1, levels.shape[1]), np.float32)), 0.0)
    strength = np.sqrt(np.maximum(rise - 0.05, 0.0).sum(axis=1))
    smooth = np.convolve(strength, [0.25, 0.5, 0.25], "same")
    return np.asarray(smooth - smooth.mean(), np.float64)


def tempo_bpm(levels: FloatArray) -> float:
    """Tempo by a comb on the autocorrelation of the onsets, searched over 4% more than the trained tempos' range."""
    strength = onset_strength(levels)
    octaves = np.log2(TEMPOS_BPM[-1] * 1.04 / (TEMPOS_BPM[0] * 0.96))
    count = round(octaves * _CANDIDATES_PER_OCTAVE)
    candidates = np.geomspace(TEMPOS_BPM[0] * 0.96, TEMPOS_BPM[-1] * 1.04, count)
    correlation = _autocorrelation(strength)
    scores = [_comb_score(correlation, 60.0 * FRAME_RATE_HZ / bpm) for bpm in candidates]
    return float(candidates[int(np.argmax(scores))])


def is_tempo(levels: FloatArray, bpm: float) -> bool:
    """Whether the measured tempo is within `TEMPO_TOLERANCE` of `bpm`."""
    return abs(tempo_bpm(levels) / bpm - 1.0) <= TEMPO_TOLERANCE


def difference(levels: FloatArray, other: FloatArray) -> float:
    """Distance of two piano rolls over their size: 0 equal, 1 and more unrelated."""
    size = math.hypot(float(np.linalg.norm(levels)), float(np.linalg.norm(other)))
    return float(np.linalg.norm(levels - other) / max(size, 1e-9))


def _autocorrelation(strength: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Correlation of the onsets with themselves at each lag, normalised by the overlap's energy; lags below T - 48."""
    return np.array([_correlation(strength, strength[lag:]) for lag in range(len(strength) - 48)])


def _correlation(values: npt.NDArray[np.float64], late: npt.NDArray[np.float64]) -> float:
    early = values[: len(late)]
    size = float(np.linalg.norm(early) * np.linalg.norm(late))
    return float(early @ late) / max(size, 1e-9)


def _comb_score(correlation: npt.NDArray[np.float64], period_frames: float) -> float:
    """Correlation at the lags that speak for a period, less that at the lags against it, inside the canvas."""
    return _weighted(correlation, period_frames, _COMB) - _weighted(correlation, period_frames, _AGAINST)


def _weighted(
    correlation: npt.NDArray[np.float64], period_frames: float, comb: tuple[tuple[float, float], ...]
) -> float:
    lags = np.array([beats * period_frames for beats, _ in comb])
    weights = np.array([weight for _, weight in comb]) * (lags <= len(correlation) - 1)
    values = np.interp(lags, np.arange(len(correlation)), correlation)
    return float(values @ weights / max(weights.sum(), 1.0))
