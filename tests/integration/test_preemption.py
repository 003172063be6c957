"""With the shipped demo: generations that were frozen for urgent ones equal those that were not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from helpers.generations import Inbox

from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest

pytestmark = pytest.mark.shipped

NUM_SLOTS = 2


@pytest.fixture(scope="module")
def pipeline(built_demo: Deployment) -> Iterator[Pipeline]:
    """With two slots, and a loop whose ticks the tests make."""
    runtime = built_demo.runtime.model_copy(update={"depth": NUM_SLOTS})
    with closing(open_pipeline(built_demo.model_copy(update={"runtime": runtime}))) as opened:
        yield opened


def request(pipeline: Pipeline, name: str, **options: Any) -> GenerationRequest:
    asked = parse_options({"prompt": "calm melody and bass in D minor", "seconds": 5.0, "plan": False, **options})
    made = LongGeneration(pipeline, asked).next_request()
    assert made is not None
    return replace(made, id=name)


def play(pipeline: Pipeline, options: dict[str, Any], urgent_before: set[int]) -> tuple[Inbox, int]:
    """Two generations of 8 steps; before the given ticks an urgent one of 2 steps comes. How often one was frozen.

    An urgent one has its ticks for itself: both are frozen for each. Others take the place of the first that is over.
    """
    inbox, num_frozen = Inbox(), 0
    for name, seed in (("a", 1), ("b", 2)):
        pipeline.loop.submit(request(pipeline, name, seed=seed, steps=8, **options), inbox)
    for seed in range(3, 6):
        pipeline.loop.submit(request(pipeline, f"{seed}", seed=seed, steps=8, **options), inbox)
    for tick in count():
        if tick in urgent_before:
            made = request(pipeline, f"urgent {tick}", seed=tick, steps=2, **options)
            pipeline.loop.submit(replace(made, is_urgent=True), inbox)
        record = pipeline.loop.tick()
        if record is None:
            return inbox, num_frozen
        num_frozen += len(record.frozen)
    raise AssertionError


@pytest.mark.parametrize("guidance", [1.0, 3.0])
@pytest.mark.parametrize(("urgent_before", "times"), [({1}, 2), ({7}, 2), ({2, 5, 9}, 6)])
def test_frozen_generations_equal_those_that_were_not(
    pipeline: Pipeline, guidance: float, urgent_before: set[int], times: int
) -> None:
    whole, none = play(pipeline, {"guidance": guidance}, set())
    frozen, num_frozen = play(pipeline, {"guidance": guidance}, urgent_before)
    assert (none, num_frozen) == (0, times)
    for name in ("a", "b"):
        np.testing.assert_array_equal(frozen.latents(name), whole.latents(name))
