"""Percentiles and paired ratios."""

from __future__ import annotations

import numpy as np
import pytest

from profiling.tick_statistics import Block, Percentiles, paired_ratio


def test_percentiles_of_a_ramp() -> None:
    found = Percentiles.of([float(value) for value in range(101)])
    assert (found.p50, found.p95, found.p99) == (50.0, 95.0, 99.0)


def test_percentiles_of_one_sample() -> None:
    assert Percentiles.of([3.0]) == Percentiles(3.0, 3.0, 3.0)


def test_a_blocks_ratio_ignores_one_slow_sample() -> None:
    assert Block((2.0, 2.2, 90.0), (2.0, 2.0, 2.0)).ratio == pytest.approx(1.1)


def test_the_ratio_survives_a_machine_that_slows_down() -> None:
    random = np.random.default_rng(1)
    blocks = []
    for _ in range(40):
        speed = random.uniform(1.0, 3.0)
        engine_ms = tuple(speed * 10.0 * random.uniform(0.99, 1.01, 4))
        blocks.append(Block(tuple(1.05 * value for value in engine_ms), engine_ms))
    ratio = paired_ratio(blocks)
    assert ratio.median == pytest.approx(1.05, abs=1e-6)
    assert ratio.low <= ratio.median <= ratio.high


def test_the_ratio_sees_a_slower_tick() -> None:
    cheap = [Block((10.0,) * 4, (10.0,) * 4)] * 5
    dear = [Block((11.0,) * 4, (10.0,) * 4)] * 6
    assert paired_ratio(cheap + dear).median == pytest.approx(1.1)
