"""Percentiles, samples in turn, paired ratios and differences."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.bench.result import NOISY_SPREAD
from profiling.bench.statistics import (
    Quartiles,
    neighbour_ratio,
    paired_difference,
    paired_ratio,
    percentiles,
    ratios_to_neighbours,
    time_in_turn,
)


def test_percentiles_of_a_ramp() -> None:
    assert percentiles([float(value) for value in range(101)]) == {"p50": 50.0, "p95": 95.0, "p99": 99.0}


def test_percentiles_of_one_sample() -> None:
    assert percentiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0}


def test_each_sample_is_between_two_of_every_neighbour() -> None:
    order: list[str] = []

    def timer(name: str, *times_ms: float):
        values = iter(times_ms)
        return lambda: (order.append(name), next(values))[1]

    shares: list[float] = []
    found = time_in_turn(timer("a", 10, 11), [timer("b", 1, 2, 3), timer("c", 4, 5, 6)], 2, shares.append)
    assert "".join(order) == "bcabcabc"
    assert found == ([10, 11], [[1, 2, 3], [4, 5, 6]])
    assert shares == [0.0, 0.5]


def test_a_constant_ratio_and_difference_are_exact() -> None:
    assert paired_ratio([11.0] * 5, [10.0] * 6) == Quartiles(1.1, 1.1, 1.1)
    assert paired_difference([11.0] * 5, [10.0] * 6) == Quartiles(1.0, 1.0, 1.0)


def test_a_neighbours_ratio_is_to_the_samples_beside_it() -> None:
    assert neighbour_ratio([10.0] * 5, [25.0] * 6) == Quartiles(2.5, 2.5, 2.5)
    assert neighbour_ratio([2.0, 4.0], [2.0, 8.0, 4.0]) == Quartiles(1.0, 1.5, 2.5)


def test_a_ratio_is_to_both_neighbours() -> None:
    assert paired_ratio([6.0], [2.0, 3.0]) == Quartiles(2.25, 2.5, 2.75)
    assert ratios_to_neighbours([6.0, 8.0], [2.0, 4.0, 1.0]) == [2.0, 3.2]


def test_the_difference_is_to_the_mean_of_both_neighbours() -> None:
    assert paired_difference([5.0], [2.0, 4.0]).median == 2.0
    assert paired_difference([5.0, 9.0], [2.0, 4.0, 8.0]) == Quartiles(2.25, 2.5, 2.75)


def test_the_ratio_is_unchanged_on_a_machine_that_slows_down() -> None:
    random = np.random.default_rng(1)
    speed = np.repeat(random.uniform(1.0, 3.0, 21), 10)
    engine, ticks = 10.0 * speed[:201], 10.5 * speed[:200]
    ratio = paired_ratio(list(ticks), list(engine))
    assert ratio.spread < NOISY_SPREAD
    assert ratio.median == pytest.approx(1.05, abs=1e-6)
    assert np.median(ticks) / np.median(engine) != pytest.approx(1.05, abs=1e-3)


def test_single_slow_samples_do_not_count() -> None:
    ticks, engine = [10.5] * 40, [10.0] * 41
    for index in range(0, 40, 5):
        ticks[index] *= 9.0
        engine[index + 2] *= 7.0
    assert paired_ratio(ticks, engine).median == pytest.approx(1.05)
    assert paired_difference(ticks, engine).median == pytest.approx(0.5)


def test_random_samples_have_a_wide_spread() -> None:
    random = np.random.default_rng(2)
    ratio = paired_ratio(list(random.uniform(10.0, 20.0, 50)), list(random.uniform(10.0, 20.0, 51)))
    assert ratio.spread > NOISY_SPREAD


def test_samples_without_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="3 samples need 4 neighbours"):
        paired_ratio([1.0] * 3, [1.0] * 3)
    with pytest.raises(ValueError, match="3 samples need 4 neighbours"):
        paired_difference([1.0] * 3, [1.0] * 3)
