"""How a generation is sampled: its solver and steps, and why it does not jump where the model would."""

from __future__ import annotations

from typing import Any, NamedTuple

from runtime.config.bundle import Bundle
from runtime.requests.jumps import JumpRule
from runtime.requests.options import GenerationOptions
from runtime.requests.request import Solver


class Sampling(NamedTuple):
    """What a generation's options, or the bundle's defaults in their place, come to.

    velocity_reason: why its steps are of velocity, with a row for each side of guidance; "" unless the solver that was
    asked for is "jump".
    """

    solver: Solver
    steps: int
    velocity_reason: str = ""

    @classmethod
    def of(cls, options: GenerationOptions, bundle: Bundle, *, is_live: bool = False) -> Sampling:
        """Of options: a live session's where they name no number of steps."""
        sampler = bundle.sampler
        solver, reason = options.solver or sampler.solver, ""
        if solver == "jump" and (reason := _velocity_reason(options, bundle)):
            solver = "ode" if sampler.velocity is None else sampler.velocity.solver
        usual = sampler.steps_of(solver)
        steps = len(options.timesteps or ()) or options.steps or (usual.live_steps if is_live else usual.steps)
        return cls(solver, steps, reason)

    def told(self) -> dict[str, Any]:
        """As JSON."""
        told = {"solver": self.solver, "steps": self.steps}
        return told | ({"velocity_reason": self.velocity_reason} if self.velocity_reason else {})


def _velocity_reason(options: GenerationOptions, bundle: Bundle) -> str:
    if options.negative_prompt:
        return "negative_prompt is given"
    if options.guidance_mode != "full":
        return f"guidance_mode is {options.guidance_mode}"
    guidance = bundle.sampler.guidance if options.guidance is None else options.guidance
    return JumpRule.of(bundle).reason(guidance, options.momentum, options.rescale)
