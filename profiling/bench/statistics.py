"""Statistics of noisy timings: percentiles, and ratios and differences of two things that are timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Timer = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Quartiles:
    """The median, and the quartiles: half of the values lie between `low` and `high`."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.float64]) -> Quartiles:
        """Quartiles of at least one value."""
        low, median, high = np.percentile(values, (25, 50, 75))
        return cls(float(low), float(median), float(high))

    @property
    def spread(self) -> float:
        """Distance between the quartiles."""
        return self.high - self.low


def percentiles(samples: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 of at least one sample, interpolated linearly."""
    return {f"p{share}": float(np.percentile(samples, share)) for share in (50, 95, 99)}


def mean_ms(
    work: Callable[[], object],
    times: int = 1,
    wait: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Wall time of one of `times` in a row, in milliseconds, until `wait`, which is called once, has returned."""
    begin_s = clock()
    for _ in range(times):
        work()
    wait()
    return (clock() - begin_s) * 1e3 / times


def time_in_turn(
    timer: Timer,
    neighbours: Sequence[Timer],
    num_samples: int,
    on_share: Callable[[float], None] = lambda share: None,
) -> tuple[list[float], list[list[float]]]:
    """Time something between samples of its neighbours.

    Returns `num_samples` values of `timer`, and for each neighbour `num_samples + 1`: one before each and one at the
    end. on_share: called between samples with the share that is done, 0..1.
    """
    samples_ms: list[float] = []
    neighbours_ms = [[neighbour()] for neighbour in neighbours]
    for index in range(num_samples):
        on_share(index / num_samples)
        samples_ms.append(timer())
        for times_ms, neighbour in zip(neighbours_ms, neighbours, strict=True):
            times_ms.append(neighbour())
    return samples_ms, neighbours_ms


def paired_ratio(samples_ms: Sequence[float], neighbour_ms: Sequence[float]) -> Quartiles:
    """Quartiles of each sample over the neighbour's right before it and right after it, as time_in_turn gives them.

    A change of the machine's speed that lasts changes a sample and its neighbours alike and cancels; the median leaves
    out what changes a single sample.
    """
    samples, before, after = _paired(samples_ms, neighbour_ms)
    return Quartiles.of(np.concatenate([samples / before, samples / after]))


def neighbour_ratio(samples_ms: Sequence[float], neighbour_ms: Sequence[float]) -> Quartiles:
    """The inverse of paired_ratio: quartiles of the neighbour's samples over those between them."""
    samples, before, after = _paired(samples_ms, neighbour_ms)
    return Quartiles.of(np.concatenate([before / samples, after / samples]))


def paired_difference(samples_ms: Sequence[float], neighbour_ms: Sequence[float]) -> Quartiles:
    """Quartiles of each sample less the mean of the neighbour's before it and after it, in milliseconds."""
    samples, before, after = _paired(samples_ms, neighbour_ms)
    return Quartiles.of(samples - (before + after) / 2)


def ratios_to_neighbours(samples_ms: Sequence[float], neighbour_ms: Sequence[float]) -> list[float]:
    """Each sample over the mean of the neighbour's before it and after it, in the order of the samples."""
    samples, before, after = _paired(samples_ms, neighbour_ms)
    return [float(ratio) for ratio in samples / ((before + after) / 2)]


def _paired(samples_ms: Sequence[float], neighbour_ms: Sequence[float]) -> tuple[NDArray[np.float64], ...]:
    if len(neighbour_ms) != len(samples_ms) + 1:
        wanted, got = len(samples_ms) + 1, len(neighbour_ms)
        raise ValueError(f"{len(samples_ms)} samples need {wanted} neighbours around them, got {got}")
    return np.asarray(samples_ms), np.asarray(neighbour_ms[:-1]), np.asarray(neighbour_ms[1:])
