"""The first audio of a song with a plan and without one, in turn, and where the time of the plan goes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration, generate_audio
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options

SECONDS = (10.0, 30.0)
REPEATS = 7
PROMPT = "house, 124 bpm"


def measure_first_audio(deployment: Deployment) -> list[dict[str, Any]]:
    """One point per length: medians in ms, and their ratio; [] where songs are not planned, have no audio, or no text.

    sections_ms: until the sections are there; codes_ms: until the codes of the first segment are. Raises TickError.
    """
    with open_pipeline(deployment) as pipeline:
        if pipeline.planner is None or pipeline.codec is None or pipeline.text_encoder is None:
            return []
        return [_point(pipeline, seconds) for seconds in SECONDS]


def _point(pipeline: Pipeline, seconds: float) -> dict[str, Any]:
    """The first pair of songs warms up and is not counted."""
    pairs = [
        [_first_audio(pipeline, seconds, seed, plan=plan) for plan in (False, True)] for seed in range(REPEATS + 1)
    ]
    without, planned = zip(*pairs[1:], strict=True)

    def median(name: str) -> float:
        return float(np.median([times[name] for times in planned]))

    without_ms = float(np.median([times["first_ms"] for times in without]))
    return {
        "seconds": seconds,
        "without_ms": round(without_ms, 1),
        "planned_ms": round(median("first_ms"), 1),
        "sections_ms": round(median("sections_ms"), 1),
        "codes_ms": round(median("codes_ms"), 1),
        "ratio": round(float(np.median([b["first_ms"] / a["first_ms"] for a, b in pairs[1:]])), 3),
    }


def _first_audio(pipeline: Pipeline, seconds: float, seed: int, *, plan: bool) -> Mapping[str, float]:
    """Milliseconds from the request on. What goes on behind the first audio ends before this returns."""
    options = parse_options({"prompt": PROMPT, "seconds": seconds, "seed": seed, "plan": plan})
    begin_s = time.perf_counter()
    generation = LongGeneration(pipeline, options)
    times_s = {"sections_ms": time.perf_counter()}
    if generation.plan is not None:
        generation.plan.hints(0, min(pipeline.lengths.canvas_frames, generation.total_frames or 0))
    times_s["codes_ms"] = time.perf_counter()
    with closing(generate_audio(pipeline, generation)) as audio:
        next(audio)
        times_s["first_ms"] = time.perf_counter()
    while not pipeline.loop.is_empty:
        time.sleep(0.001)
    return {name: 1e3 * (at_s - begin_s) for name, at_s in times_s.items()}
