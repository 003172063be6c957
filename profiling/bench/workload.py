"""Workloads of a benchmark: depth, frames, steps, and the features of the step in use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import ConfigError
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.engines.engine import EngineSet, condition_width
from runtime.requests.request import Condition, Dcw, GenerationRequest, LatentMask, StepParameters, Target

TOKENS = 16
# Of random conditions. The demo's decoder reads tempi from sums of condition tokens: of large ones, phases of beats are
# too large for float32, and equal generations in batches of other sizes differ by more than rounding.
SCALE = np.float32(0.001)
DCW = Dcw("double", low=0.05, high=0.02)
GUIDANCE = 3.0
FEATURES = ("guidance", "rcfg", "dcw", "mask", "target", "sde", "ode_noise", "blend", "gain", "ab2")


@dataclass(frozen=True)
class Workload:
    """The generations that run at once.

    more: features of the step in use, of FEATURES without guidance and DCW. sessions: the generations belong to so many
    sessions, and before every tick one of these changes a step parameter; 0: no session, no change. adapters: ids of
    those that every generation uses.
    """

    depth: int
    frames: int
    steps: int
    guidance: float = 1.0
    dcw: bool = False
    tokens: int = TOKENS
    more: frozenset[str] = frozenset()
    sessions: int = 0
    adapters: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The features in use, guidance and DCW first."""
        used = [name for name, on in (("guidance", self.guidance != 1.0), ("dcw", self.dcw)) if on]
        return (*used, *sorted(self.more))

    @property
    def variant(self) -> str:
        """The features in use as one name, as in the budgets: "guidance+dcw"."""
        return "+".join(self.features) or "plain"

    @property
    def text(self) -> str:
        """Its size and features: "depth 4, 256 frames, guidance+dcw"."""
        return f"depth {self.depth}, {self.frames} frames, {self.variant}"

    @property
    def weight(self) -> float:
        """Its cost relative to other workloads: frames of all rows, over the steps of a schedule."""
        return self.depth * self.frames * self.steps * (1 if self.guidance == 1.0 else 2)

    def session_of(self, index: int) -> str:
        """The session that generation `index` belongs to."""
        return f"session-{index % self.sessions}" if self.sessions else ""


def workload_of(
    deployment: Deployment,
    depth: int,
    frames: int = 0,
    steps: int = 0,
    *,
    guidance: float = 1.0,
    dcw: bool = False,
    features: Collection[str] = (),
    sessions: int = 0,
) -> Workload:
    """A workload on a deployment; 0 frames or steps are the bundle's defaults. Raises ConfigError."""
    bundle = deployment.loaded_bundle
    unknown = sorted(set(features) - set(FEATURES))
    if unknown:
        raise ConfigError(f"unknown feature: {', '.join(unknown)}", fix=f"--features takes {', '.join(FEATURES)}")
    if guidance == 1.0 and {"guidance", "rcfg"} & set(features):
        guidance = GUIDANCE
    load = Workload(
        depth,
        frames or bundle.latents.canvas_frames,
        steps or bundle.sampler.steps,
        guidance=guidance,
        dcw=dcw or "dcw" in features,
        more=frozenset(features) - {"guidance", "dcw"},
        sessions=sessions,
    )
    ranges = next((shape for shape in deployment.shapes if shape.frames.holds(load.frames)), None)
    if ranges is None:
        raise ConfigError(f"{deployment.path} has no shape range for {load.frames} frames", fix="choose other --frames")
    if load.frames % bundle.latents.frame_multiple:
        multiple = bundle.latents.frame_multiple
        raise ConfigError(f"{load.frames} frames are not a multiple of {multiple}", fix="choose other --frames")
    return replace(load, tokens=ranges.tokens.nearest(TOKENS))


def at_depth(deployment: Deployment, depth: int) -> Deployment:
    """A deployment with `depth` slots and at least as many places in the queue."""
    return with_runtime(deployment, depth=depth, queue=max(deployment.runtime.queue, depth))


def with_runtime(deployment: Deployment, **changes: Any) -> Deployment:
    """The same deployment with other values in its [runtime] table."""
    return deployment.model_copy(update={"runtime": deployment.runtime.model_copy(update=changes)})


def make_request(load: Workload, bundle: Bundle, engines: EngineSet, index: int) -> GenerationRequest:
    """Generation `index` of the workload. Its conditions `[L, D]` are random, which changes no time."""
    random = np.random.default_rng(index)
    width = condition_width(engines.decoder, bundle.decoder.inputs)
    shape = (load.tokens, width)
    first, second, negative = (SCALE * random.standard_normal(shape, dtype=np.float32) for _ in range(3))
    ramp = _ramp(load.frames)
    blended = (Condition(first, ramp[::-1]), Condition(second, ramp))
    return GenerationRequest(
        frames=load.frames,
        steps=load.steps,
        seed=index,
        shift=bundle.sampler.shift,
        conditions=blended if "blend" in load.more else (Condition(first),),
        negatives=(Condition(negative),) if load.guidance != 1.0 else (),
        guidance_mode="initialize" if "rcfg" in load.more else "full",
        solver=next((name for name in ("sde", "ab2") if name in load.more), "ode"),
        context=_empty_context(bundle, load.frames),
        session=load.session_of(index),
        client=load.session_of(index),
        parameters=_parameters(load),
        **_latents(load, random, bundle.latents.channels),
    )


def _parameters(load: Workload) -> StepParameters:
    return StepParameters(
        guidance=load.guidance,
        dcw=DCW if load.dcw else None,
        x0_strength=0.3 if "target" in load.more else None,
        ode_noise=0.05 if "ode_noise" in load.more else None,
        channel_gain=1.1 if "gain" in load.more else None,
        adapters=dict.fromkeys(load.adapters, 1.0),
    )


def _latents(load: Workload, random: np.random.Generator, channels: int) -> dict[str, Any]:
    """The mask and the target of a request, where the workload has them."""
    found: dict[str, Any] = {}
    if "mask" in load.more:
        original = random.standard_normal((load.frames, channels), dtype=np.float32)
        found["mask"] = LatentMask(_ramp(load.frames), original)
    if "target" in load.more:
        found["target"] = Target(random.standard_normal((load.frames, channels), dtype=np.float32))
    return found


def _ramp(frames: int) -> NDArray[np.float32]:
    return np.linspace(0.0, 1.0, frames, dtype=np.float32)


def _empty_context(bundle: Bundle, frames: int) -> NDArray[np.float32] | None:
    """The context of a generation without a source: silence, and a mask of ones."""
    if bundle.context is None:
        return None
    silence = bundle.silence(frames)
    return np.concatenate([silence, np.ones_like(silence)], axis=1)
