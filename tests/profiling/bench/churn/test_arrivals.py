"""Arrivals: as many as the load says, of every length and of prompts between the shortest and the longest."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from conftest import Built

from profiling.bench.churn.arrivals import ChurnLoad, churn_load, parse_loads
from profiling.bench.workload import Workload
from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment, ShapeRange

LOAD = ChurnLoad((0.6,), Workload(8, 64, 8), (16, 32, 64), (60, 160))


def test_loads_are_different_shares() -> None:
    assert parse_loads("0.3, 0.6,0.9") == (0.3, 0.6, 0.9)
    for text in ("", "x", "0", "1.5", "0.3,0.3", "0.3,,0.6"):
        with pytest.raises(ConfigError, match="shares of all slots"):
            parse_loads(text)


@pytest.mark.parametrize("load", [0.3, 0.9])
def test_generations_arrive_as_a_poisson_process_of_that_load(load: float) -> None:
    found = list(takewhile(lambda arrival: arrival[0] < 4000, LOAD.arrivals(load)))
    expected = load * 4000  # depth 8 and 8 steps: one generation per tick is a load of 1
    assert len(found) == pytest.approx(expected, abs=4 * expected**0.5)
    gaps = np.diff([at_tick for at_tick, _ in found])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # as of an exponential distribution
    lengths = [workload.frames for _, workload in found]
    assert [lengths.count(frames) / len(found) for frames in LOAD.lengths] == pytest.approx([1 / 3] * 3, abs=0.05)
    tokens = [workload.tokens for _, workload in found]
    assert (min(tokens), max(tokens)) == (60, 160)


def test_equal_seeds_are_equal_arrivals() -> None:
    one, two, other = (LOAD.arrivals(0.6, seed) for seed in (1, 1, 2))
    assert [next(one) for _ in range(9)] == [next(two) for _ in range(9)]
    assert next(one) != next(other)


def with_tokens(deployment: Deployment, most: int) -> Deployment:
    shapes = [one.model_copy(update={"tokens": ShapeRange(min=1, opt=1, max=most)}) for one in deployment.shapes]
    return deployment.model_copy(update={"shapes": tuple(shapes)})


def test_lengths_are_those_of_generations_and_tokens_fit_the_engines(built: Built) -> None:
    found = churn_load(with_tokens(built(), 300), "0.5", LOAD.workload)
    assert (found.lengths, found.tokens) == ((16, 24, 32), (60, 160))
    assert churn_load(with_tokens(built(), 80), "0.5", LOAD.workload).tokens == (30, 80)
    assert churn_load(with_tokens(built(), 1), "0.5", LOAD.workload).tokens == (1, 1)
    assert churn_load(built(), "0.5", LOAD.workload, frames=20).lengths == (20,)


def test_the_first_one_comes_as_soon_as_any_other() -> None:
    first = [next(LOAD.arrivals(0.5, seed))[0] for seed in range(200)]
    assert min(first) < 0.1
    assert np.mean(first) == pytest.approx(2.0, rel=0.25)  # at a load of 0.5, one in two ticks
