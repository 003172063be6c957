"""Which steps a model can leave out: the fewest rows that stay as near to all of its steps as fewer plain steps do.

Steps that are left out are extrapolated, see `timesteps.leave_out`; guidance is computed in every kept step, or in
every second one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import numpy as np
from rich.console import Console

from profiling.provenance import provenance
from runtime.base.errors import ConfigError
from runtime.commands.terminal import print_table
from runtime.config.deployment import Deployment
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.curves import Array
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest, GuidanceMode
from runtime.requests.timesteps import leave_out, schedule
from runtime.tick.loop.events import Event, Failed, Finished

PROMPTS = (
    "calm piano melody", "rock with drums and guitar", "techno, 128 bpm", "strings and choir",
    "lo-fi hip hop beats", "jazz with piano and saxophone", "trance at 138 bpm", "solo drums",
)  # fmt: skip
FIRST_SEED = 4200
MODES: tuple[GuidanceMode, ...] = ("full", "alternate")
# Of a pattern: how many steps are kept at first, and one of how many from there on.
DENSE, STRIDES = (2, 4, 6, 8, 10, 12, 16), (2, 3, 4, 5)
FEWEST = 4


@dataclass(frozen=True)
class KeptSteps:
    """Steps that are kept, with the rows of a generation and its distance to all steps: |x - x*| / |x*|, the mean."""

    kept: tuple[int, ...]
    mode: GuidanceMode
    rows: int
    distance: float


@dataclass(frozen=True)
class Trials:
    """Requests with all steps `times` `[K + 1]`, and their latents `[T, C]`."""

    pipeline: Pipeline
    requests: Sequence[GenerationRequest]
    times: Array
    full: Sequence[Array]

    @classmethod
    def of(cls, pipeline: Pipeline, steps: int, prompts: Sequence[str] = PROMPTS) -> Trials:
        """Trials of a pipeline whose loop runs. Raises RequestError, TickError."""
        options = [
            {"prompt": prompt, "seed": FIRST_SEED + index, "plan": False, "steps": steps, "solver": _solver(pipeline)}
            for index, prompt in enumerate(prompts)
        ]
        found = [LongGeneration(pipeline, parse_options(each)).next_request() for each in options]
        made = [request for request in found if request is not None]
        times = _times(pipeline, steps)
        given = tuple(times[:-1].tolist())
        requests = [replace(each, timesteps=given, extrapolation=None, guidance_mode="full") for each in made]
        return cls(pipeline, requests, times, _latents(pipeline, requests))

    def plain(self, steps: int) -> KeptSteps:
        """So many steps of the solver, evenly spread."""
        times = tuple(_times(self.pipeline, steps)[:-1].tolist())
        return self._choice([replace(each, timesteps=times) for each in self.requests], (), "full")

    def kept(self, kept: tuple[int, ...], mode: GuidanceMode) -> KeptSteps:
        """The same solver with steps left out."""
        return self._choice([self._without(each, kept, mode) for each in self.requests], kept, mode)

    def rows(self, kept: tuple[int, ...], mode: GuidanceMode) -> int:
        """The rows of a generation whose other steps are left out."""
        return _rows(self._without(self.requests[0], kept, mode))

    def _without(self, request: GenerationRequest, kept: tuple[int, ...], mode: GuidanceMode) -> GenerationRequest:
        times, factors = leave_out(self.times, kept, is_multistep=request.solver == "ab2")
        return replace(request, guidance_mode=mode, timesteps=times, extrapolation=factors)

    def _choice(self, requests: list[GenerationRequest], kept: tuple[int, ...], mode: GuidanceMode) -> KeptSteps:
        found = _latents(self.pipeline, requests)
        pairs = zip(found, self.full, strict=True)
        distance = float(np.mean([np.linalg.norm(x - all_) / np.linalg.norm(all_) for x, all_ in pairs]))
        return KeptSteps(kept, mode, _rows(requests[0]), distance)


def measure_skips(deployment: Deployment, steps: int, plain: int, prompts: Sequence[str] = PROMPTS) -> dict[str, Any]:
    """The choice with the fewest rows of those no farther from all steps than `plain` steps, and the table behind it.

    Raises ConfigError where a model has fewer steps or takes its prompts otherwise, TickError.
    """
    if not FEWEST < plain < steps:
        raise ConfigError(
            f"{plain} of {steps} steps: expected more than {FEWEST}, and fewer than all", fix="--plain 30"
        )
    with open_pipeline(deployment) as pipeline:
        pipeline.loop.start()
        if pipeline.needs_condition:
            raise ConfigError("the model takes no texts to try", fix="a bundle with a text encoder")
        trials = Trials.of(pipeline, steps, prompts)
        usual = trials.plain(plain)
        tried = [usual, *tried_choices(trials, usual)]
        known = provenance(pipeline.bundle, deployment, pipeline.engines.decoder.manifest)
    best = next((choice for choice in tried[1:] if choice.distance <= usual.distance), None)
    all_rows = _rows(trials.requests[0])
    return {
        **known,
        "kind": "skip", "steps": steps, "plain": plain, "all_rows": all_rows,
        "choices": [vars(choice) | {"fewer": round(all_rows / choice.rows, 3)} for choice in tried],
        "best": None if best is None else vars(best) | {"fewer": round(all_rows / best.rows, 3)},
    }  # fmt: skip


def tried_choices(trials: Trials, usual: KeptSteps) -> Iterator[KeptSteps]:
    """Choices with fewer rows than the plain steps, the cheapest first, up to the first that is as near as they are."""
    steps = len(trials.times) - 1
    patterns = {dense_then_every(steps, dense, stride) for dense in DENSE if dense < steps for stride in STRIDES}
    choices = [(trials.rows(kept, mode), kept, mode) for kept in patterns for mode in MODES]
    for rows, kept, mode in sorted(choices):
        if rows >= usual.rows:
            return
        choice = trials.kept(kept, mode)
        yield choice
        if choice.distance <= usual.distance:
            return


def dense_then_every(steps: int, dense: int, stride: int) -> tuple[int, ...]:
    """All steps at first, where velocities turn and guidance finds its momentum; then one of so many."""
    return (*range(dense), *range(dense, steps, stride))


def print_skips(console: Console, result: dict[str, Any]) -> None:
    """A line per choice, and what bundle.toml says of the best one."""
    rows = [
        [
            f"{result['plain']} plain steps" if not each["kept"] else f"{len(each['kept'])} kept",
            each["mode"], str(each["rows"]), f"{each['fewer']:.2f}", f"{each['distance']:.4f}",
        ]
        for each in result["choices"]
    ]  # fmt: skip
    title = f"{result['steps']} steps, {result['all_rows']} rows"
    print_table(console, title, ["steps", "guidance", "rows", "fewer by", "distance"], rows)
    if (best := result["best"]) is None:
        console.print(f"nothing is as near to all steps as {result['plain']} plain ones, in fewer rows")
        return
    kept = f"{{ {result['steps']} = {list(best['kept'])} }}"
    lines = ("in bundle.toml:", "[sampler]", f'guidance_mode = "{best["mode"]}"', f"kept = {kept}")
    console.print(*lines, sep="\n", markup=False, highlight=False)


def _solver(pipeline: Pipeline) -> str:
    sampler = pipeline.bundle.sampler
    return sampler.solver if sampler.velocity is None else sampler.velocity.solver


def _times(pipeline: Pipeline, steps: int) -> Array:
    """The bundle's own times of so many steps `[K + 1]`."""
    times = pipeline.composer.all_times(parse_options({"prompt": ""}), steps, _solver(pipeline))
    return schedule(steps, shift=pipeline.bundle.sampler.shift) if times is None else np.array([*times, 0], np.float32)


def _rows(request: GenerationRequest) -> int:
    """The decoder's rows of a generation: one for each condition of a step."""
    guidance, guided = request.parameters.guidance, 0
    if request.negatives and guidance is not None and not np.all(np.asarray(guidance) == 1.0):
        start, end = request.parameters.cfg_interval_start or 0.0, request.parameters.cfg_interval_end
        guided = sum(start <= 1.0 - time <= (1.0 if end is None else end) for time in request.timesteps or ())
    return request.steps + ((guided + 1) // 2 if request.guidance_mode == "alternate" else guided)


def _latents(pipeline: Pipeline, requests: Sequence[GenerationRequest]) -> list[Array]:
    """The latents of requests that share ticks, in order. Raises TickError."""
    events: SimpleQueue[Event] = SimpleQueue()
    asked = [pipeline.loop.submit(replace(each, id=f"{each.id}-"), events.put, wait=True) for each in requests]
    found: dict[str, Array] = {}
    while len(found) < len(asked):
        event = events.get()  # until the tick thread publishes something of one of them
        if isinstance(event, Failed):
            raise event.error
        if isinstance(event, Finished):
            found[event.request_id] = event.latents
    return [found[name] for name in asked]
