"""The shipped demo: a generation has the same latents, bit for bit, alone and beside others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.tick.events import Event, Failed, Finished

# Prompts of other lengths; plain, guided, and by another solver.
GENERATIONS: tuple[dict[str, Any], ...] = (
    {"prompt": "sad violin", "guidance": 3.0},
    {"prompt": "house in A minor, 124 bpm"},
    {"prompt": "music", "guidance": 2.0, "solver": "ode"},
    {"prompt": "calm pads and piano melody for a rainy evening", "guidance": 4.0},
    {"prompt": "techno", "guidance": 1.0},
)


def played(pipeline: Pipeline, requests: Sequence[GenerationRequest]) -> list[NDArray[np.float32]]:
    """Their latents `[T,C]`, all in the same ticks."""
    ended, all_ended = dict[str, Event](), threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Finished | Failed):
            ended[event.request_id] = event
        if len(ended) == len(requests):
            all_ended.set()

    for index, request in enumerate(requests):
        pipeline.loop.submit(replace(request, id=str(index)), listen)
    assert all_ended.wait(60)
    found = [ended[str(index)] for index in range(len(requests))]
    assert all(isinstance(event, Finished) for event in found)
    return [event.latents for event in found if isinstance(event, Finished)]


def test_what_shares_its_ticks_is_what_it_is_alone(built_demo: Deployment) -> None:
    with open_pipeline(built_demo) as pipeline:
        requests = [
            LongGeneration(pipeline, parse_options({**given, "seed": seed, "steps": 4, "seconds": 5})).next_request()
            for seed, given in enumerate(GENERATIONS)
        ]
        made = [request for request in requests if request is not None]
        alone = [played(pipeline, [request])[0] for request in made]
        for count in (2, 3, 5):
            for wanted, found in zip(alone, played(pipeline, made[:count]), strict=False):
                np.testing.assert_array_equal(found, wanted)
