"""Schedules of flow time, t_0 > ... > t_K = 0, and counter-based noise: equal (seed, purpose, step), equal noise."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from runtime.requests.request import DENOISE_MIN


def schedule(steps: int, *, shift: float = 1.0, denoise: float = 1.0) -> NDArray[np.float32]:
    """Flow times `[steps + 1]` float32, from t0 down to 0.

    Linear from t0 to 0, t0 = 1 for denoise >= 1, else steps / int(steps / denoise) (the tail of a longer schedule, as
    ComfyUI's BasicScheduler cuts it); then shifted, t <- s t / (1 + (s-1) t) (Esser et al., 2024, eq. 23).
    `denoise` above DENOISE_MIN: below it there is nothing to do and no schedule.
    """
    if denoise <= DENOISE_MIN:
        return np.zeros(1, np.float32)
    start = 1.0 if denoise >= 1.0 else steps / int(steps / denoise)
    times = np.linspace(start, 0.0, steps + 1, dtype=np.float32)
    if shift != 1.0:
        times = shift * times / (1 + (shift - 1) * times)
    return times.astype(np.float32)


def log_snr_schedule(steps: int, start: float, end: float, *, denoise: float = 1.0) -> NDArray[np.float32]:
    """Flow times `[steps + 1]` float32 at equal distances of ln((1 - t) / t), from `start` to `end`.

    sigmoid(u (end - start) - end) for u from 1 to 0, its first value 1 and its last one 0, all of them times `denoise`.
    Every operation rounds as those of torch do, where they are not vectorized: the same numbers bit by bit for fewer
    than 15 steps, else within the two last bits in which torch's own differ from processor to processor.
    """
    index, step = np.arange(steps + 1), np.float64(np.float32(-1.0) / np.float32(steps))
    # From both ends to the middle, products and sums rounded together.
    shares = np.where(index < (steps + 1) // 2, 1.0 + step * index, -step * (steps - index)).astype(np.float32)
    ratios = np.float32(end) - shares * np.float32(end - start)  # [steps + 1]
    times = np.float32(1.0) / (np.float32(1.0) + np.exp(ratios.astype(np.float64)).astype(np.float32))
    times[0], times[-1] = 1.0, 0.0
    return np.asarray(times * np.float32(denoise), np.float32)


def extrapolation(times: NDArray[np.float32]) -> NDArray[np.float32]:
    """How far each step `[K]` of a schedule `[K + 1]` extrapolates its velocity v: to v + c (v - v_prev).

    c = h / (2 h_prev): the two-step Adams-Bashforth method for steps h of unequal length (Hairer, Norsett, Wanner:
    Solving Ordinary Differential Equations I, III.5). The first step has no v_prev: c = 0, which is Euler's method. So
    has the last one, which ends in what its velocity predicts: extrapolated guidance would be heard.
    """
    lengths = np.diff(times.astype(np.float64))  # [K]
    found = np.zeros(len(lengths), np.float32)
    found[1:-1] = lengths[1:-1] / (2 * lengths[:-2])
    return found


def leave_out(
    times: NDArray[np.float32], kept: Sequence[int], *, is_multistep: bool
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of a schedule `[K + 1]` the times of the steps that are kept, and how far each extrapolates its velocity.

    The solver takes all K steps: Euler's, or with is_multistep those of `extrapolation`. The velocity of one that is
    not kept lies on the line through the two latest that are. A kept step and those behind it that are not are then
    one step of velocity v + c (v - v_prev): c is the mean of (t_i - t) / (t - t_prev) over them, by their lengths. The
    first velocity is held.
    """
    grid = times.astype(np.float64)
    factors = [0.0]
    for place in range(1, len(kept)):
        first, end = kept[place], kept[place + 1] if place + 1 < len(kept) else len(grid) - 1
        lengths, begins = np.diff(grid[first : end + 1]), grid[first:end] - grid[first]
        if is_multistep:  # The velocity at the middle of each step, but of the last one, which is Euler's.
            begins = begins + np.where(np.arange(first, end) < len(grid) - 2, lengths / 2, 0.0)
        factors.append(float((lengths * begins).sum() / lengths.sum() / (grid[first] - grid[kept[place - 1]])))
    return tuple(float(times[index]) for index in kept), tuple(factors)


def target_gate(step: int, steps: int, gate: float) -> float:
    """How far a target's curve is on at step k of K: 0 until the gate, then linearly up to 1 at the last step."""
    progress = step / max(steps - 1, 1)
    return max(0.0, progress - gate) / max(1.0 - gate, 1e-6)


class Purpose(IntEnum):
    """What noise is for; each purpose has a stream of its own."""

    START = 0
    MASK = 1
    STEP = 2


def fill_noise(out: NDArray[np.float32], seed: int, purpose: Purpose = Purpose.START, step: int = 0) -> None:
    """Write standard normal noise into `out` `[T, C]` float32, in place.

    Philox 4x64 (Salmon et al., 2011) with key (seed, purpose) and the step in the counter's highest word, so a step's
    noise needs no state from the steps before it. A shorter T is a prefix of a longer one.
    """
    key = np.array([seed, purpose], np.uint64)
    bits = Philox(key=key, counter=np.array([0, 0, 0, step], np.uint64))
    Generator(bits).standard_normal(dtype=np.float32, out=out)


def noise(
    frames: int, channels: int, seed: int, purpose: Purpose = Purpose.START, step: int = 0
) -> NDArray[np.float32]:
    """Standard normal noise `[T, C]` float32; see fill_noise."""
    out = np.empty((frames, channels), np.float32)
    fill_noise(out, seed, purpose, step)
    return out
