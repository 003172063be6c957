"""What one generation is asked to be: frozen data, checked when it is made.

Every scalar of the step may also be a per-frame curve `[T]` (float32). Everything in `GenerationRequest` holds from
admission to the end, except `parameters`: a session may override those while its generations are in flight.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.option_ranges import ANY_MODEL
from runtime.config.sampler import APG
from runtime.requests.curves import Array, Curve, array, curve, is_everywhere, resample

MAX_STEPS = int(ANY_MODEL.steps.max)
MAX_CONDITIONS = 16
MAX_SEED = 2**64 - 1
DENOISE_MIN = 1e-6


def _set(instance: object, name: str, value: object) -> None:
    object.__setattr__(instance, name, value)


@dataclass(frozen=True, eq=False)
class Condition:
    """One condition: `tokens` `[L, D]` float32, its weight over time, and the part of the schedule in which it is
    active.

    Active at step k of K when `start <= k/K < end`. D is 0 for a decoder that takes no condition. counts: how often
    each token counts, float32 `[L]` or of all, for decoders whose mask says so.
    """

    tokens: Array
    weight: Curve = 1.0
    start: float = 0.0
    end: float = 1.0
    counts: Array | float = 1.0

    def __post_init__(self) -> None:
        _set(self, "tokens", array(self.tokens, "condition.tokens", 2))
        _set(self, "weight", curve(self.weight, "condition.weight"))
        if np.shape(self.counts) not in ((), (len(self.tokens),)) or not np.all(np.asarray(self.counts) > 0):
            raise RequestError("needs a number above 0 for each token", field="condition.counts")
        if not 0.0 <= self.start < self.end:
            raise RequestError(f"needs 0 <= start < end, got {self.start}, {self.end}", field="condition.start")

    @classmethod
    def none(cls) -> Condition:
        """What a generation of a decoder that takes no condition has: one token of width 0."""
        return cls(np.zeros((1, 0), np.float32))

    def merged(self) -> Condition:
        """The same with equal tokens that follow each other as one that counts as often: padding, above all."""
        begins = np.append(True, (self.tokens[1:] != self.tokens[:-1]).any(axis=1))  # [L]
        firsts = np.flatnonzero(begins)
        counts = np.add.reduceat(np.broadcast_to(np.float32(self.counts), begins.shape), firsts)
        return replace(self, tokens=self.tokens[firsts], counts=counts)

    def active(self, step: int, steps: int) -> bool:
        """Whether it takes part in step `step` of `steps`."""
        return self.start <= step / steps < self.end


@dataclass(frozen=True, eq=False)
class LatentMask:
    """1 = generate, 0 = keep `original` `[T, C]` (else the source). Without `noise` `[T, C]` the seed gives it."""

    mask: Curve
    original: Array | None = None
    noise: Array | None = None

    def __post_init__(self) -> None:
        _set(self, "mask", curve(self.mask, "mask.mask"))
        for name in ("original", "noise"):
            if getattr(self, name) is not None:
                _set(self, name, array(getattr(self, name), f"mask.{name}", 2))


@dataclass(frozen=True, eq=False)
class Target:
    """A latent `[T, C]` that x0 is drawn to: along `curve` after `gate` (share of the steps), or by `x0_strength`."""

    latents: Array
    curve: Curve | None = None
    gate: float = 0.0

    def __post_init__(self) -> None:
        _set(self, "latents", array(self.latents, "target.latents", 2))
        if self.curve is not None:
            _set(self, "curve", curve(self.curve, "target.curve"))
        if not 0.0 <= self.gate <= 1.0:
            raise RequestError(f"needs 0 <= gate <= 1, got {self.gate}", field="target.gate")


DcwMode = Literal["low", "high", "double", "pix"]
DCW_READS: dict[str, tuple[str, ...]] = {"low": ("low",), "high": ("high",), "double": ("low", "high"), "pix": ("low",)}


@dataclass(frozen=True, eq=False)
class Dcw:
    """Wavelet-domain correction (Yu et al., CVPR 2026) of the low band, the high band, both, or the frames (pix).

    `low` is the strength of modes low, double and pix, `high` that of modes high and double. A strength that the mode
    does not read must be 0.
    """

    mode: DcwMode = "double"
    low: Curve = 0.0
    high: Curve = 0.0

    def __post_init__(self) -> None:
        if self.mode not in DCW_READS:
            raise RequestError(f"expected low, high, double or pix, got {self.mode!r}", field="dcw.mode")
        for name in ("low", "high"):
            _set(self, name, curve(getattr(self, name), f"dcw.{name}"))
            if name not in DCW_READS[self.mode] and not is_everywhere(getattr(self, name), 0.0):
                (read,) = DCW_READS[self.mode]
                raise RequestError(f"mode {self.mode} does not read it", field=f"dcw.{name}", fix=f"set dcw.{read}")

    @property
    def is_neutral(self) -> bool:
        """Whether it corrects nothing."""
        return is_everywhere(self.low, 0.0) and is_everywhere(self.high, 0.0)


@dataclass(frozen=True, eq=False)
class StepParameters:
    """What every step reads anew. None: not set here; the session's value, the request's or the neutral one holds.

    velocity_scale, guidance, momentum, rescale (0..1), x0_strength (0..1), sde_curve (0..1), ode_noise: scalar or
    `[T]`.
    channel_gain: scalar, `[C]` or `[T, C]`. dcw: a Dcw. adapters: id -> strength of LoRA adapters. cfg_interval_start,
    cfg_interval_end: guidance acts in steps with start <= 1 - t <= end.
    """

    velocity_scale: Curve | None = None
    guidance: Curve | None = None
    momentum: Curve | None = None
    rescale: Curve | None = None
    x0_strength: Curve | None = None
    sde_curve: Curve | None = None
    ode_noise: Curve | None = None
    channel_gain: float | Array | None = None
    dcw: Dcw | None = None
    adapters: Mapping[str, float] | None = None
    cfg_interval_start: float | None = None
    cfg_interval_end: float | None = None

    def __post_init__(self) -> None:
        for name in CURVE_PARAMETERS:
            if getattr(self, name) is not None:
                _set(self, name, curve(getattr(self, name), name))
        for name in INTERVAL_PARAMETERS:
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise RequestError(f"expected a number from 0 to 1, got {value!r:.40}", field=name)
        if self.channel_gain is not None:
            gain = np.asarray(self.channel_gain, np.float32)
            _set(self, "channel_gain", curve(gain, "channel_gain") if gain.ndim < 2 else array(gain, "channel_gain", 2))

    def over(self, below: StepParameters) -> StepParameters:
        """These parameters where given, `below`'s elsewhere."""
        merged = copy(self)  # Both are checked: what is made of them is not checked again.
        for name in STEP_PARAMETERS:
            if getattr(self, name) is None:
                _set(merged, name, getattr(below, name))
        return merged


