"""Generations that arrive at random: a Poisson process, with prompts and lengths drawn for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from profiling.bench.workload import Workload
from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment
from runtime.requests.segments import generation_lengths

# Condition tokens of a short and of a long prompt.
TOKENS = (60, 160)
MAX_LENGTHS = 3


@dataclass(frozen=True)
class ChurnLoad:
    """What arrives: at each of `loads`, one run.

    A load of 1 is as much as all slots can do. lengths: the values of T, equally frequent. tokens: the fewest and the
    most condition tokens, all numbers equally frequent.
    """

    loads: tuple[float, ...]
    workload: Workload
    lengths: tuple[int, ...]
    tokens: tuple[int, int]
    kind = "churn"

    def shape(self) -> dict[str, Any]:
        """The properties that are known before it is measured."""
        load = self.workload
        return {
            "over": "load", "values": list(self.loads), "variant": load.variant, "guidance": load.guidance,
            "depth": load.depth, "steps": load.steps, "frames": list(self.lengths), "tokens": list(self.tokens),
        }  # fmt: skip

    def arrivals(self, load: float, seed: int = 0) -> Iterator[tuple[float, Workload]]:
        """Without an end: when a generation arrives, in ticks, and what it is."""
        random = np.random.default_rng(seed)
        mean_ticks = self.workload.steps / (load * self.workload.depth)
        at_tick = 0.0
        while True:
            at_tick += random.exponential(mean_ticks)
            frames, tokens = int(random.choice(self.lengths)), int(random.integers(*self.tokens, endpoint=True))
            yield at_tick, replace(self.workload, frames=frames, tokens=tokens)


def churn_load(deployment: Deployment, text: str, workload: Workload, frames: int = 0) -> ChurnLoad:
    """The load of a deployment at "0.3,0.6"; `frames`: T of all generations, 0 for the longest of several lengths.

    Raises ConfigError.
    """
    lengths = (frames,) if frames else generation_lengths(deployment.loaded_bundle.latents, deployment.shapes)
    lengths = lengths[-MAX_LENGTHS:]
    most = min(max(shape.tokens.max for shape in deployment.shapes if shape.frames.holds(length)) for length in lengths)
    # Where the engines take fewer tokens, as wide a spread.
    tokens = TOKENS if most >= TOKENS[1] else (max(1, most * TOKENS[0] // TOKENS[1]), most)
    return ChurnLoad(parse_loads(text), workload, lengths, tokens)


def parse_loads(text: str) -> tuple[float, ...]:
    """ "0.3,0.6,0.9". Raises ConfigError."""
    try:
        loads = tuple(float(value) for value in text.split(","))
    except ValueError:
        loads = ()
    if not loads or not all(0.0 < load <= 1.0 for load in loads) or len(set(loads)) != len(loads):
        raise ConfigError(f"--churn {text}: expected shares of all slots, above 0, up to 1", fix="--churn 0.3,0.6,0.9")
    return loads
