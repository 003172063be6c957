"""What a generation needs on the device, resolved and resampled before it enters the tick loop. Any thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from runtime.engines.adapters import NO_ADAPTERS, AdapterCatalog, AdapterUse
from runtime.requests.curves import Array, Curve, is_everywhere, resample
from runtime.requests.jumps import NO_JUMPS, JumpRule
from runtime.requests.request import Condition, Dcw, GenerationRequest, StepParameters, fit
from runtime.requests.ring import shift_at, window_frames
from runtime.requests.timesteps import Purpose, extrapolation, noise, schedule, target_gate
from runtime.tick.denoise.slot_fields import GUIDANCE_FEATURES


@dataclass(frozen=True, slots=True, eq=False)
class StepValues:
    """The step parameters in force for one generation, with every curve at its T.

    features, row_features: what the step and the rows graph must be able to do for it ("blend" depends on the step and
    is added per tick). fields: field of slot_fields -> its row, None where neutral. adapters: those with a strength.
    jump_guidance: what is built into its jumps; None where its steps are of velocity.
    """

    parameters: StepParameters
    features: frozenset[str]
    row_features: frozenset[str]
    fields: Mapping[str, Any]
    adapters: tuple[AdapterUse, ...] = ()
    jump_guidance: float | None = None

    @property
    def is_guided(self) -> bool:
        """Whether guidance changes the velocity."""
        return "guidance" in self.features

    @property
    def draws_noise(self) -> bool:
        """Whether every step adds fresh noise."""
        return "sde" in self.features or "ode_noise" in self.features


class VelocityParts(NamedTuple):
    """The conditions of a step's velocity; negatives: None where guidance does not act.

    Between steps of which they differ the velocity jumps, so that nothing is extrapolated.
    """

    positives: tuple[Condition, ...]
    negatives: tuple[Condition, ...] | None


class Phase(NamedTuple):
    """Steps up to `end` (not included) in which the same conditions are active."""

    end: int
    positives: tuple[Condition, ...]
    negatives: tuple[Condition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedGeneration:
    """Everything that admission copies into a slot.

    times `[K + 1]`; ends `[K]`, to which each step takes the latents; gates `[K]`, how far the target's curve is on,
    None without target; states: state of slot_fields -> its first row `[T, C]`; fields: field -> its row for the whole
    generation, None where neutral; step_noise `[T, C]`: the first step's, where it draws some. has_cached_negative: the
    negative velocity that guidance mode "initialize" keeps has been computed; of mode "alternate" the difference, in
    the step before. extrapolation: K numbers, how far each step extrapolates its velocity, none where the solver does
    not; previous: what the state previous_velocity is made of, None where it is of no use. shifts: of a loop, how far
    each step turns it, K numbers.
    """

    request: GenerationRequest
    values: StepValues
    times: Array
    ends: Array
    gates: Array | None
    states: Mapping[str, Array]
    fields: Mapping[str, Any]
    step_noise: Array | None
    phases: tuple[Phase, ...]
    has_cached_negative: bool = False
    extrapolation: tuple[float, ...] = ()
    previous: VelocityParts | None = None
    shifts: tuple[int, ...] = ()

    @property
    def bucket(self) -> int:
        """T, which it shares with the generations of its bucket."""
        return self.request.frames

    @property
    def steps(self) -> int:
        """K."""
        return self.request.steps

    def is_guided(self, step: int) -> bool:
        """Whether guidance acts on the velocities of a step: where 1 - t is inside of the guidance interval."""
        return self.values.is_guided and self._is_inside(step)

    def _is_inside(self, step: int) -> bool:
        parameters = self.values.parameters
        start, end = parameters.cfg_interval_start, parameters.cfg_interval_end
        assert start is not None
        assert end is not None
        return start <= 1.0 - float(self.times[step]) <= end

    def row_numbers(self) -> tuple[list[float], list[float], list[float]]:
        """Of each step what its rows tell the decoder: the time, where a jump ends, the guidance that is built in.

        A jump ends at the next step's time; where the step is taken from the clean latents (sde), at 0. A velocity is
        that of a jump which ends where it begins.
        """
        times, guidance = self.times.tolist(), self.values.jump_guidance
        if guidance is None:
            return times[:-1], times[:-1], [1.0] * self.steps
        ends = [0.0] * self.steps if "sde" in self.values.features else times[1:]
        return times[:-1], ends, [guidance if self._is_inside(step) else 1.0 for step in range(self.steps)]

    def phase(self, step: int) -> Phase:
        """The conditions that take part in a step."""
        return next(phase for phase in self.phases if step < phase.end)


def prepare(request: GenerationRequest, values: StepValues, channels: int) -> PreparedGeneration:
    """Draw a request's noise, compute its schedule and its first latents `[T, channels]`."""
    times = _times(request)
    drawn = noise(request.frames, channels, request.seed) if request.noise is None else request.noise  # [T, C]
    loop, states = request.loop_frames, {"latents": start_latents(request, drawn, float(times[0]))}
    if loop is not None:
        states["latents"] = states["latents"][window_frames(request.frames, loop, 0)]
    if request.guidance_mode == "self":
        states["cached_negative_velocity"] = drawn
    return PreparedGeneration(
        request=request,
        values=values,
        times=times,
        ends=times[1:] if request.ends is None else np.array(request.ends, np.float32),  # [K]
        gates=_gates(request),
        states=states,
        fields=_request_fields(request, channels),
        step_noise=noise(request.frames, channels, request.seed, Purpose.STEP, 0) if values.draws_noise else None,
        phases=tuple(_phases(request)),
        extrapolation=_extrapolation(request, times),
        shifts=() if loop is None else tuple(shift_at(time, loop, request.seed) for time in times[:-1].tolist()),
    )


