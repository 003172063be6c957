"""Reference implementation of the step semantics in numpy, float64, one generation at a time.

It shares no code with the runtime but the request's types. Shapes: x, noise, source, target `[T, C]`; curves are
scalars or `[T]`. `decode(x, t, tokens, context)` returns the velocity `[T, C]` of one condition; with two more numbers,
the time where a jump ends and the guidance that is built in, the mean velocity of the jump. frames `[T]`: the
frames' numbers, where they are not 0, 1, 2 ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runtime.config.sampler import APG, GuidanceSpec
from runtime.requests.request import Condition, Dcw, GenerationRequest, StepParameters
from runtime.requests.ring import shift_at

F64 = NDArray[np.float64]
Decode = Callable[..., ArrayLike]

TINY = 1e-12


@dataclass(frozen=True)
class Rule:
    """How positive conditions are blended: the power of the mean around `silence` (`[C]`); 1: of velocities.

    energy_below: at times below it, power 2 at most. guidance: how positive and negative become one. jumps: the least
    and the most guidance that jumps have built in.
    """

    power: float = 1.0
    silence: ArrayLike = 0.0
    energy_below: float = 0.0
    guidance: GuidanceSpec = APG
    jumps: tuple[float, float] = (1.0, 1.0)


MEAN = Rule()


@dataclass(frozen=True)
class State:
    """One generation between two steps: latents, APG momentum, the cached negative velocity of RCFG (of guidance mode
    "alternate" the difference, where the next step keeps it), and with solver
    ab2 the step before: its velocity, its length and what the velocity is made of, None after a step that added noise.
    """

    x: F64
    momentum: F64
    kept: F64 | None = None
    before: tuple[F64, float, object] | None = None


@dataclass(frozen=True)
class Noises:
    """The random inputs: start noise and mask noise `[T, C]`, and the noise of each step."""

    start: NDArray[np.float32]
    mask: NDArray[np.float32] | None = None
    step: Callable[[int], ArrayLike] | None = None


def schedule(steps: int, shift: float, denoise: float) -> F64:
    """t_0 > ... > t_K = 0, `[K + 1]`."""
    start = 1.0 if denoise >= 1 else steps / int(steps / denoise)
    times = np.linspace(start, 0.0, steps + 1)
    return shift * times / (1 + (shift - 1) * times)


def first_state(request: GenerationRequest, noise: ArrayLike, times: F64) -> State:
    """The state before the first step."""
    noise = np.asarray(noise, np.float64)
    source = request.source if request.source is not None else request.original
    if request.initial_noise_curve is not None and source is not None:
        c = column(request.initial_noise_curve)
        x = c * noise + (1 - c) * source
    elif source is not None and request.denoise < 1:
        x = times[0] * noise + (1 - times[0]) * source
    else:
        x = noise
    if request.loop_frames is not None:
        x = np.resize(x[: request.loop_frames], x.shape)
    kept = noise if request.guidance_mode == "self" else None
    return State(np.asarray(x, np.float64), np.zeros_like(noise), kept)


def generate(
    request: GenerationRequest,
    decode: Decode,
    noises: Noises,
    overrides: Mapping[int, StepParameters] | None = None,
    rule: Rule = MEAN,
) -> list[F64]:
    """The latents after each step, `[T, C]` each. `overrides` maps a step to the session's parameters at that step."""
    if request.denoise <= 1e-6:
        assert request.source is not None
        return [np.asarray(request.source, np.float64)]
    times = schedule(request.steps, request.shift, request.denoise)
    if request.timesteps is not None:
        times = np.array([*request.timesteps, 0.0])
    state, results = first_state(request, noises.start, times), []
    for k in range(request.steps):
        now = request
        if overrides and k in overrides:
            now = replace(request, parameters=overrides[k].over(request.parameters))
        state = step(now, state, decode, noises, k, float(times[k]), float(times[k + 1]), rule)
        results.append(state.x)
    return results


