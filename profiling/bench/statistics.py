"""Numbers out of noisy samples: percentiles, and the ratio of two things measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NOISY = 0.1


@dataclass(frozen=True, slots=True)
class Percentiles:
    """p50, p95 and p99 of samples in milliseconds, interpolated linearly."""

    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Percentiles:
        """Of at least one sample."""
        p50, p95, p99 = np.percentile(samples, (50, 95, 99))
        return cls(float(p50), float(p95), float(p99))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of paired ratios, and the quartiles between which half of them lie."""

    median: float
    low: float
    high: float

    @property
    def is_noisy(self) -> bool:
        """Whether the machine was too busy for the median to be worth much."""
        return self.high - self.low > NOISY


def paired_ratio(ticks_ms: Sequence[float], engine_ms: Sequence[float]) -> Ratio:
    """Each tick over the engine samples right before and right after it; n ticks, n + 1 engine samples.

    What slows the machine for a while slows a tick and its neighbours alike, so it cancels; the median leaves out what
    hits a single sample.
    """
    if len(engine_ms) != len(ticks_ms) + 1:
        wanted, got = len(ticks_ms) + 1, len(engine_ms)
        raise ValueError(f"{len(ticks_ms)} ticks need {wanted} engine samples around them, got {got}")
    return ratio_between(ticks_ms, engine_ms[:-1], engine_ms[1:])


def ratio_between(samples_ms: Sequence[float], before_ms: Sequence[float], after_ms: Sequence[float]) -> Ratio:
    """Each sample over what was measured right before and right after it."""
    samples = np.asarray(samples_ms)
    ratios = np.concatenate([samples / np.asarray(before_ms), samples / np.asarray(after_ms)])
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    return Ratio(float(middle), float(low), float(high))
