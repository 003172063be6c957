"""Percentiles and paired ratios."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.bench.statistics import Percentiles, Ratio, paired_ratio


def test_percentiles_of_a_ramp() -> None:
    found = Percentiles.of([float(value) for value in range(101)])
    assert (found.p50, found.p95, found.p99) == (50.0, 95.0, 99.0)


def test_percentiles_of_one_sample() -> None:
    assert Percentiles.of([3.0]) == Percentiles(3.0, 3.0, 3.0)


def test_a_steady_ratio_is_exact() -> None:
    assert paired_ratio([11.0] * 5, [10.0] * 6) == Ratio(1.1, 1.1, 1.1)


def test_the_ratio_survives_a_machine_that_slows_down() -> None:
    random = np.random.default_rng(1)
    speed = np.repeat(random.uniform(1.0, 3.0, 21), 10)
    engine, ticks = 10.0 * speed[:201], 10.5 * speed[:200]
    ratio = paired_ratio(list(ticks), list(engine))
    assert not ratio.is_noisy
    assert ratio.median == pytest.approx(1.05, abs=1e-6)
    assert np.median(ticks) / np.median(engine) != pytest.approx(1.05, abs=1e-3)


def test_single_slow_samples_do_not_count() -> None:
    ticks, engine = [10.5] * 40, [10.0] * 41
    for index in range(0, 40, 5):
        ticks[index] *= 9.0
        engine[index + 2] *= 7.0
    assert paired_ratio(ticks, engine).median == pytest.approx(1.05)


def test_a_busy_machine_is_said() -> None:
    random = np.random.default_rng(2)
    assert paired_ratio(list(random.uniform(10.0, 20.0, 50)), list(random.uniform(10.0, 20.0, 51))).is_noisy


def test_the_ratio_sees_a_slower_tick() -> None:
    assert paired_ratio([10.0] * 5 + [11.0] * 6, [10.0] * 12).median == pytest.approx(1.1)


def test_ticks_without_neighbours_are_refused() -> None:
    with pytest.raises(ValueError, match="need 4 engine samples"):
        paired_ratio([1.0] * 3, [1.0] * 3)