def step(
    request: GenerationRequest,
    state: State,
    decode: Decode,
    noises: Noises,
    k: int,
    t: float,
    t_next: float,
    rule: Rule = MEAN,
) -> State:
    """One step of one generation: DESIGN section 5, numbers 1 to 7."""
    p = request.parameters
    x = mask_before(request, state.x, noises.mask, t)
    decoder_input = x * value_or(p.channel_gain, 1.0)
    is_inside = value_or(p.cfg_interval_start, 0.0) <= 1 - np.float32(t) <= value_or(p.cfg_interval_end, 1.0)
    sde = request.solver == "sde" or (p.sde_curve is not None and request.source is not None)
    jumping = request.solver == "jump" and jumps(request, rule)
    if jumping:
        decode = jump(decode, 0.0 if sde else t_next, float(np.max(value_or(p.guidance, 1.0))) if is_inside else 1.0)
    if request.loop_frames is not None:
        decode = circle(decode, request.loop_frames, shift_at(t, request.loop_frames, request.seed))
    v = blend(request.conditions, decode, decoder_input, t, k, request, lambda parts, w: level(rule, x, t, parts, w))
    momentum, kept = state.momentum, state.kept
    if guides(request) and is_inside and not jumping:
        keeps = request.guidance_mode == "alternate" and kept is not None
        negative = v - kept if keeps else kept
        if negative is None or request.guidance_mode == "full":
            negative = blend(request.negatives, decode, decoder_input, t, k, request)
        kept = negative if request.guidance_mode != "full" else None
        if request.guidance_mode == "alternate":
            kept = None if keeps else v - negative
        v, momentum = guide(v, negative, momentum, p, rule.guidance)
    elif request.guidance_mode == "alternate":
        kept = None
    draws = sde or bool(np.any(value_or(p.ode_noise, 0.0)))
    guided = guides(request) and is_inside and bool(np.any(np.asarray(value_or(p.guidance, 1.0)) != 1))
    parts = active(request.conditions, k, request), active(request.negatives, k, request) if guided else None
    before = None if draws or request.solver != "ab2" else (v, t_next - t, parts)
    goes_on = request.solver == "ab2" and t_next > 0
    if goes_on and not sde and state.before is not None and state.before[2] == parts:
        v = adams_bashforth(v, t_next - t, *state.before[:2])
    x0 = x - t * v * column(value_or(p.velocity_scale, 1.0))
    x0 = aim(request, mask_after(request, x0), k)
    noise = None if noises.step is None else np.asarray(noises.step(k), np.float64)
    new = integrate(request, x, x0, noise, t, t_next)
    new = correct(p.dcw, new, x - t * v, t)
    return State(new, momentum, kept, before)


def jumps(request: GenerationRequest, rule: Rule) -> bool:
    """Whether its steps are jumps: what guidance they need is built in, one number for all frames."""
    p = request.parameters
    guidance = np.asarray(value_or(p.guidance, 1.0), np.float64)
    if request.guidance_mode not in ("full", "alternate"):
        return False
    usual = {"momentum": rule.guidance.momentum, "rescale": rule.guidance.rescale}
    is_usual = all(np.all(np.asarray(value_or(getattr(p, name), one)) == one) for name, one in usual.items())
    is_one = np.ptp(guidance) == 0 and rule.jumps[0] <= guidance.max() <= rule.jumps[1]
    return bool(np.all(guidance == 1)) or (is_one and is_usual)


def jump(decode: Decode, end: float, guidance: float) -> Decode:
    """Mean velocities of jumps to `end` in place of velocities."""
    return lambda x, t, tokens, context, **frames: decode(x, t, tokens, context, end, guidance, **frames)


def circle(decode: Decode, frames: int, shift: int) -> Decode:
    """The decoder sees a loop turned, between its own end and its own beginning; the velocity is turned back."""

    def turned(x: F64, t: float, tokens: Any, context: Any) -> F64:
        margin = (len(x) - frames) // 2
        loop, known = np.roll(x[:frames], -shift, axis=0), np.roll(context[:frames], -shift, axis=0)
        numbers = np.resize(np.roll(np.arange(frames), -shift), len(x))
        seen = decode(np.resize(loop, x.shape), t, tokens, np.resize(known, context.shape), frames=numbers)
        middle = np.asarray(seen, np.float64)[margin : margin + frames]
        return np.resize(np.roll(middle, shift + margin, axis=0), x.shape)

    return turned