CURVE_PARAMETERS = ("velocity_scale", "guidance", "momentum", "rescale", "x0_strength", "sde_curve", "ode_noise")
INTERVAL_PARAMETERS = ("cfg_interval_start", "cfg_interval_end")
STEP_PARAMETERS = (*CURVE_PARAMETERS, "channel_gain", "dcw", "adapters", *INTERVAL_PARAMETERS)
NEUTRAL = StepParameters(
    velocity_scale=1.0, guidance=1.0, momentum=APG.momentum, rescale=APG.rescale, x0_strength=0.0, ode_noise=0.0,
    channel_gain=1.0, cfg_interval_start=0.0, cfg_interval_end=1.0,
)  # fmt: skip


GuidanceMode = Literal["full", "alternate", "self", "initialize"]
GUIDANCE_MODES: tuple[GuidanceMode, ...] = get_args(GuidanceMode)
Solver = Literal["ode", "sde", "ab2", "jump"]
SOLVERS: tuple[Solver, ...] = get_args(Solver)


@dataclass(frozen=True, eq=False)
class GenerationRequest:
    """One generation, on its way from noise to latents `[T, C]`.

    conditions: at least one. negatives: what guidance pushes away from (mode "self" needs none). solver: "jump" takes
    steps of velocity, with Euler's method, where the step parameters ask for what a jump cannot do (see JumpRule).
    extrapolation: how far each step extrapolates its velocity, in place of the solver's own (see timesteps).
    timesteps: t of each step, descending from at most 1, in place of the schedule of steps and shift. ends: the time to
    which a step of Euler's method takes the latents of each step, in place of the next step's.
    context `[T, X]` for decoders with context input. source `[T, C]`: what a cover starts from. noise `[T, C]`:
    instead of the seed's.
    initial_noise_curve: per-frame mix of noise (1) and source (0) at the start. loop_frames: those of a loop, which is
    denoised as a circle (see ring) and repeats up to T. `session` names the session
    parameters that the generation follows; `client`: the waiting queue serves clients round robin. is_urgent: it takes
    a slot before those that are not, and no place in the queue. Raises RequestError with the field.
    """

    frames: int
    conditions: tuple[Condition, ...]
    steps: int = 8
    shift: float = 1.0
    denoise: float = 1.0
    timesteps: tuple[float, ...] | None = None
    seed: int = 0
    negatives: tuple[Condition, ...] = ()
    guidance_mode: GuidanceMode = "full"
    solver: Solver = "ode"
    extrapolation: tuple[float, ...] | None = None
    ends: tuple[float, ...] | None = None
    context: Array | None = None
    source: Array | None = None
    noise: Array | None = None
    initial_noise_curve: Curve | None = None
    loop_frames: int | None = None
    mask: LatentMask | None = None
    target: Target | None = None
    parameters: StepParameters = field(default_factory=StepParameters)
    session: str = ""
    client: str = ""
    is_urgent: bool = False
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        if self.timesteps is not None:
            _set(self, "timesteps", tuple(self.timesteps))
            _set(self, "steps", len(self.timesteps))
        _check_scalars(self)
        for name in ("context", "source", "noise"):
            if getattr(self, name) is not None:
                _set(self, name, array(getattr(self, name), name, 2))
        if self.initial_noise_curve is not None:
            _set(self, "initial_noise_curve", curve(self.initial_noise_curve, "initial_noise_curve"))
        _check_frames(self)
        _check_sources(self)

    @property
    def original(self) -> Array | None:
        """What the mask keeps: its own original, else the source."""
        if self.mask is None or self.mask.original is None:
            return self.source
        return self.mask.original

    @property
    def start(self) -> Array | None:
        """The clean latents that a partial denoise starts from: the source, else the mask's original."""
        return self.source if self.source is not None else self.original


