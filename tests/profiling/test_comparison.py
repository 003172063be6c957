"""Intervals of ratios: equal sets are rarely called different, real changes are found."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from profiling.comparison import LEAST_CHANGE, RatioInterval, ratio_interval, student_quantile, thinned

NUM_PAIRS = 60
# Rounds, samples per round, spread between rounds, spread within, correlation of neighbours.
NOISE = [(1, 64, 0.0, 0.03, 0.0), (1, 64, 0.0, 0.03, 0.5), (5, 12, 0.01, 0.03, 0.5), (5, 4, 0.02, 0.02, 0.3)]


def noisy(
    random: np.random.Generator,
    noise: tuple[int, int, float, float, float],
    factor: float = 1.0,
) -> list[list[float]]:
    """Times with drift, correlated neighbours and single slow executes."""
    rounds, length, between, within, correlation = noise
    found = []
    for _ in range(rounds):
        level, now = random.normal(0.0, between), random.normal(0.0, within)
        times = []
        for _ in range(length):
            now = correlation * now + np.sqrt(1.0 - correlation**2) * random.normal(0.0, within)
            slow = random.uniform(1.5, 4.0) if random.random() < 0.05 else 1.0
            times.append(float(10.0 * factor * slow * np.exp(level + now)))
        found.append(times)
    return found


def intervals(noise: tuple[int, int, float, float, float], factor: float) -> Iterator[RatioInterval]:
    random = np.random.default_rng(7)
    for _ in range(NUM_PAIRS):
        found = ratio_interval(noisy(random, noise), noisy(random, noise, factor))
        assert found is not None
        yield found


@pytest.mark.parametrize("noise", NOISE)
def test_few_equal_pairs_are_called_different(noise: tuple[int, int, float, float, float]) -> None:
    assert sum(each.is_change for each in intervals(noise, 1.0)) <= 0.02 * NUM_PAIRS


@pytest.mark.parametrize(("noise", "found"), list(zip(NOISE, (1.0, 1.0, 0.97, 0.6), strict=True)))
def test_a_change_of_ten_percent_is_found(noise: tuple[int, int, float, float, float], found: float) -> None:
    changes = [each.is_change and each.ratio > 1.0 for each in intervals(noise, 1.1)]
    assert sum(changes) >= found * NUM_PAIRS


def test_the_interval_holds_the_ratio_and_widens_with_the_number_of_figures() -> None:
    random = np.random.default_rng(3)
    before, after = noisy(random, NOISE[0]), noisy(random, NOISE[0], 1.5)
    one, many = ratio_interval(before, after), ratio_interval(before, after, 50)
    assert one is not None
    assert many is not None
    assert many.low <= one.low < one.ratio == many.ratio < one.high <= many.high
    assert one.low < 1.5 < one.high


def test_a_small_change_does_not_count_however_certain() -> None:
    equal = [[10.0] * 20]
    small = ratio_interval(equal, [[10.0 * (1.0 + LEAST_CHANGE / 2)] * 20])
    assert small is not None
    assert small.low > 1.0
    assert not small.is_change
    large = ratio_interval(equal, [[10.0 * (1.0 + 2 * LEAST_CHANGE)] * 20])
    assert large is not None
    assert large.is_change


@pytest.mark.parametrize("rounds", [[], [[]], [[1.0]], [[0.0, 0.0]], [[-1.0], [-1.0]]])
def test_without_several_positive_samples_there_is_no_interval(rounds: list[list[float]]) -> None:
    assert ratio_interval(rounds, [[1.0, 1.0]]) is None
    assert ratio_interval([[1.0, 1.0]], rounds) is None


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [(0.975, 8, 2.306), (0.995, 8, 3.355), (0.9995, 8, 5.041), (0.995, 14, 2.977)],
)
def test_students_quantiles(probability: float, freedom: int, quantile: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(quantile, rel=0.02)


def test_the_same_samples_have_the_same_interval() -> None:
    random = np.random.default_rng(4)
    before, after = noisy(random, NOISE[2]), noisy(random, NOISE[2])
    assert ratio_interval(before, after) == ratio_interval(before, after)
    assert ratio_interval([[1.0, 2.0], [3.0]], [[1.0], [1.5]]) is not None


def test_the_text_is_in_percent() -> None:
    assert RatioInterval(1.0, 0.996, 1.012).text == "-0.4 .. +1.2 %"
    assert RatioInterval(1.0, 0.704, 1.9).text == "-30 .. +90 %"
    assert RatioInterval(1.0, 0.004, 95.0).text == "-100 .. >999 %"
    assert RatioInterval(20.0, 15.0, 95.0).text == ">999 %"


def test_stored_samples_are_bounded_and_keep_their_order() -> None:
    assert thinned([3.0, 1.0, 2.0000001]) == [3.0, 1.0, 2.0]
    assert thinned([float(value) for value in range(1000)], 4) == [0.0, 333.0, 666.0, 999.0]
    assert thinned([]) == []