def adams_bashforth(v: F64, h: float, v_before: F64, h_before: float) -> F64:
    """The mean over a step of length h of the line through the two latest velocities: their weights are
    1 + h / (2 h_before) and -h / (2 h_before).
    """
    at_middle = (h_before + h / 2) / h_before
    return (1 - at_middle) * v_before + at_middle * v


def mask_before(request: GenerationRequest, x: F64, noise: NDArray[np.float32] | None, t: float) -> F64:
    """1. Known frames are set, noised to time t."""
    if request.mask is None:
        return x
    m = column(request.mask.mask)
    noise = request.mask.noise if request.mask.noise is not None else noise
    assert noise is not None
    return m * x + (1 - m) * (t * noise + (1 - t) * request.original)


def active(conditions: Sequence[Condition], k: int, request: GenerationRequest) -> list[Condition]:
    """3. The conditions that take part in step k."""
    return [c for c in conditions if c.start <= k / request.steps < c.end] or list(conditions[:1])


def blend(
    conditions: Sequence[Condition],
    decode: Decode,
    x: F64,
    t: float,
    k: int,
    request: GenerationRequest,
    mix: Callable[[F64, F64], F64] | None = None,
) -> F64:
    """3. The active conditions as `mix` blends them, per frame; a single one counts fully, with any weight."""
    used = active(conditions, k, request)
    parts = np.stack([np.asarray(decode(x, t, c.tokens, request.context), np.float64) for c in used])
    if len(used) == 1:
        return np.asarray(parts[0])
    weights = np.stack([np.broadcast_to(column(c.weight), (len(x), 1)) for c in used]).astype(np.float64)
    return (mix or mean)(parts, weights)


def mean(parts: F64, weights: F64) -> F64:
    """Weighted mean of velocities `[K, T, C]`."""
    return np.asarray((weights * parts).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-8))


def level(rule: Rule, x: F64, t: float, parts: F64, weights: F64) -> F64:
    """3. The mean; or, with a power, what has the mean of the signed powers of the parts' x0, each value by itself."""
    if rule.power == 1:
        return mean(parts, weights)
    alone = x - rule.silence - t * parts
    power = min(rule.power, 2) if t < rule.energy_below else rule.power
    total = mean(np.sign(alone) * np.abs(alone) ** power, weights)
    clean = rule.silence + np.sign(total) * np.abs(total) ** (1 / power)
    return np.asarray((x - clean) / t)


def guides(request: GenerationRequest) -> bool:
    """Whether guidance applies."""
    return bool(request.negatives) or request.guidance_mode == "self"


def guide(v: F64, negative: F64, momentum: F64, p: StepParameters, spec: GuidanceSpec = APG) -> tuple[F64, F64]:
    """4. Plain guidance, or APG (Sadat et al., 2024); and rescale. Norms are per channel over time, or of all."""
    g, r = column(value_or(p.guidance, 1.0)), column(value_or(p.rescale, spec.rescale))
    axes = (0,) if spec.norms == "channel" else (0, 1)
    if spec.rule == "plain":
        guided = negative + g * (v - negative)
    else:
        assert spec.momentum is not None
        assert spec.parallel is not None
        momentum = (v - negative) + column(value_or(p.momentum, spec.momentum)) * momentum
        d = momentum * np.minimum(1, (spec.norm_limit or np.inf) / np.maximum(norm(momentum, axes), TINY))
        unit = v / np.maximum(norm(v, axes), TINY)
        along = (d * unit).sum(axis=axes, keepdims=True) * unit
        guided = v + (g - 1) * (d - along + spec.parallel * along)
    sizes = [np.std(u) if spec.norms == "all" else norm(u, axes) for u in (v, guided)]
    return r * guided * sizes[0] / np.maximum(sizes[1], TINY) + (1 - r) * guided, momentum


