"""Requests for a tiny bundle, one for every feature, and an inbox for their events."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import numpy as np
from helpers import oracle
from numpy.typing import NDArray

from runtime.engines.engine import run_once
from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target
from runtime.requests.timesteps import Purpose, noise
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished
from runtime.tick.loop.tick_loop import TickLoop

C, D, X = 8, 12, 16
RANDOM = np.random.default_rng(3)


def rand(*shape: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal(shape).astype(np.float32)


CONDITIONS = [Condition(rand(tokens, D)) for tokens in (3, 5, 9, 12)]
CONTEXT = {frames: rand(frames, X) for frames in (16, 32, 64)}


def make(name: str, frames: int = 32, **changes: Any) -> GenerationRequest:
    changes.setdefault("conditions", (CONDITIONS[0],))
    if "context" not in changes:
        changes["context"] = CONTEXT[frames]
    changes.setdefault("steps", 4)
    changes.setdefault("seed", len(name) + sum(map(ord, name)))
    return GenerationRequest(frames=frames, id=name, **changes)


class Inbox:
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, name: str, kind: type) -> list[Any]:
        return [event for event in self.events if event.request_id == name and isinstance(event, kind)]

    def terminal(self, name: str) -> Any:
        (event,) = (event for kind in (Finished, Failed, Cancelled) for event in self.of(name, kind))
        return event

    def latents(self, name: str) -> NDArray[np.float32]:
        event = self.terminal(name)
        assert isinstance(event, Finished), event
        return event.latents


def run_all(loop: TickLoop, *requests: GenerationRequest) -> Inbox:
    return run_ticks(loop, *requests)[0]


def run_ticks(loop: TickLoop, *requests: GenerationRequest) -> tuple[Inbox, list[Any]]:
    """Everything that is told of requests, and the record of each tick."""
    inbox, records = Inbox(), []
    for request in requests:
        loop.submit(request, inbox)
    while (record := loop.tick()) is not None:
        records.append(record)
    return inbox, records


def generate(loop: TickLoop, request: GenerationRequest) -> NDArray[np.float32]:
    """Latents `[T, C]` of one request, from a loop whose thread runs."""
    events: SimpleQueue[Event] = SimpleQueue()
    loop.submit(request, events.put)
    while True:
        event = events.get(timeout=60)
        if isinstance(event, Finished):
            return event.latents
        assert not isinstance(event, Failed | Cancelled), event


def expected_latents(
    loop: TickLoop, request: GenerationRequest, overrides: dict[int, StepParameters] | None = None
) -> Any:
    """The oracle's final latents, with the loop's own decoder engine and noise."""
    engine, roles = loop.engines.decoder, loop.bundle.decoder

    def decode(
        x: Any, t: float, tokens: Any, context: Any, end: float | None = None, guidance: float = 1.0, frames: Any = None
    ) -> Any:
        numbers = roles.inputs.numbers(t, t if end is None else end, guidance)
        feeds = {
            roles.inputs.latents: x[None].astype(np.float32),
            **{name: np.array([number], np.float32) for name, number in numbers.items()},
            roles.inputs.condition: tokens[None],
            roles.inputs.condition_mask: np.ones((1, len(tokens)), np.float32),
            roles.inputs.context: context[None],
            **roles.inputs.steady(1, len(x)),
        }
        if frames is not None and roles.inputs.frame_numbers is not None:
            feeds[roles.inputs.frame_numbers] = frames[None].astype(np.float32)
        return run_once(engine, feeds)[roles.outputs.velocity][0]

    shape, seed = (request.frames, C), request.seed
    noises = oracle.Noises(
        start=noise(*shape, seed) if request.noise is None else request.noise,
        mask=noise(*shape, seed, Purpose.MASK),
        step=lambda k: noise(*shape, seed, Purpose.STEP, k),
    )
    sampler, silence = loop.bundle.sampler, loop.bundle.silence(1)[0]
    rule = oracle.Rule(
        sampler.blend_power, silence, sampler.blend_energy_below, loop.bundle.guidance, roles.jump_guidance
    )
    return oracle.generate(request, decode, noises, overrides, rule)[-1]


GUIDED = {"negatives": (CONDITIONS[1],), "parameters": StepParameters(guidance=3.0)}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "shift": {"shift": 3.0, "steps": 7},
    "cover": {"source": rand(32, C), "denoise": 0.6},
    "noise_curve": {"source": rand(32, C), "initial_noise_curve": np.linspace(0, 1, 32)},
    "guided": GUIDED,
    "guided_all": {
        "negatives": (CONDITIONS[1],),
        "parameters": StepParameters(guidance=np.linspace(1, 5, 32), momentum=0.3, rescale=np.linspace(0, 1, 32)),
    },
    "rcfg_self": {"guidance_mode": "self", "parameters": StepParameters(guidance=1.5)},
    "rcfg_initialize": {**GUIDED, "guidance_mode": "initialize"},
    "alternate": {**GUIDED, "guidance_mode": "alternate", "steps": 5},
    "alternate_ab2": {**GUIDED, "guidance_mode": "alternate", "solver": "ab2", "steps": 5},
    **{
        f"interval_{name}": {
            **GUIDED,
            **changes,
            "steps": 6,
            "parameters": StepParameters(guidance=3.0, rescale=0.3, cfg_interval_start=0.3, cfg_interval_end=0.7),
        }
        for name, changes in {
            "full": {},
            "self": {"guidance_mode": "self"},
            "initialize": {"guidance_mode": "initialize"},
            "alternate": {"guidance_mode": "alternate"},
            "blend": {"conditions": (CONDITIONS[0], Condition(CONDITIONS[2].tokens, 0.5))},
        }.items()
    },
    "timesteps": {"timesteps": (0.9, 0.85, 0.3), "source": rand(32, C), "denoise": 0.9},
    "two_conditions": {
        "conditions": (
            Condition(CONDITIONS[0].tokens, np.linspace(0.1, 1, 32)),
            Condition(CONDITIONS[2].tokens, np.linspace(1, 0.2, 32), 0.0, 0.6),
        )
    },
    "two_negatives": {
        "negatives": (CONDITIONS[1], Condition(CONDITIONS[3].tokens, 0.5)),
        "parameters": StepParameters(guidance=2.0),
    },
    "mask": {"mask": LatentMask(np.repeat([0.0, 1.0, 0.3, 1.0], 8), rand(32, C))},
    "mask_of_source": {"mask": LatentMask(np.repeat([0.0, 1.0], 16)), "source": rand(32, C), "denoise": 0.7},
    "target_curve": {"target": Target(rand(32, C), np.linspace(0, 1, 32), 0.25)},
    "target_strength": {"target": Target(rand(32, C)), "parameters": StepParameters(x0_strength=0.4)},
    "velocity_scale": {"parameters": StepParameters(velocity_scale=np.linspace(0.5, 1.5, 32))},
    "gain": {"parameters": StepParameters(channel_gain=np.linspace(0.5, 1.5, C))},
    "gain_per_frame": {"parameters": StepParameters(channel_gain=1 + 0.1 * rand(32, C))},
    "ode_noise": {"parameters": StepParameters(ode_noise=np.linspace(0, 0.5, 32))},
    "ab2": {"solver": "ab2", "shift": 3.0, "steps": 7},
    "ab2_guided": {**GUIDED, "solver": "ab2", "shift": 3.0},
    "ab2_interval": {
        **GUIDED,
        "solver": "ab2",
        "steps": 6,
        "parameters": StepParameters(guidance=3.0, cfg_interval_start=0.3, cfg_interval_end=0.7),
    },
    "ab2_two_conditions": {
        "solver": "ab2",
        "conditions": (CONDITIONS[0], Condition(CONDITIONS[2].tokens, np.linspace(1, 0.2, 32), 0.0, 0.6)),
    },
    "ab2_noise": {"solver": "ab2", "parameters": StepParameters(ode_noise=np.linspace(0, 0.5, 32))},
    "ab2_sde": {
        "solver": "ab2",
        "source": rand(32, C),
        "parameters": StepParameters(sde_curve=np.linspace(0, 1, 32)),
    },
    "ab2_everything": {
        "solver": "ab2",
        "negatives": (CONDITIONS[1],),
        "source": rand(32, C),
        "denoise": 0.8,
        "mask": LatentMask(np.repeat([0.2, 1.0], 16), rand(32, C)),
        "target": Target(rand(32, C), 0.5),
        "parameters": StepParameters(
            guidance=2.0, velocity_scale=0.9, channel_gain=1.1, rescale=0.5, dcw=Dcw("double", 0.1, 0.1)
        ),
    },
    "sde": {"solver": "sde"},
    "sde_curve": {
        "solver": "sde",
        "source": rand(32, C),
        "parameters": StepParameters(sde_curve=np.linspace(0, 1, 32)),
    },
    "sde_by_curve": {"source": rand(32, C), "parameters": StepParameters(sde_curve=np.linspace(0, 1, 32))},
    "one_weighted_condition": {
        "conditions": (
            Condition(CONDITIONS[0].tokens, np.linspace(1, 0, 32)),
            Condition(CONDITIONS[2].tokens, np.linspace(0, 1, 32), 0.5, 1.0),
        )
    },
    "dcw_low": {"parameters": StepParameters(dcw=Dcw("low", np.linspace(0, 0.2, 32)))},
    "dcw_high": {"parameters": StepParameters(dcw=Dcw("high", high=0.1))},
    "dcw_double": {"parameters": StepParameters(dcw=Dcw("double", 0.1, 0.05))},
    "dcw_pix": {"parameters": StepParameters(dcw=Dcw("pix", 0.1))},
    "everything": {
        "negatives": (CONDITIONS[1],),
        "source": rand(32, C),
        "denoise": 0.8,
        "mask": LatentMask(np.repeat([0.2, 1.0], 16), rand(32, C)),
        "target": Target(rand(32, C), 0.5),
        "parameters": StepParameters(
            guidance=2.0, velocity_scale=0.9, ode_noise=0.1, channel_gain=1.1, rescale=0.5, dcw=Dcw("double", 0.1, 0.1)
        ),
    },
}
# Loops of so many frames.
LOOPS = {"plain": 25, "ab2_guided": 30, "two_conditions": 32, "everything": 7}
FEATURES |= {f"loop_{name}": {**FEATURES[name], "loop_frames": frames} for name, frames in LOOPS.items()}
