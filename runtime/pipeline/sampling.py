"""How a generation is sampled: its solver and steps, and why it does not jump where the model would."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from runtime.config.bundle import Bundle
from runtime.config.sampler import FittedSteps
from runtime.requests.jumps import JumpRule
from runtime.requests.options import GenerationOptions
from runtime.requests.request import GuidanceMode, Solver


class Sampling(NamedTuple):
    """What a generation's options, or the bundle's defaults in their place, come to.

    velocity_reason: why its steps are of velocity, with a row for each side of guidance; "" unless the solver that was
    asked for is "jump". kept: those of its steps that are computed; None: all. fitted: the bundle's numbers of them.
    """

    solver: Solver
    steps: int
    velocity_reason: str = ""
    guidance_mode: GuidanceMode = "full"
    kept: tuple[int, ...] | None = None
    fitted: FittedSteps | None = None

    @classmethod
    def of(cls, options: GenerationOptions, bundle: Bundle, *, is_live: bool = False, denoise: float = 1.0) -> Sampling:
        """Of options: a live session's where they name no number of steps. denoise: below 1 it begins with a source."""
        sampler = bundle.sampler
        solver, reason = options.solver or sampler.solver, ""
        if solver == "jump" and (reason := _velocity_reason(options, bundle)):
            solver = "ode" if sampler.velocity is None else sampler.velocity.solver
        usual = sampler.steps_of(solver)
        steps = len(options.timesteps or ()) or options.steps or (usual.live_steps if is_live else usual.steps)
        mode = options.guidance_mode or sampler.guidance_mode
        follows = denoise >= 1.0 and _only_follows_velocity(options, solver, bundle)
        kept = usual.kept.get(steps) if follows else None
        fitted = usual.fitted.get(steps) if follows and solver == "ab2" else None
        return cls(solver, steps, reason, mode, kept, fitted)

    @property
    def num_computed(self) -> int:
        """The steps that take rows."""
        return self.steps if self.kept is None else len(self.kept)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        told = {"solver": self.solver, "steps": self.steps}
        if self.kept is not None:
            told["computed_steps"] = self.num_computed
        return told | ({"velocity_reason": self.velocity_reason} if self.velocity_reason else {})


def _only_follows_velocity(options: GenerationOptions, solver: Solver, bundle: Bundle) -> bool:
    """Whether steps of the bundle's own times do nothing but follow their velocity, from noise."""
    own_times = (options.timesteps, options.shift, options.initial_noise_curve) == (None, None, None)
    prompts = () if isinstance(options.prompt, str) else options.prompt
    own_times = own_times and all((each.start, each.end) == (0.0, 1.0) for each in prompts)  # shares of all steps
    dcw = bundle.sampler.dcw if options.dcw is None else options.dcw
    has_dcw = any(np.any(np.asarray(each) != 0) for each in (dcw.low, dcw.high))
    pulls = options.target_curve is not None or options.x0_strength is not None or options.sde_curve is not None
    return own_times and solver in ("ode", "ab2") and not (has_dcw or pulls or np.any(options.ode_noise or 0.0))


def _velocity_reason(options: GenerationOptions, bundle: Bundle) -> str:
    if options.negative_prompt:
        return "negative_prompt is given"
    if options.guidance_mode not in (None, "full", "alternate"):
        return f"guidance_mode is {options.guidance_mode}"
    guidance = bundle.sampler.guidance if options.guidance is None else options.guidance
    return JumpRule.of(bundle).reason(guidance, options.momentum, options.rescale)