def _check_scalars(request: GenerationRequest) -> None:
    for name, low, high in (("frames", 1, 2**31 - 1), ("steps", 1, MAX_STEPS), ("seed", 0, MAX_SEED)):
        value = getattr(request, name)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
            raise RequestError(f"expected an integer from {low} to {high}, got {value!r:.40}", field=name)
    if not (math.isfinite(request.shift) and request.shift > 0):
        raise RequestError(f"expected a number above 0, got {request.shift}", field="shift")
    times = (1.0, *(request.timesteps or ()), 0.0)
    if any(not later < earlier for earlier, later in pairwise(times[1:])) or not times[1] <= 1.0:
        raise RequestError("expected numbers that descend from at most 1 and stay above 0", field="timesteps")
    for name in ("extrapolation", "ends"):
        if (values := getattr(request, name)) is not None and len(values) != request.steps:
            raise RequestError(f"expected {request.steps} numbers, one for each step, got {len(values)}", field=name)
    if not 0.0 <= request.denoise <= 1.0:
        raise RequestError(f"expected 0 <= denoise <= 1, got {request.denoise}", field="denoise")
    if not request.conditions:
        raise RequestError("needs at least one condition", field="conditions")
    if request.guidance_mode not in GUIDANCE_MODES:
        expected = f"{', '.join(GUIDANCE_MODES[:-1])} or {GUIDANCE_MODES[-1]}"
        raise RequestError(f"expected {expected}, got {request.guidance_mode!r}", field="guidance_mode")
    if request.solver not in SOLVERS:
        raise RequestError(f"expected ode, sde, ab2 or jump, got {request.solver!r}", field="solver")


