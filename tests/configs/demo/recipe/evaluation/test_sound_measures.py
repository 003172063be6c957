"""Detectors on audio, on sounds whose truth is known."""

import numpy as np
import numpy.typing as npt
import pytest
from helpers.ebur128 import measured

from configs.demo.recipe.evaluation import sound
from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray


def tone(frequency_hz: float, seconds: float = 1.0, level: float = 0.5, phase: float = 0.0) -> FloatArray:
    time_s = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    wave = level * np.sin(2 * np.pi * frequency_hz * time_s + phase)
    return np.repeat(wave[:, None], 2, axis=1).astype(np.float32)


def bursts(starts_s: npt.NDArray[np.float64], seconds: float = 4.0) -> FloatArray:
    audio = np.zeros((round(seconds * SAMPLE_RATE_HZ), 2), np.float32)
    noise = 0.5 * np.random.default_rng(0).standard_normal((2400, 2)).astype(np.float32)
    for start in np.round(starts_s * SAMPLE_RATE_HZ).astype(int):
        audio[start : start + 2400] = noise[: len(audio) - start]
    return audio


@pytest.mark.parametrize(("frequency_hz", "pitch_class"), [(440.0, 9), (261.63, 0), (207.65, 8), (1318.5, 4)])
def test_chroma_of_a_tone_is_its_pitch_class(frequency_hz: float, pitch_class: int) -> None:
    energy = sound.chroma(tone(frequency_hz))
    assert np.all(energy.argmax(axis=1) == pitch_class)
    assert np.all(energy.max(axis=1) > 0.8 * energy.sum(axis=1))


def test_octaves_are_alike_and_other_pitches_are_not() -> None:
    audio = tone(220.0)
    assert sound.chroma_similarity(audio, audio) == pytest.approx(1.0)
    assert sound.chroma_similarity(audio, tone(880.0)) > 0.99
    assert sound.chroma_similarity(audio, tone(311.1)) < 0.05
    assert sound.chroma_similarity(audio, np.zeros_like(audio)) == 0.0


def test_onsets_at_the_same_times_correlate() -> None:
    audio = bursts(np.arange(0.2, 4.0, 0.5))
    assert sound.onset_correlation(audio, 0.3 * audio) > 0.9
    assert sound.onset_correlation(audio, bursts(np.arange(0.45, 4.0, 0.5))) < 0.1
    assert sound.onset_correlation(audio, np.zeros_like(audio)) == 0.0


def test_the_level_of_a_tone() -> None:
    assert sound.level_db(tone(1000.0, level=1.0)) == pytest.approx(-3.01, abs=0.01)
    assert sound.level_db(np.zeros((10, 2), np.float32)) == sound.QUIET_DB


def test_a_true_peak_lies_between_samples() -> None:
    audio = tone(SAMPLE_RATE_HZ / 4, level=1.0, phase=np.pi / 4)[2400:-2400]
    assert 20 * np.log10(np.abs(audio).max()) == pytest.approx(-3.01, abs=0.01)
    assert sound.true_peak_db(audio * np.hanning(len(audio))[:, None].astype(np.float32)) == pytest.approx(
        0.0, abs=0.05
    )


def test_true_peaks_are_those_of_another_meter() -> None:
    noise = np.random.default_rng(1).standard_normal((SAMPLE_RATE_HZ, 2))
    smooth = np.apply_along_axis(lambda channel: np.convolve(channel, np.hanning(9), "same"), 0, noise)
    audio = (0.1 * smooth * np.hanning(len(smooth))[:, None]).astype(np.float32)
    assert sound.true_peak_db(audio) == pytest.approx(measured(audio, SAMPLE_RATE_HZ).true_peak_dbtp, abs=0.2)


def test_clicks_are_jumps_at_ends_and_joins() -> None:
    audio = tone(200.0, phase=1.0)
    assert sound.num_clicks(audio, []) == 2
    faded = audio.copy()
    ramp = np.sin(np.linspace(0, np.pi / 2, 1440, dtype=np.float32))[:, None] ** 2
    faded[:1440] *= ramp
    faded[-1440:] *= ramp[::-1]
    assert sound.num_clicks(faded, [24_000]) == 0
    faded[24_000:] *= 0.8
    assert sound.num_clicks(faded, [24_000]) == 1
