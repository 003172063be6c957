"""Loudness against FFmpeg's ebur128 filter."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.ebur128 import measured

from runtime.audio.finishing import block_energies, loudness_lufs
from runtime.config.codec import Pcm


def tone(frequency_hz: float, rate_hz: int, level: float = 0.1) -> Pcm:
    time_s = np.arange(3 * rate_hz) / rate_hz
    return (level * np.sin(2 * np.pi * frequency_hz * time_s)[:, None] * [1.0, 0.5]).astype(np.float32)


NOISE = np.random.default_rng(0).standard_normal((6 * 48_000, 2)).astype(np.float32)
FIRST_HALF = np.repeat(np.float32([[1.0], [0.0]]), 3 * 48_000, axis=0)
SIGNALS = {
    "noise": 0.1 * NOISE,
    "beats": NOISE * np.exp(-(np.arange(len(NOISE)) % 24_000) / 3000).astype(np.float32)[:, None],
    "a quiet half, which the relative gate leaves out": NOISE * (0.2 * FIRST_HALF + np.float32(0.004)),
    "half silence, which the absolute gate leaves out": 0.1 * NOISE * FIRST_HALF,
}


@pytest.mark.parametrize("name", SIGNALS)
def test_the_integrated_loudness_is_that_of_ebur128(name: str) -> None:
    pcm = SIGNALS[name]
    found = loudness_lufs(block_energies(pcm, 48_000))
    assert found == pytest.approx(measured(pcm, 48_000).integrated_lufs, abs=0.1)


@pytest.mark.parametrize("frequency_hz", [40, 100, 1000, 1700, 5000, 15_000])
def test_the_weighting_is_that_of_ebur128_at_every_frequency(frequency_hz: float) -> None:
    pcm = tone(frequency_hz, 48_000)
    found = loudness_lufs(block_energies(pcm, 48_000))
    assert found == pytest.approx(measured(pcm, 48_000).integrated_lufs, abs=0.05)


@pytest.mark.parametrize("rate_hz", [32_000, 44_100, 96_000])
def test_the_weighting_does_not_depend_on_the_rate(rate_hz: int) -> None:
    for frequency_hz in (50, 440, 1000):
        expected = loudness_lufs(block_energies(tone(frequency_hz, 48_000), 48_000))
        assert loudness_lufs(block_energies(tone(frequency_hz, rate_hz), rate_hz)) == pytest.approx(expected, abs=0.05)


def test_a_full_scale_tone_of_997_hz_in_one_channel_has_minus_3_lufs() -> None:
    """BS.1770-4: the scale is calibrated so."""
    pcm = tone(997, 48_000, 1.0) * np.float32([1.0, 0.0])
    assert loudness_lufs(block_energies(pcm, 48_000)) == pytest.approx(-3.01, abs=0.02)


def test_silence_has_no_loudness() -> None:
    assert loudness_lufs(block_energies(np.zeros((48_000, 2), np.float32), 48_000)) is None
    assert loudness_lufs(block_energies(np.zeros((4000, 2), np.float32), 48_000)) is None


def test_less_than_a_block_is_measured_from_100_ms_on() -> None:
    pcm = tone(1000, 48_000)
    whole = loudness_lufs(block_energies(pcm, 48_000))
    assert loudness_lufs(block_energies(pcm[:4800], 48_000)) == pytest.approx(whole, abs=0.1)
