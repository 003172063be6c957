"""Detectors on levels `[T, C]`: key, layers, tempo, difference. Their own accuracy on the corpus is the ceiling."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.genres import BEATS_PER_BAR
from configs.demo.recipe.corpus.theory import scale_pitch_classes
from configs.demo.recipe.instruments import LAYERS, pitch_channels
from configs.demo.recipe.latents import FIRST_PITCH, FRAME_RATE_HZ, NUM_PITCHES, FloatArray

SOUNDING_LEVEL: Final = 0.12
PRESENT_SHARE: Final = 0.02
TEMPO_TOLERANCE: Final = 0.03
# Tempos nearer than this to the asked one compete with it: no octave is among them, which only the listener can tell.
_TEMPO_RANGE: Final = 2**0.4
_CANDIDATES: Final = 161
# Lags in beats and bars, and how much the onsets' correlation there counts.
_BEATS: Final = ((1.0, 1.0), (2.0, 1.0))
_BARS: Final = ((1.0, 2.0), (2.0, 2.0), (4.0, 2.0))


def in_key_energy(levels: FloatArray, root: int, mode: str) -> float:
    """Share of the pitches' energy (squared levels) on pitch classes of the scale; 1 where no pitch sounds."""
    if levels[:, :NUM_PITCHES].max(initial=0.0) <= SOUNDING_LEVEL:
        return 1.0
    energy = np.square(levels[:, :NUM_PITCHES]).sum(axis=0)
    in_key = np.isin((np.arange(NUM_PITCHES) + FIRST_PITCH) % 12, scale_pitch_classes(root, mode))
    return float(energy[in_key].sum() / energy.sum())


def layer_share(levels: FloatArray, layer: str) -> float:
    """Share of frames in which something of a layer sounds."""
    return float((levels[:, pitch_channels(layer)].max(axis=1) > SOUNDING_LEVEL).mean())


def layers_present(levels: FloatArray) -> frozenset[str]:
    """The layers that sound in more than `PRESENT_SHARE` of the frames."""
    return frozenset(layer for layer in LAYERS if layer_share(levels, layer) > PRESENT_SHARE)


def onset_strength(levels: FloatArray) -> npt.NDArray[np.float64]:
    """Rise of all levels per frame, `[T]`, smoothed over a frame to each side, mean 0."""
    rise = np.maximum(np.diff(levels, axis=0, prepend=np.zeros((1, levels.shape[1]), np.float32)), 0.0)
    strength = np.sqrt(np.maximum(rise - 0.05, 0.0).sum(axis=1))
    smooth = np.convolve(strength, [0.25, 0.5, 0.25], "same")
    return np.asarray(smooth - smooth.mean(), np.float64)


def tempo_bpm(levels: FloatArray, near_bpm: float, meter: str) -> float:
    """The tempo near one, in a meter, at which the onsets repeat best after beats and bars."""
    correlation = _autocorrelation(onset_strength(levels))
    candidates = near_bpm * np.geomspace(1.0 / _TEMPO_RANGE, _TEMPO_RANGE, _CANDIDATES)
    comb = [*_BEATS, *((bars * BEATS_PER_BAR[meter], weight) for bars, weight in _BARS)]
    scores = [_comb_score(correlation, 60.0 * FRAME_RATE_HZ / bpm, comb) for bpm in candidates]
    return float(candidates[int(np.argmax(scores))])


def is_tempo(levels: FloatArray, bpm: float, meter: str) -> bool:
    """Whether the measured tempo is within `TEMPO_TOLERANCE` of `bpm`."""
    return abs(tempo_bpm(levels, bpm, meter) / bpm - 1.0) <= TEMPO_TOLERANCE


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


def _comb_score(
    correlation: npt.NDArray[np.float64], period_frames: float, comb: Sequence[tuple[float, float]]
) -> float:
    """Mean correlation at the comb's lags that lie inside of the canvas."""
    lags = np.array([beats * period_frames for beats, _ in comb])
    weights = np.array([weight for _, weight in comb]) * (lags <= len(correlation) - 1)
    values = np.interp(lags, np.arange(len(correlation)), correlation)
    return float(values @ weights / max(weights.sum(), 1.0))
