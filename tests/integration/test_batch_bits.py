"""The shipped demo: a generation has the same latents, bit for bit, alone and beside others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from configs.demo.recipe.evaluation.player import Player
from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import parse_options

pytestmark = pytest.mark.shipped

# Prompts of other lengths; plain, guided, by other solvers, with noise in every step, and blended.
GENERATIONS: tuple[dict[str, Any], ...] = (
    {"prompt": "sad violin", "guidance": 3.0},
    {"prompt": "house in A minor, 124 bpm"},
    {"prompt": "music", "guidance": 2.0, "solver": "ode"},
    {"prompt": "calm pads and piano melody for a rainy evening", "guidance": 4.0},
    {"prompt": "techno", "guidance": 1.0},
    {"prompt": "waltz in G major", "solver": "sde"},
    {"prompt": "rock in E minor", "ode_noise": 0.1},
    {"prompt": [{"text": "sad violin", "weight": 0.5}, {"text": "techno", "weight": 0.5}]},
)


def test_what_shares_its_ticks_is_what_it_is_alone(built_demo: Deployment) -> None:
    with open_pipeline(built_demo) as pipeline:
        play = Player(pipeline).run
        requests = [
            LongGeneration(pipeline, parse_options({**given, "seed": seed, "steps": 4, "seconds": 5})).next_request()
            for seed, given in enumerate(GENERATIONS)
        ]
        made = [request for request in requests if request is not None]
        alone = [play([request])[0] for request in made]
        for count in (2, 3, 5, 8):
            for wanted, found in zip(alone, play(made[:count]), strict=False):
                np.testing.assert_array_equal(found, wanted)
