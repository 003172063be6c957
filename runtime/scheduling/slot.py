"""A generation in flight: its slot index, its step, and the features that its steps need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.requests.curves import is_everywhere
from runtime.requests.request import Dcw, GenerationRequest, StepParameters


@dataclass(slots=True)
class Slot:
    """A generation in flight: its slot_index in the bucket of its length, where it is, and what its step needs.

    `kept` turns true once the negative velocity that guidance mode "initialize" keeps has been computed.
    """

    request: GenerationRequest
    slot_index: int
    times: NDArray[np.float32]
    parameters: StepParameters
    features: frozenset[str]
    row_features: frozenset[str]
    step: int = 0
    has_cached_negative: bool = False

    @property
    def steps(self) -> int:
        """K, the number of steps of the whole generation."""
        return len(self.times) - 1

    @property
    def frames(self) -> int:
        """T."""
        return self.request.frames

    @property
    def is_guided(self) -> bool:
        """Whether guidance changes this slot's velocity."""
        return "guidance" in self.features


def uses_cached_negative(slot: Slot) -> bool:
    """Residual guidance: the negative is the initial noise ("self"), or the velocity kept from before
    ("initialize")."""
    mode = slot.request.guidance_mode
    return slot.is_guided and (mode == "self" or (mode == "initialize" and slot.has_cached_negative))


def step_features(request: GenerationRequest, parameters: StepParameters) -> frozenset[str]:
    """What the step graph must be able to do for this slot ("blend" depends on the step and is added per tick)."""
    can_guide = bool(request.negatives) or request.guidance_mode == "self"
    is_guided = can_guide and not _is(parameters.guidance, 1.0)
    is_sde = request.solver == "sde" or (parameters.sde_curve is not None and request.source is not None)
    has_target = request.target is not None and (
        request.target.curve is not None or not _is(parameters.x0_strength, 0.0)
    )
    used = {
        "guidance": is_guided,
        "rcfg": is_guided and request.guidance_mode != "full",
        "mask": request.mask is not None,
        "target": has_target,
        "sde": is_sde,
        "ode_noise": not is_sde and not _is(parameters.ode_noise, 0.0),
        "dcw": has_dcw(parameters.dcw),
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def row_features(request: GenerationRequest, parameters: StepParameters) -> frozenset[str]:
    """What must happen to this slot's latents before the decoder sees them."""
    used = {"mask": request.mask is not None, "gain": not _is(parameters.channel_gain, 1.0)}
    return frozenset(name for name, is_used in used.items() if is_used)


def has_dcw(dcw: Dcw | None) -> bool:
    """Whether a correction corrects anything."""
    return dcw is not None and not (
        is_everywhere(dcw.low, 0.0) and (dcw.mode != "double" or is_everywhere(dcw.high, 0.0))
    )


def _is(value: Any, number: float) -> bool:
    return value is None or is_everywhere(value, number)