def frame_fields(request: GenerationRequest) -> list[tuple[str, Any]]:
    """(name, value) of everything whose first dimension is T."""
    pairs: list[tuple[str, Any]] = [(name, getattr(request, name)) for name in ("context", "source", "noise")]
    pairs.append(("initial_noise_curve", request.initial_noise_curve))
    pairs += [(f"conditions.{i}.weight", c.weight) for i, c in enumerate(request.conditions)]
    pairs += [(f"negatives.{i}.weight", c.weight) for i, c in enumerate(request.negatives)]
    if request.mask is not None:
        pairs += [(f"mask.{name}", getattr(request.mask, name)) for name in ("mask", "original", "noise")]
    if request.target is not None:
        pairs += [("target.latents", request.target.latents), ("target.curve", request.target.curve)]
    return pairs + parameter_curves(request.parameters)


def parameter_curves(parameters: StepParameters) -> list[tuple[str, Any]]:
    """(name, value) of every step parameter that may have T frames."""
    pairs = [(name, getattr(parameters, name)) for name in CURVE_PARAMETERS]
    if np.ndim(parameters.channel_gain) == 2:  # type: ignore[arg-type]
        pairs.append(("channel_gain", parameters.channel_gain))
    if parameters.dcw is not None:
        pairs += [("dcw.low", parameters.dcw.low), ("dcw.high", parameters.dcw.high)]
    return pairs


def _check_frames(request: GenerationRequest) -> None:
    if request.loop_frames is not None and not 1 <= request.loop_frames <= request.frames:
        what = f"expected 1 to the generation's {request.frames}, got {request.loop_frames}"
        raise RequestError(what, field="loop_frames")
    for name, value in frame_fields(request):
        if isinstance(value, np.ndarray) and len(value) != request.frames:
            raise RequestError(f"has {len(value)} frames, the generation has {request.frames}", field=name)


def _check_sources(request: GenerationRequest) -> None:
    if request.mask is not None and request.original is None:
        raise RequestError("needs an original or a source to keep", field="mask.original")
    if request.denoise < 1.0 and request.start is None:
        raise RequestError("below 1 needs a source to start from", field="denoise", fix="give a source or denoise 1")
    if request.initial_noise_curve is not None and request.start is None:
        raise RequestError("needs a source to mix with", field="initial_noise_curve")
    if request.parameters.sde_curve is not None and request.source is None:
        raise RequestError("needs a source to mix with", field="sde_curve")


def fit(parameters: StepParameters, frames: int) -> StepParameters:
    """The same parameters with every curve at T = `frames`, interpolated linearly where it has another length."""
    changes: dict[str, Any] = {name: _fit(getattr(parameters, name), frames) for name in CURVE_PARAMETERS}
    if parameters.dcw is not None:
        changes["dcw"] = Dcw(parameters.dcw.mode, _fit(parameters.dcw.low, frames), _fit(parameters.dcw.high, frames))
    gain = parameters.channel_gain
    if isinstance(gain, np.ndarray) and gain.ndim == 2 and len(gain) != frames:
        changes["channel_gain"] = np.stack([resample(column, frames) for column in gain.T], axis=1)
    fitted = copy(parameters)
    for name, value in changes.items():
        _set(fitted, name, value)
    return fitted


def _fit(value: Any, frames: int) -> Any:
    return resample(value, frames) if isinstance(value, np.ndarray) and len(value) != frames else value


def merge_patch(current: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A session's step parameters after a merge-patch (RFC 7396): what is given changes, None takes a value away.

    Raises RequestError for an unknown name or a value that is not valid.
    """
    for name in patch:
        if name not in STEP_PARAMETERS:
            raise RequestError(f"expected one of {', '.join(STEP_PARAMETERS)}", field=name)
    given = StepParameters(**patch)
    merged = {**current, **{name: getattr(given, name) for name in patch}}
    return {name: value for name, value in merged.items() if value is not None}
