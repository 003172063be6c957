"""Finishing of decoded audio: loudness, level, true-peak limit and fades, as one gain that depends on position alone.

The gain has a value at every boundary between blocks of about 1 ms, and is linear between them. The limit needs the
audio up to REACH_BLOCKS away, which a window's margins hold, and no state: windows of any length, decoded in any order,
give the same samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Pcm

BLOCK_STEP_S = 0.1
STEPS_PER_BLOCK = 4
# LUFS of a mean square of 1 after weighting; blocks below the absolute gate, or this far below the mean, do not count.
OFFSET_LUFS, ABSOLUTE_GATE_LUFS, RELATIVE_GATE_LU = -0.691, -70.0, 10.0

Energies = NDArray[np.float64]


def block_energies(pcm: Pcm, sample_rate_hz: int) -> Energies:
    """The K-weighted energy of blocks of 400 ms, one each 100 ms, of `[N, channels]`; of a shorter N, of one block.

    All channels count alike. The weighting is applied to the spectrum of each 100 ms.
    """
    step = round(BLOCK_STEP_S * sample_rate_hz)
    num_steps = len(pcm) // step
    if num_steps == 0:
        return np.empty(0)
    spectrum = np.fft.rfft(pcm[: num_steps * step].reshape(num_steps, step, -1), axis=1)
    parts = spectrum.view(spectrum.real.dtype).reshape(num_steps, -1)
    energies = np.square(parts, dtype=np.float64) @ np.repeat(_weights(step, sample_rate_hz), 2 * pcm.shape[1])
    size = min(STEPS_PER_BLOCK, num_steps)
    blocks: Energies = np.convolve(energies, np.full(size, 1 / size), "valid")
    return blocks


def loudness_lufs(energies: Energies) -> float | None:
    """The integrated loudness of blocks; None where all are below the absolute gate, as in silence."""
    loud = energies[energies > _energy(ABSOLUTE_GATE_LUFS)]
    if not len(loud):
        return None
    gated = loud[loud > loud.mean() * 10 ** (-RELATIVE_GATE_LU / 10)]
    return float(OFFSET_LUFS + 10 * np.log10(gated.mean()))


def _energy(lufs: float) -> float:
    return float(10 ** ((lufs - OFFSET_LUFS) / 10))


@cache
def _weights(size: int, sample_rate_hz: int) -> NDArray[np.float64]:
    """`[size // 2 + 1]`: what each bin of a real FFT of `size` samples adds to the mean square (BS.1770-4, annex 1).

    The standard's two filters, a high shelf and a high-pass, are given for 48 kHz; their analogue prototypes give those
    of other rates (De Man, "Evaluation of implementations of the EBU R128 loudness measurement", AES 145, 2018).
    """
    power = np.ones(size // 2 + 1)
    for frequency_hz, quality, gains in (
        (1681.974450955533, 0.7071752369554196, (1.0, 1.258720930232562, 1.584864701130855)),
        (38.13547087602444, 0.5003270373238773, (0.0, 0.0, 1.004994996665527)),
    ):
        low, band, high = gains
        k = np.tan(np.pi * frequency_hz / sample_rate_hz)
        # s of the bilinear transform, relative to the filter's frequency.
        s = 1j * np.tan(np.pi * np.arange(size // 2 + 1) / size) / k
        power *= np.abs((high * s**2 + band / quality * s + low) / (s**2 + s / quality + 1)) ** 2
    power[1 : (size + 1) // 2] *= 2
    return power / size**2


TARGET_LUFS = -16.0
MAX_GAIN_DB = 12.0
# How long the level takes to change after a new measurement.
RAMP_S = 3.0
# How long it takes from one span to the next, and how many measured blocks say all of a span.
STEP_S, SURE_BLOCKS = 0.06, 9
FADE_IN_S, FADE_OUT_S = 0.005, 0.03
# Finished audio stays below -1 dBTP; the rest is what interpolation by 4 may miss (BS.1770-4, annex 2).
CEILING = 10 ** (-1.6 / 20)
# Live audio, whose neighbours are not known yet, is limited sample by sample from here on.
KNEE = 0.7
BLOCK_S = 0.001
# The gain is held this many blocks on both sides of a peak, and smoothed over as many.
HOLD_BLOCKS = 10
REACH_BLOCKS = 2 * HOLD_BLOCKS + 1
# Blocks that are looked at together, before those of a loud span are.
SPAN_BLOCKS = 8
_hann = np.hanning(REACH_BLOCKS + 2)[1:-1]
SMOOTHING = _hann / _hann.sum()
# The three values between two samples, from TAPS samples on both sides: a windowed sinc (BS.1770-4, annex 2).
TAPS = 8
_distances = np.arange(1 - TAPS, TAPS + 1) - np.array([[0.25], [0.5], [0.75]])
INTERPOLATION = (np.sinc(_distances) * np.cos(np.pi / 2 * _distances / (TAPS + 1)) ** 2).astype(np.float32)
# Summation by parts: a value between two samples is at most MAX_LINEAR times the largest sample near it, plus MAX_BEND
# times the largest second difference; 1 % is more than the window's error for a line.
_rest = INTERPOLATION - np.maximum(0, 1 - np.abs(_distances))
MAX_LINEAR, MAX_BEND = 1.01, float(np.abs(_rest.cumsum(axis=1).cumsum(axis=1)).sum(axis=1).max())

Gain = NDArray[np.float64]


class LevelSpan(NamedTuple):
    """Samples from `start` to before `end`; how much louder than all of them together the first and the last are."""

    start: int
    end: int
    first_db: float
    last_db: float


class Finisher:
    """The finishing of one generation of `total_samples`, None without an end. One thread at a time.

    The level is constant up to the second measurement. Without one, as in silence, it stays as it is. fade_out_s: how
    long the end fades; silent_s: what follows the fade. spans: parts, in order and without gaps, that have levels of
    their own; each is measured for itself.
    """

    def __init__(
        self,
        sample_rate_hz: int,
        hop_samples: int,
        total_samples: int | None = None,
        *,
        target_lufs: float = TARGET_LUFS,
        fade_out_s: float = FADE_OUT_S,
        silent_s: float = 0.0,
        spans: Sequence[LevelSpan] = (),
    ) -> None:
        self._rate, self._total_samples, self._target_lufs = sample_rate_hz, total_samples, target_lufs
        self._fade_out_s, self._silent_s = fade_out_s, silent_s
        self._block = block_samples(sample_rate_hz, hop_samples)
        self.span_starts = [span.start for span in spans] or [0]
        self._energies = [np.empty(0) for _ in self.span_starts]
        self._level: list[tuple[float, float]] = [(0, 0.0)]  # position in samples, dB
        self._shape = self._shape_of(spans)

    def measure(self, pieces: Iterable[tuple[int, Pcm]], position: int) -> None:
        """Take more of the generation into account from a sample on: decoded pieces `[n, channels]` of what follows.

        Each piece is given with the number of its first sample, and lies in one span.
        """
        new: dict[int, list[Gain]] = {}
        for start, pcm in pieces:
            place = max(bisect_right(self.span_starts, start) - 1, 0)
            new.setdefault(place, []).append(block_energies(pcm, self._rate))
        for place, energies in sorted(new.items()):
            self._measure_span(place, energies, position)

    def _measure_span(self, place: int, energies: Sequence[Gain], position: int) -> None:
        before = self._energies[place]
        known = self._energies[place] = np.concatenate([before, *energies])
        measured = loudness_lufs(known)
        if measured is None:
            return
        level_db = float(np.clip(self._target_lufs - measured, -MAX_GAIN_DB, MAX_GAIN_DB))
        if not any(len(each) for at, each in enumerate(self._energies) if at != place) and not len(before):
            self._level = [(0, level_db)]
            return
        ramp, start = RAMP_S * self._rate, position
        if not len(before) and place:
            ramp = STEP_S * self._rate
            start = max(position, self.span_starts[place] - round(ramp))
            # What is short says little: the level before counts, too.
            share = min(1.0, len(known) / SURE_BLOCKS)
            level_db = share * level_db + (1.0 - share) * self._level[-1][1]
        now_db = float(np.interp(start, *np.array(self._level).T))
        self._level = [*(point for point in self._level if point[0] < start), (start, now_db), (start + ramp, level_db)]

    def _shape_of(self, spans: Sequence[LevelSpan]) -> NDArray[np.float64]:
        """Positions and levels in dB `[2, n]`, between which the level is linear; in the mean of all it is 0."""
        if not spans:
            return np.zeros((2, 1))
        step = round(STEP_S * self._rate)
        points = [
            point
            for start, end, first_db, last_db in spans
            for point in ((start, first_db), (max(start + 1, end - step), last_db))
        ]
        shape = np.array(points, np.float64).T
        levels_db = np.interp(np.linspace(0, spans[-1].end, 1000), *shape)
        shape[1] -= 10 * np.log10(np.mean(10 ** (levels_db / 10)))
        return shape

    def finish(self, pcm: Pcm, start_sample: int) -> Pcm:
        """Finished `[n, channels]`, the first being number `start_sample`; both are multiples of a block."""
        return self.finish_parts(pcm, start_sample, [pcm])[0]

    def finish_parts(self, pcm: Pcm, start_sample: int, parts: Sequence[Pcm]) -> list[Pcm]:
        """Parts whose sum is `pcm`, with the gain that finishes `pcm`: their sum is its finished audio."""
        positions = start_sample + self._block * np.arange(len(pcm) // self._block + 1)
        gain = 10 ** (self._level_db(positions) / 20) * self._fades(positions)
        gain = limited_gain(pcm, gain, self._block)
        return [multiplied(part, gain, self._block) for part in parts]

    def _level_db(self, positions: NDArray[np.int64]) -> Gain:
        level_db: Gain = np.interp(positions, *np.array(self._level).T) + np.interp(positions, *self._shape)
        return level_db

    def _fades(self, positions: NDArray[np.int64]) -> Gain:
        share = positions / (FADE_IN_S * self._rate)
        if self._total_samples is not None:
            left = self._total_samples - round(self._silent_s * self._rate) - positions
            share = np.minimum(share, left / (self._fade_out_s * self._rate))
        fades: Gain = np.sin(np.pi / 2 * np.clip(share, 0.0, 1.0)) ** 2
        return fades


def block_samples(sample_rate_hz: int, hop_samples: int) -> int:
    """The longest block of at most 1 ms that divides the hop, and is not shorter than what interpolation reads."""
    longest = max(TAPS, round(BLOCK_S * sample_rate_hz))
    return next((size for size in range(longest, TAPS - 1, -1) if hop_samples % size == 0), hop_samples)


def limited_gain(pcm: Pcm, gain: Gain, block: int) -> Gain:
    """A gain `[n / block + 1]` of `[n, channels]`, lowered where a true peak would be above CEILING.

    What lies between the samples is judged where the audio goes on: a start or an end at full level has its fade.
    """
    peaks = _peaks(pcm, np.maximum(gain[:-1], gain[1:]), block)
    return gain * _limit(CEILING / np.maximum(peaks, CEILING)) if peaks.max() > CEILING else gain


def multiplied(pcm: Pcm, gain: Gain, block: int) -> Pcm:
    """`[n, channels]` times a gain `[n / block + 1]` at the boundaries of blocks, linear between them."""
    usual = gain[len(gain) // 2]
    (others,) = np.nonzero((gain[:-1] != usual) | (gain[1:] != usual))
    if usual == 1.0 and not len(others):
        return pcm
    finished = pcm * np.float32(usual)
    if len(others):
        ramp = np.repeat(np.arange(block) / block, pcm.shape[1]).astype(np.float32)
        values = np.diff(gain)[others, None].astype(np.float32) * ramp + gain[others, None].astype(np.float32)
        finished.reshape(len(gain) - 1, -1)[others] = values * pcm.reshape(len(gain) - 1, -1)[others]
    return finished


def soft_limited(pcm: Pcm, gain: float) -> Pcm:
    """`[n, channels]` times `gain`; what is above KNEE bends towards CEILING. Every sample by itself."""
    loud = np.abs(pcm) * np.float32(gain)
    if loud.max(initial=0.0) <= KNEE:
        return pcm if gain == 1.0 else pcm * np.float32(gain)
    room = CEILING - KNEE
    bent = KNEE + room * np.tanh((loud - KNEE) / room)
    return np.copysign(np.where(loud > KNEE, bent, loud), pcm).astype(np.float32)


def _peaks(pcm: Pcm, gain: Gain, block: int) -> Gain:
    """Of every block times its gain: the true peak where that may be above CEILING, 0 elsewhere."""
    starts = np.arange(0, len(gain), SPAN_BLOCKS)
    bends = np.diff(pcm, 2, axis=0)
    largest = MAX_LINEAR * _largest(pcm, starts * block) + MAX_BEND * _largest(bends, starts * block)
    is_loud = np.maximum.reduceat(gain, starts) * largest > CEILING
    blocks = np.flatnonzero(np.repeat(is_loud, SPAN_BLOCKS)[: len(gain)])
    peaks = np.zeros(len(gain))
    if len(blocks):
        peaks[blocks] = _true_peaks(pcm, blocks, block) * gain[blocks]
    return peaks


def _largest(values: Pcm, starts: NDArray[np.int64]) -> NDArray[np.float32]:
    """The largest absolute value of each span, the spans beside it included."""
    flat, first = values.reshape(-1), starts * values.shape[1]
    spans = np.pad(np.maximum(np.maximum.reduceat(flat, first), -np.minimum.reduceat(flat, first)), 1)
    largest: NDArray[np.float32] = np.maximum(spans[1:-1], np.maximum(spans[:-2], spans[2:]))
    return largest


def _true_peaks(pcm: Pcm, blocks: NDArray[np.int64], block: int) -> NDArray[np.float32]:
    """The largest value of each of these blocks and between its samples, up to the first one of the next."""
    numbers = blocks[:, None] * block + np.arange(1 - TAPS, block + TAPS)
    pieces = pcm[np.clip(numbers, 0, len(pcm) - 1)]
    peaks: NDArray[np.float32] = np.abs(pieces[:, TAPS - 1 : TAPS - 1 + block]).max(axis=(1, 2))
    for weights in INTERPOLATION:
        values = sum(weight * pieces[:, tap : tap + block] for tap, weight in enumerate(weights))
        np.maximum(peaks, np.abs(values).max(axis=(1, 2)), out=peaks)
    return peaks


def _limit(needed: Gain) -> Gain:
    """A smooth gain at the boundaries of blocks `[n + 1]`, nowhere above what the blocks beside need `[n]`."""
    padded, size = np.pad(1 - needed, REACH_BLOCKS), len(needed) + REACH_BLOCKS
    held = np.max([padded[shift : shift + size] for shift in range(REACH_BLOCKS + 1)], axis=0)
    smooth: Gain = 1 - np.convolve(held, SMOOTHING, "valid")
    return smooth