def mask_after(request: GenerationRequest, x0: F64) -> F64:
    """5. Known frames of x0 are those of the original."""
    if request.mask is None:
        return x0
    m = column(request.mask.mask)
    return m * x0 + (1 - m) * request.original


def aim(request: GenerationRequest, x0: F64, k: int) -> F64:
    """5. x0 moves to the target: by the curve after the gate, or by the strength in the second half."""
    if request.target is None:
        return x0
    last = max(request.steps - 1, 1)
    if request.target.curve is not None:
        gate = request.target.gate
        a = column(request.target.curve) * max(0.0, k / last - gate) / max(1 - gate, 1e-6)
    else:
        a = column(value_or(request.parameters.x0_strength, 0.0)) * (k >= request.steps // 2)
    return (1 - a) * x0 + a * request.target.latents


def integrate(request: GenerationRequest, x: F64, x0: F64, noise: F64 | None, t: float, t_next: float) -> F64:
    """6. From t to t': Euler with optional noise, or SDE."""
    p = request.parameters
    if request.solver == "sde" or (p.sde_curve is not None and request.source is not None):
        c = column(value_or(p.sde_curve, 1.0))
        source = 0.0 if request.source is None else request.source
        assert noise is not None
        return t_next * noise + (1 - t_next) * (c * x0 + (1 - c) * source)
    new = (t_next / t) * x + (1 - t_next / t) * x0
    if p.ode_noise is not None:
        assert noise is not None
        new = new + noise * column(p.ode_noise) * t_next
    return new


def correct(dcw: Dcw | None, x: F64, y: F64, t: float) -> F64:
    """7. Wavelet-domain correction of the new x towards or away from y = x_before - t v."""
    if dcw is None:
        return x
    if dcw.mode == "pix":
        return x + column(dcw.low) * (x - y)
    odd = len(x) % 2
    pad = ((0, odd), (0, 0))
    x_low, x_high = haar(np.pad(x, pad))
    y_low, y_high = haar(np.pad(y, pad))
    if dcw.mode in ("low", "double"):
        x_low = x_low + t * resample(dcw.low, len(x_low)) * (x_low - y_low)
    if dcw.mode in ("high", "double"):
        x_high = x_high + (1 - t) * resample(dcw.high, len(x_high)) * (x_high - y_high)
    return unhaar(x_low, x_high)[: len(x)]


def haar(x: F64) -> tuple[F64, F64]:
    """One level of the Haar transform over time: low and high band `[T/2, C]`."""
    return (x[0::2] + x[1::2]) / np.sqrt(2), (x[0::2] - x[1::2]) / np.sqrt(2)


def unhaar(low: F64, high: F64) -> F64:
    """The inverse of `haar`."""
    x = np.empty((2 * len(low), low.shape[1]))
    x[0::2], x[1::2] = (low + high) / np.sqrt(2), (low - high) / np.sqrt(2)
    return x


def resample(curve: Any, length: int) -> F64:
    """A scalar or `[T]` as a column `[length, 1]`, linear with half-pixel centres, ends held."""
    values = np.atleast_1d(np.asarray(curve, np.float64))
    centres = (np.arange(length) + 0.5) * len(values) / length - 0.5
    return np.interp(centres, np.arange(len(values)), values)[:, None]


def norm(v: F64, axes: tuple[int, ...]) -> F64:
    """Norm over time, `[1, C]`, or over time and channels, `[1, 1]`."""
    return np.sqrt((v * v).sum(axis=axes, keepdims=True))


def value_or(value: Any, neutral: float) -> Any:
    """`value`, or `neutral` where it is None."""
    return neutral if value is None else value


def column(value: Any) -> F64:
    """A scalar and `[T, C]` are unchanged, `[T]` becomes `[T, 1]`."""
    array = np.asarray(value, np.float64)
    return array[:, None] if array.ndim == 1 else array
