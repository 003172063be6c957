"""The analysis filters of the codec's encoder: a kernel per pitch, a matched filter of the kick, band passes."""

from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from engine_build.demo_model.latents import HOP_SAMPLES, NUM_PITCHES, SAMPLE_RATE_HZ
from engine_build.demo_model.timbre import drum_hits, partial_magnitudes, pitch_frequency_hz

Float64Array = npt.NDArray[np.float64]

KERNEL_FRAMES: Final = 5
BAND_TAPS: Final = 127

_WINDOW_SECONDS_TIMES_HZ: Final = 50.0
_KICK_KERNEL_FRAMES: Final = 2
_KICK_AGES: Final = (0, -2, -1, 1, 2, 3)


def kernel_frequencies_hz() -> Float64Array:
    """Centre frequencies of the pitches' analysis kernels, `[60]`."""
    return np.array([pitch_frequency_hz(index) for index in range(NUM_PITCHES)])


def kernel_window_samples() -> Float64Array:
    """Length of each pitch kernel's Hann window, `[60]`: constant Q between 2 and `KERNEL_FRAMES` frames."""
    lengths = _WINDOW_SECONDS_TIMES_HZ / kernel_frequencies_hz() * SAMPLE_RATE_HZ
    return np.clip(lengths, 2.0 * HOP_SAMPLES, KERNEL_FRAMES * HOP_SAMPLES)


def kernel_response(frequency_hz: float) -> Float64Array:
    """Magnitudes `[61]` of the pitches' kernels and the kick's for a sine of amplitude 1."""
    lengths = kernel_window_samples() / SAMPLE_RATE_HZ
    cycles = (frequency_hz - kernel_frequencies_hz()) * lengths
    with np.errstate(divide="ignore", invalid="ignore"):
        hann = np.sinc(cycles) / (1.0 - cycles**2)
    pitches = np.where(np.isclose(np.abs(cycles), 1.0), 0.5, np.abs(hann))
    sine = np.exp(2j * np.pi * frequency_hz / SAMPLE_RATE_HZ * np.arange(KERNEL_FRAMES * HOP_SAMPLES))
    return np.append(pitches, abs(kick_kernel() @ sine) / 2.0)


@cache
def kick_kernel() -> npt.NDArray[np.complex128]:
    """The matched filter of a kick, complex `[5 * hop]`, from the middle frame on; a hit at level 1 gives 1."""
    length = _KICK_KERNEL_FRAMES * HOP_SAMPLES
    hit = drum_hits()[0].mean(axis=0)[:length] * (0.5 + 0.5 * np.cos(np.pi * np.arange(length) / length))
    spectrum = np.fft.fft(hit, 4 * length)
    spectrum[2 * length :] = 0.0
    analytic = 2.0 * np.fft.ifft(spectrum)[:length]
    kernel = np.zeros(KERNEL_FRAMES * HOP_SAMPLES, complex)
    start = (KERNEL_FRAMES // 2) * HOP_SAMPLES
    kernel[start : start + length] = np.conj(analytic)
    reference = kernel[start : start + length] @ drum_hits()[0].mean(axis=0)[:length]
    return np.asarray(kernel / abs(reference))


def source_responses() -> Float64Array:
    """Magnitudes `[60 + 6, 61]` of every source at level 1: the pitches, then a kick at each age of _KICK_AGES."""
    rows = []
    for index in range(NUM_PITCHES):
        power = [(gain * kernel_response(frequency)) ** 2 for frequency, gain in partial_magnitudes(index)]
        rows.append(np.sqrt(np.sum(power, axis=0)))
    return np.stack([*rows, *(_kick_response(age) for age in _KICK_AGES)])


def _kick_response(age: int) -> Float64Array:
    """Magnitudes `[61]` that a kick hit at level 1 gives `age` frames after the frame of the hit."""
    middle = KERNEL_FRAMES // 2
    signal = np.zeros(3 * KERNEL_FRAMES * HOP_SAMPLES)
    hit = drum_hits()[0].mean(axis=0)
    start = (KERNEL_FRAMES + middle - age) * HOP_SAMPLES
    signal[start : start + len(hit)] = hit
    window = signal[KERNEL_FRAMES * HOP_SAMPLES : 2 * KERNEL_FRAMES * HOP_SAMPLES]
    return np.asarray(np.append(np.abs(pitch_kernels() @ window), abs(kick_kernel() @ window)))


def pitch_kernels() -> npt.NDArray[np.complex128]:
    """Windowed complex kernels `[60, 5 * hop]`, which the graph computes from constants."""
    samples = kernel_positions()
    lengths = kernel_window_samples()[:, None]
    hann = np.where(
        np.abs(samples / lengths) <= 0.5, 2.0 / lengths * (1.0 + np.cos(2 * np.pi * samples / lengths)), 0.0
    )
    return np.asarray(hann * np.exp(-2j * np.pi * samples * kernel_frequencies_hz()[:, None] / SAMPLE_RATE_HZ))


def kernel_positions() -> Float64Array:
    """Sample positions `[5 * hop]` relative to a kernel's centre."""
    num_samples = KERNEL_FRAMES * HOP_SAMPLES
    return np.asarray(np.arange(num_samples) - (num_samples - 1) / 2, np.float64)


def band_filter(low_hz: float, high_hz: float) -> Float64Array:
    """A linear-phase band pass of `BAND_TAPS` taps (windowed sinc)."""
    offsets = np.arange(BAND_TAPS) - (BAND_TAPS - 1) / 2
    high, low = (2 * edge / SAMPLE_RATE_HZ for edge in (high_hz, low_hz))
    taps = high * np.sinc(high * offsets) - low * np.sinc(low * offsets)
    return np.asarray(taps * np.blackman(BAND_TAPS))


def band_references(filters: Float64Array) -> Float64Array:
    """Root mean square `[2]` of a snare and a hat hit at level 1, each through its filter of `[2, taps]`."""
    hits = drum_hits().mean(axis=1)[1:, :HOP_SAMPLES]
    pairs = zip(hits, filters, strict=True)
    return np.array([np.sqrt(np.mean(np.convolve(hit, taps, "same") ** 2)) for hit, taps in pairs])