def _extrapolation(request: GenerationRequest, times: Array) -> tuple[float, ...]:
    if request.extrapolation is not None:
        return request.extrapolation
    return tuple(extrapolation(times).tolist()) if request.solver == "ab2" else ()


def _times(request: GenerationRequest) -> Array:
    """Flow times `[K + 1]`, the last one 0."""
    if request.timesteps is not None:
        return np.array([*request.timesteps, 0.0], np.float32)  # [K + 1]
    return schedule(request.steps, shift=request.shift, denoise=request.denoise)  # [K + 1]


def resolve(
    request: GenerationRequest,
    session: StepParameters,
    catalog: AdapterCatalog = NO_ADAPTERS,
    rule: JumpRule = NO_JUMPS,
) -> StepValues:
    """Step parameters, the session's over the request's over neutral, and what they ask of the graphs.

    Raises RequestError for adapters that the catalog does not have.
    """
    parameters = fit(session, request.frames).over(request.parameters).over(rule.neutral)
    assert parameters.guidance is not None
    jumps = request.solver == "jump" and request.guidance_mode in ("full", "alternate")
    jumps &= not rule.reason(parameters.guidance, parameters.momentum, parameters.rescale)
    features = step_features(request, parameters)
    if jumps:
        features -= GUIDANCE_FEATURES
    return StepValues(
        parameters,
        features,
        row_features(request, parameters),
        _step_fields(request, parameters, features),
        catalog.uses(parameters.adapters or {}),
        float(np.max(parameters.guidance)) if jumps else None,
    )


def start_latents(request: GenerationRequest, noise: Array, first_time: float) -> Array:
    """The latents `[T, C]` of the first step: noise, mixed with the source by the request's noise curve or denoise."""
    share: Curve | None = request.initial_noise_curve
    if share is None and request.denoise < 1.0:
        share = first_time
    if share is None or request.start is None:
        return noise
    mixed = noise - request.start  # [T, C]
    mixed *= share if isinstance(share, float) else share[:, None]  # [T, C] * [] or [T, 1]
    mixed += request.start  # [T, C]
    return mixed


def step_features(request: GenerationRequest, parameters: StepParameters) -> frozenset[str]:
    """What the step graph must be able to do for this request, "blend" aside."""
    can_guide = bool(request.negatives) or request.guidance_mode == "self"
    is_guided = can_guide and not _is(parameters.guidance, 1.0)
    is_sde = request.solver == "sde" or (parameters.sde_curve is not None and request.source is not None)
    has_target = request.target is not None and (
        request.target.curve is not None or not _is(parameters.x0_strength, 0.0)
    )
    used = {
        "guidance": is_guided,
        "rcfg": is_guided and request.guidance_mode != "full",
        "rescale": is_guided and not _is(parameters.rescale, 0.0),
        "ab2": (request.solver == "ab2" or request.extrapolation is not None) and not is_sde,
        "mask": request.mask is not None,
        "target": has_target,
        "sde": is_sde,
        "ode_noise": not is_sde and not _is(parameters.ode_noise, 0.0),
        "dcw": parameters.dcw is not None and not parameters.dcw.is_neutral,
    }
    return frozenset(name for name, is_used in used.items() if is_used)


