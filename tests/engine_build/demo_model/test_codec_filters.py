"""The analysis filters: unit response to their own source, little to others."""

import numpy as np
import pytest

from engine_build.demo_model.codec_filters import (
    BAND_TAPS,
    KERNEL_FRAMES,
    band_filter,
    kernel_frequencies_hz,
    kernel_positions,
    kernel_response,
    kick_kernel,
    pitch_kernels,
    source_responses,
)
from engine_build.demo_model.latents import HOP_SAMPLES, NUM_PITCHES, SAMPLE_RATE_HZ
from engine_build.demo_model.timbre import drum_hits


@pytest.mark.parametrize("index", [0, 30, 59])
def test_a_pitch_kernel_gives_one_for_its_own_sine(index: int) -> None:
    frequency_hz = kernel_frequencies_hz()[index]
    sine = np.cos(2 * np.pi * frequency_hz / SAMPLE_RATE_HZ * kernel_positions())
    magnitudes = np.abs(pitch_kernels() @ sine)
    assert magnitudes[index] == pytest.approx(1.0, rel=0.02)
    assert magnitudes.argmax() == index
    np.testing.assert_allclose(magnitudes, kernel_response(frequency_hz)[:NUM_PITCHES], atol=0.02)


def test_the_kick_kernel_gives_one_for_a_kick() -> None:
    signal = np.zeros(KERNEL_FRAMES * HOP_SAMPLES)
    start = (KERNEL_FRAMES // 2) * HOP_SAMPLES
    kick = drum_hits()[0].mean(axis=0)[: len(signal) - start]
    signal[start : start + len(kick)] = kick
    assert abs(kick_kernel() @ signal) == pytest.approx(1.0, rel=0.02)


def test_every_source_is_seen_most_by_its_own_kernel() -> None:
    responses = source_responses()
    assert responses.shape == (NUM_PITCHES + 6, NUM_PITCHES + 1)
    assert (responses[:NUM_PITCHES, :NUM_PITCHES].argmax(axis=1) == np.arange(NUM_PITCHES)).mean() > 0.9
    assert responses[NUM_PITCHES, NUM_PITCHES] == pytest.approx(1.0, rel=0.02)


def test_a_band_filter_passes_its_band_only() -> None:
    taps = band_filter(6000.0, 8300.0)
    assert len(taps) == BAND_TAPS
    gain = np.abs(np.fft.rfft(taps, SAMPLE_RATE_HZ))  # one bin per Hz
    assert gain[7000] == pytest.approx(1.0, rel=0.01)
    assert max(gain[:4500].max(), gain[10_000:].max()) < 0.01
