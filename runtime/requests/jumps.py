"""When a step may be one jump of a decoder of mean velocities, with its guidance built in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from runtime.config.bundle import Bundle
from runtime.requests.curves import Array
from runtime.requests.request import NEUTRAL, SOLVERS, Solver, StepParameters

Values = float | list[float] | Array


@dataclass(frozen=True, slots=True)
class JumpRule:
    """What a bundle's jumps can do. guidance: the least and the most that is built in; neutral: what holds of the step
    parameters where nothing is said.
    """

    guidance: tuple[float, float]
    neutral: StepParameters

    @classmethod
    def of(cls, bundle: Bundle) -> JumpRule:
        """A bundle's. No momentum where its guidance has none."""
        neutral = replace(NEUTRAL, momentum=bundle.guidance.momentum, rescale=bundle.guidance.rescale)
        return cls(bundle.decoder.jump_guidance, neutral)

    def reason(self, guidance: Values, momentum: Values | None = None, rescale: Values | None = None) -> str:
        """Why these values need steps of velocity; "" where jumps do as well. None: the neutral value.

        A jump knows one guidance for all frames. What changes how two velocities become one is not built in.
        """
        values, (least, most) = np.asarray(guidance, np.float32), self.guidance
        if np.all(values == 1.0):
            return ""
        if np.ptp(values) > 0:
            return "guidance is a curve"
        if not least <= values.max() <= most:
            return f"guidance is not from {least:g} to {most:g}"
        for name, value in (("momentum", momentum), ("rescale", rescale)):
            usual = getattr(self.neutral, name)
            if value is not None and np.any(np.asarray(value, np.float32) != np.float32(usual)):
                return f"{name} is not {usual:g}"
        return ""


def solvers_of(bundle: Bundle) -> list[Solver]:
    """The solvers of a model: its decoder may have no jumps."""
    return [solver for solver in SOLVERS if solver != "jump" or bundle.decoder.inputs.time_end is not None]


NO_JUMPS: Final = JumpRule((1.0, 1.0), NEUTRAL)
