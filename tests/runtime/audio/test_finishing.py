"""Finishing of audio, and its loudness."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers.ebur128 import measured
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from runtime.audio.finishing import (
    CEILING,
    INTERPOLATION,
    KNEE,
    REACH_BLOCKS,
    SMOOTHING,
    TAPS,
    Finisher,
    LevelSpan,
    block_energies,
    block_samples,
    limited_gain,
    loudness_lufs,
    multiplied,
    soft_limited,
)
from runtime.config.codec import Pcm

RATE_HZ, HOP, BLOCK = 48_000, 960, 48
CEILING_DBTP = -1.0


def beats(seed: int, seconds: float, level: float) -> Pcm:
    """Noise with decays, at a level of peaks that may be far above full scale."""
    generator = np.random.default_rng(seed)
    samples = round(seconds * RATE_HZ) // HOP * HOP
    decay = np.exp(-(np.arange(samples) % generator.integers(3000, 12_000)) / 1500)[:, None]
    return (level * generator.standard_normal((samples, 2)) * decay).astype(np.float32)


def finished(pcm: Pcm, total_samples: int | None = None) -> Pcm:
    finisher = Finisher(RATE_HZ, HOP, len(pcm) if total_samples is None else total_samples)
    finisher.measure([(0, pcm)], 0)
    return finisher.finish(pcm, 0)


@pytest.mark.parametrize("gain_db", [-11.0, -4.0, 0.0, 11.0])
def test_the_loudness_is_minus_16_lufs(gain_db: float) -> None:
    noise = beats(0, 4.0, 0.2)
    for _ in range(2):
        noise = np.tanh(noise)
    plain = measured(noise, RATE_HZ).integrated_lufs
    pcm = noise * np.float32(10 ** ((-16.0 + gain_db - plain) / 20))
    assert measured(finished(pcm), RATE_HZ).integrated_lufs == pytest.approx(-16.0, abs=1.0)


def test_the_level_changes_by_12_db_at_most_and_silence_stays() -> None:
    quiet = beats(0, 2.0, 1e-3)
    ratio = np.abs(finished(quiet)).max() / np.abs(quiet[480:-1440]).max()
    assert ratio == pytest.approx(10 ** (12 / 20), rel=1e-3)
    assert not finished(np.zeros((RATE_HZ, 2), np.float32)).any()
    hiss = beats(0, 2.0, 1e-5)
    assert np.array_equal(finished(hiss)[480:-1440], hiss[480:-1440])


@given(seed=st.integers(0, 1000), level=st.floats(0.05, 30.0))
@settings(max_examples=8, deadline=None)
def test_no_true_peak_is_above_minus_1_dbtp(seed: int, level: float) -> None:
    assert measured(finished(beats(seed, 1.0, level)), RATE_HZ).true_peak_dbtp <= CEILING_DBTP


def applied(pcm: Pcm, gain: np.ndarray, block: int) -> Pcm:
    return multiplied(pcm, limited_gain(pcm, gain, block), block)


def test_peaks_between_samples_are_found() -> None:
    """A tone of a quarter of the rate whose samples lie 3 dB below its peaks."""
    time = np.arange(RATE_HZ)
    tone = np.sqrt(2) * np.sin(np.pi / 2 * time + np.pi / 4) * np.minimum(1, 4 * np.sin(np.pi * time / RATE_HZ))
    pcm = (0.8 * tone[:, None] * np.ones(2)).astype(np.float32)
    assert np.abs(pcm).max() < 0.81
    limited = applied(pcm, np.ones(len(pcm) // BLOCK + 1), BLOCK)
    assert -1.8 < measured(limited, RATE_HZ).true_peak_dbtp <= CEILING_DBTP


def limited(pcm: Pcm) -> Pcm:
    """applied() of 1 as it is defined: every value between samples, the smallest gain near each boundary, a mean."""
    padded, needed = np.pad(pcm, ((TAPS - 1, TAPS), (0, 0))), np.ones(len(pcm) // BLOCK)
    for weights in ([0.0] * (TAPS - 1) + [1.0] + [0.0] * TAPS, *INTERPOLATION):
        values = [np.convolve(channel, weights[::-1], "valid") for channel in padded.T]
        peaks = np.abs(values).max(axis=0).reshape(len(needed), BLOCK).max(axis=1)
        needed = np.minimum(needed, CEILING / np.maximum(peaks, CEILING))
    around = np.pad(needed, REACH_BLOCKS, constant_values=1.0)
    held = [around[index : index + REACH_BLOCKS + 1].min() for index in range(len(needed) + REACH_BLOCKS)]
    gain = [np.dot(held[index : index + REACH_BLOCKS], SMOOTHING) for index in range(len(needed) + 1)]
    positions = np.arange(len(pcm)) / BLOCK
    return (pcm * np.interp(positions, np.arange(len(gain)), gain)[:, None]).astype(np.float32)


@pytest.mark.parametrize("level", [0.05, 0.2, 0.3, 0.4, 1.0, 6.0])
@pytest.mark.parametrize("cutoff_hz", [400, 6000, 24_000])
def test_the_limited_audio_is_what_the_definition_gives(level: float, cutoff_hz: float) -> None:
    spectrum = np.fft.rfft(beats(1, 0.4, 1.0), axis=0)
    spectrum[np.fft.rfftfreq(19_200, 1 / RATE_HZ) > cutoff_hz] = 0
    filtered = np.fft.irfft(spectrum, axis=0) * np.sin(np.pi * np.arange(19_200) / 19_200)[:, None]
    pcm = (4 * level / np.abs(filtered).max() * filtered).astype(np.float32)
    found = applied(pcm, np.ones(len(pcm) // BLOCK + 1), BLOCK)
    assert np.abs(found - limited(pcm)).max() < 1e-6 * max(1.0, level)


@given(
    seed=st.integers(0, 50),
    level=st.sampled_from([0.1, 1.0, 5.0]),
    frames=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    total=st.sampled_from([None, 30_000, 30_011]),
)
@settings(max_examples=20, deadline=None)
def test_windows_of_any_length_give_the_same_samples(
    seed: int, level: float, frames: list[int], total: int | None
) -> None:
    """With REACH_BLOCKS of audio on both sides."""
    pcm = beats(seed, 1.0, level)
    finisher, margin = Finisher(RATE_HZ, HOP, total), -(-REACH_BLOCKS * BLOCK // HOP)
    finisher.measure([(0, pcm[: len(pcm) // 2])], 0)
    finisher.measure([(10 * HOP, 0.1 * pcm)], 10 * HOP)
    whole = finisher.finish(pcm, 0)
    ends = np.minimum(np.cumsum([*frames, len(pcm)]), len(pcm) // HOP).tolist()
    begin = 0
    for end in ends:
        low, high = max(0, begin - margin), end + margin
        part = finisher.finish(pcm[low * HOP : high * HOP], low * HOP)[(begin - low) * HOP :][: (end - begin) * HOP]
        np.testing.assert_array_equal(part, whole[begin * HOP : end * HOP])
        begin = end


def gain_of(finisher: Finisher, seconds: float) -> NDArray[np.float64]:
    ones = np.full((round(seconds * RATE_HZ) // HOP * HOP, 2), 0.01, np.float32)
    return (finisher.finish(ones, 0)[:, 0] / ones[:, 0]).astype(np.float64)


def test_a_later_measurement_changes_the_level_over_3_s_without_a_step() -> None:
    finisher = Finisher(RATE_HZ, HOP)
    finisher.measure([(0, beats(0, 2.0, 0.05))], 0)
    first = gain_of(finisher, 8.0)
    assert np.ptp(first[480:]) < 1e-6
    finisher.measure([(2 * RATE_HZ, beats(1, 6.0, 0.5))], 2 * RATE_HZ)
    second = gain_of(finisher, 8.0)
    assert np.array_equal(second[: 2 * RATE_HZ], first[: 2 * RATE_HZ])
    assert np.ptp(second[5 * RATE_HZ :]) < 1e-6
    assert second[-1] < 0.7 * first[-1]
    assert np.abs(np.diff(20 * np.log10(second[480:]))).max() * RATE_HZ < 2 * 12 / 3


def test_the_ends_fade_and_the_rest_does_not() -> None:
    gain = gain_of(Finisher(RATE_HZ, HOP, total_samples=RATE_HZ), 1.0)
    assert gain[0] == 0.0
    assert gain[-1] < 1e-3
    assert (gain[round(0.005 * RATE_HZ) : -round(0.031 * RATE_HZ)] == 1.0).all()
    assert np.abs(np.diff(gain)).max() < 0.01
    assert gain_of(Finisher(RATE_HZ, HOP), 1.0)[-1] == 1.0


def test_a_target_other_than_minus_16_lufs() -> None:
    pcm = np.tanh(beats(0, 4.0, 0.2))
    finisher = Finisher(RATE_HZ, HOP, len(pcm), target_lufs=-23.0)
    finisher.measure([(0, pcm)], 0)
    assert measured(finisher.finish(pcm, 0), RATE_HZ).integrated_lufs == pytest.approx(-23.0, abs=0.3)


def test_audio_below_the_ceiling_is_returned_as_it_is() -> None:
    pcm = np.clip(beats(0, 1.0, 0.2), -0.4, 0.4)
    assert applied(pcm, np.ones(len(pcm) // BLOCK + 1), BLOCK) is pcm


@pytest.mark.parametrize(
    ("rate_hz", "hop", "expected"), [(48_000, 1920, 48), (8000, 320, 8), (44_100, 2048, 32), (44_100, 2003, 2003)]
)
def test_blocks_divide_the_hop(rate_hz: int, hop: int, expected: int) -> None:
    assert block_samples(rate_hz, hop) == expected


def test_live_audio_is_limited_sample_by_sample() -> None:
    pcm = np.linspace(-3, 3, 6001, dtype=np.float32).reshape(-1, 1)
    limited = soft_limited(pcm, 1.5)
    quiet = np.abs(pcm * 1.5) <= KNEE
    np.testing.assert_allclose(limited[quiet], 1.5 * pcm[quiet], rtol=1e-6)
    assert np.abs(limited).max() <= CEILING + 1e-6
    assert (np.diff(limited, axis=0) >= 0).all()
    np.testing.assert_array_equal(soft_limited(pcm[2000:4000], 1.5), limited[2000:4000])


def test_parts_get_the_gain_of_their_sum() -> None:
    """Also where the sum is limited, and each part by itself would not be."""
    parts = [beats(seed, 1.0, 0.6) for seed in (1, 2, 3)]
    whole = np.sum(parts, axis=0)
    finisher = Finisher(RATE_HZ, HOP, len(whole))
    finisher.measure([(0, whole)], 0)
    finished_parts = finisher.finish_parts(whole, 0, parts)
    finished_whole = finisher.finish(whole, 0)
    error = np.sum(finished_parts, axis=0, dtype=np.float64) - finished_whole
    assert np.abs(error).max() < 1e-6
    assert np.abs(finished_whole).max() < np.abs(whole).max()


SPANS = (
    LevelSpan(0, 4 * RATE_HZ, -6.0, -6.0),
    LevelSpan(4 * RATE_HZ, 8 * RATE_HZ, -9.0, 0.0),
    LevelSpan(8 * RATE_HZ, 12 * RATE_HZ, 0.0, 0.0),
)


def in_spans(pcm: Pcm, parts: int = 1) -> Pcm:
    """Finished in spans; what is measured comes in so many parts."""
    finisher = Finisher(RATE_HZ, HOP, len(pcm), spans=SPANS)
    size = len(pcm) // parts
    for first in range(0, len(pcm), size):
        ends = sorted({*finisher.span_starts, first, first + size} & set(range(first, first + size + 1)))
        finisher.measure([(begin, pcm[begin:end]) for begin, end in pairwise(ends)], first)
    return finisher.finish(pcm, 0)


@pytest.mark.parametrize("parts", [1, 2])
def test_spans_have_levels_of_their_own_however_loud_they_are(parts: int) -> None:
    pcm = (0.1 * np.random.default_rng(0).standard_normal((12 * RATE_HZ, 2))).astype(np.float32)
    pcm[: 4 * RATE_HZ] *= 2.0
    pcm[8 * RATE_HZ :] *= 0.4
    found = in_spans(pcm, parts)
    levels = [10 * np.log10(np.mean(np.square(found[s * RATE_HZ : (s + 2) * RATE_HZ]))) for s in range(0, 12, 2)]
    assert levels[0] == pytest.approx(levels[1], abs=0.7)
    assert levels[4] - levels[0] == pytest.approx(6.0, abs=0.7)
    assert levels[3] - levels[2] == pytest.approx(4.5, abs=1.0), "it rises by 9 dB in 4 s"
    assert measured(found, RATE_HZ).integrated_lufs == pytest.approx(-16.0, abs=1.2)


def test_the_level_of_a_span_begins_with_it() -> None:
    ones = np.full((12 * RATE_HZ, 2), 0.05, np.float32)
    ones[1::2] *= -1
    gain_db = 20 * np.log10(np.abs(in_spans(ones)[:, 0] / 0.05) + 1e-9)
    assert np.ptp(gain_db[RATE_HZ : round(3.9 * RATE_HZ)]) < 0.1
    assert gain_db[round(8.01 * RATE_HZ)] - gain_db[round(3.9 * RATE_HZ)] == pytest.approx(6.0, abs=0.2)
    assert (np.diff(gain_db[round(4.1 * RATE_HZ) : round(7.9 * RATE_HZ) : 4800]) > 0.0).all()


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


def test_silence_has_no_loudness() -> None:
    assert loudness_lufs(block_energies(np.zeros((48_000, 2), np.float32), 48_000)) is None
    assert loudness_lufs(block_energies(np.zeros((4000, 2), np.float32), 48_000)) is None


def test_less_than_a_block_is_measured_from_100_ms_on() -> None:
    pcm = tone(1000, 48_000)
    whole = loudness_lufs(block_energies(pcm, 48_000))
    assert loudness_lufs(block_energies(pcm[:4800], 48_000)) == pytest.approx(whole, abs=0.1)