def row_features(request: GenerationRequest, parameters: StepParameters) -> frozenset[str]:
    """What must happen to the latents before the decoder sees them."""
    used = {"mask": request.mask is not None, "gain": not _is(parameters.channel_gain, 1.0)}
    return frozenset(name for name, is_used in used.items() if is_used)


def _phases(request: GenerationRequest) -> Iterator[Phase]:
    """The schedule in parts with the same active conditions; the first of each group where none is active."""
    steps = request.steps
    active = [(_active(request.conditions, k, steps), _active(request.negatives, k, steps)) for k in range(steps)]
    for step, (positives, negatives) in enumerate(active):
        if step + 1 == steps or active[step + 1] != active[step]:
            yield Phase(step + 1, positives, negatives)


def _active(conditions: tuple[Condition, ...], step: int, steps: int) -> tuple[Condition, ...]:
    return tuple(c for c in conditions if c.active(step, steps)) or conditions[:1]


def _is(value: Any, number: float) -> bool:
    return value is None or is_everywhere(value, number)


def _gates(request: GenerationRequest) -> Array | None:
    """`[K]`: a strength acts from step K // 2 on, a curve by timesteps.target_gate."""
    target, steps = request.target, request.steps
    if target is None:
        return None
    if target.curve is None:
        return np.array([step >= steps // 2 for step in range(steps)], np.float32)  # [K]
    return np.array([target_gate(step, steps, target.gate) for step in range(steps)], np.float32)  # [K]


def _request_fields(request: GenerationRequest, channels: int) -> dict[str, Any]:
    """Field -> row of what holds for the whole generation; None where it is neutral."""
    mask, target = request.mask, request.target
    mask_noise = None if mask is None else mask.noise
    if mask is not None and mask_noise is None:
        mask_noise = noise(request.frames, channels, request.seed, Purpose.MASK)  # [T, C]
    return {
        "mask": None if mask is None else mask.mask,
        "original": None if mask is None else request.original,
        "mask_noise": mask_noise,
        "target": None if target is None else target.latents,
        "source": request.source,
    }


def _step_fields(request: GenerationRequest, parameters: StepParameters, features: frozenset[str]) -> dict[str, Any]:
    """Field -> row of the step parameters; None where it is neutral, by value or because it has no effect here."""
    curve = None if request.target is None else request.target.curve
    strength = parameters.x0_strength if curve is None else curve
    guided = "guidance" in features
    return {
        "velocity_scale": parameters.velocity_scale,
        "guidance": parameters.guidance if guided else None,
        "momentum": parameters.momentum if guided else None,
        "rescale": parameters.rescale if "rescale" in features else None,
        "pauses_guidance": None,
        "target_curve": strength if "target" in features else None,
        "ode_noise": parameters.ode_noise if "ode_noise" in features else None,
        "sde": True if "sde" in features else None,
        "sde_curve": parameters.sde_curve if "sde" in features and request.source is not None else None,
        "channel_gain": None if _is(parameters.channel_gain, 1.0) else parameters.channel_gain,
        **_dcw_fields(parameters.dcw if "dcw" in features else None, -(-request.frames // 2)),
    }


def _dcw_fields(dcw: Dcw | None, bands: int) -> dict[str, Any]:
    """Coefficients per band of length `bands`; pix has one per frame."""
    if dcw is None:
        return {"dcw_low": None, "dcw_high": None, "dcw_pix": None}
    if dcw.mode == "pix":
        return {"dcw_low": None, "dcw_high": None, "dcw_pix": dcw.low}
    return {"dcw_low": _band(dcw.low, bands), "dcw_high": _band(dcw.high, bands), "dcw_pix": None}


def _band(values: Curve, bands: int) -> Curve:
    return resample(values, bands) if isinstance(values, np.ndarray) else values  # [bands] or []
