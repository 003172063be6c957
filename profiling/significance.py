"""Whether two sets of timings differ: a bootstrap confidence interval of the ratio of their medians.

Timings that follow each other are not independent, so blocks of neighbours are drawn (moving block bootstrap: Künsch,
Annals of Statistics 1989), and rounds before them (Davison and Hinkley, Bootstrap Methods and their Application, 1997,
section 3.8). A ratio counts where its interval leaves out 1 and it is further from 1 than LEAST_CHANGE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Samples of each round in the order of their times; a round is measured without a pause.
Rounds = Sequence[Sequence[float]]
Samples = NDArray[np.float64]

# Probability that any of the figures of one comparison is wrongly called a change.
ERROR_RATE = 0.01
# Ratios nearer to 1 are not called a change.
LEAST_CHANGE = 0.01
NUM_RESAMPLES = 4000
MAX_SAMPLES = 200
NO_DIFFERENCE = "no difference"


@dataclass(frozen=True, slots=True)
class RatioInterval:
    """The median of one set over that of another, and its confidence interval."""

    ratio: float
    low: float
    high: float

    @property
    def is_change(self) -> bool:
        """Whether the two sets differ."""
        return not self.low <= 1.0 <= self.high and abs(self.ratio - 1.0) >= LEAST_CHANGE

    @property
    def text(self) -> str:
        """The interval as changes in percent: "-0.4 .. +1.2 %"."""
        return f"{100 * (self.low - 1):+.1f} .. {100 * (self.high - 1):+.1f} %"


def ratio_interval(before: Rounds, after: Rounds, num_figures: int = 1) -> RatioInterval | None:
    """The ratio of medians, after over before; None where a median is not above 0 or there are no samples.

    num_figures: how many figures one comparison judges; intervals widen so that ERROR_RATE holds for all of them
    (Bonferroni).
    """
    sets = [_as_array(before), _as_array(after)]
    if any(samples.size == 0 or np.median(samples) <= 0.0 for samples in sets):
        return None
    random = np.random.default_rng(0)
    old, new = (np.log(_resampled_medians(samples, random)) for samples in sets)
    center = float(np.log(np.median(sets[1]) / np.median(sets[0])))
    tail = ERROR_RATE / num_figures / 2
    low, high = np.quantile(center + _spread_factor(sets) * (new - old - center), (tail, 1.0 - tail))
    return RatioInterval(float(np.exp(center)), float(np.exp(low)), float(np.exp(high)))


def thinned(samples: Sequence[float], most: int = MAX_SAMPLES, digits: int = 5) -> list[float]:
    """At most `most` samples, evenly spaced, rounded: what a result file stores."""
    indices = np.linspace(0, len(samples) - 1, min(most, len(samples))).round().astype(int)
    return [round(float(samples[index]), digits) for index in indices]


def _as_array(rounds: Rounds) -> Samples:
    """Rounds as `[rounds, samples]`, cut to the shortest."""
    shortest = min((len(samples) for samples in rounds), default=0)
    return np.array([samples[:shortest] for samples in rounds], np.float64)


def _spread_factor(sets: Sequence[Samples]) -> float:
    """Few rounds, or blocks of one round, drawn with replacement vary too little, by this factor."""
    num_drawn = min(len(samples) if len(samples) > 1 else round(samples.size**0.5) for samples in sets)
    return float(np.sqrt(num_drawn / max(num_drawn - 1, 1)))


def _resampled_medians(samples: Samples, random: np.random.Generator) -> Samples:
    """Medians of NUM_RESAMPLES sets: rounds drawn with replacement, and in each of them blocks of neighbours."""
    num_rounds, length = samples.shape
    block = round(length**0.5)
    num_blocks = -(-length // block)
    rounds = random.integers(num_rounds, size=(NUM_RESAMPLES, num_rounds, 1))
    starts = random.integers(length - block + 1, size=(NUM_RESAMPLES, num_rounds, num_blocks))
    picked = (starts[..., None] + np.arange(block)).reshape(NUM_RESAMPLES, num_rounds, -1)[..., :length]
    medians: Samples = np.median(samples[rounds, picked].reshape(NUM_RESAMPLES, -1), axis=1)
    return medians
