"""Numbers out of noisy samples: percentiles, and the ratio of two things measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np


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
    """Median of paired ratios, and the quartiles that say how sure it is."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Block:
    """Samples of two things taken one right after the other, so that a busy machine slows both alike."""

    ticks_ms: tuple[float, ...]
    engine_ms: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Median tick over median engine."""
        return median(self.ticks_ms) / median(self.engine_ms)


def paired_ratio(blocks: Sequence[Block]) -> Ratio:
    """Over blocks, the median of each one's own ratio: what slows a whole block cancels, one slow sample is ignored."""
    low, middle, high = np.percentile([block.ratio for block in blocks], (25, 50, 75))
    return Ratio(float(middle), float(low), float(high))
