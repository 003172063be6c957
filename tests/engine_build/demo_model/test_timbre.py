"""The instruments: tuning, stereo, drum sounds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from engine_build.demo_model.latents import FIRST_PITCH, HOP_SAMPLES, NUM_PITCHES
from engine_build.demo_model.timbre import (
    DRUM_FRAMES,
    NOISE_FRAMES,
    VOICES,
    all_partials,
    band_noise,
    drum_hits,
    drum_noise,
    partial_magnitudes,
    pitch_frequency_hz,
    voice_registers,
)


@pytest.mark.parametrize("pitch", [36, 57, 69, 95])
def test_pitches_are_in_equal_temperament(pitch: int) -> None:
    assert pitch_frequency_hz(pitch - FIRST_PITCH) == pytest.approx(440.0 * 2 ** ((pitch - 69) / 12), abs=1e-3)


def test_partials_are_harmonics_of_their_pitch() -> None:
    partials = all_partials()
    assert set(partials.pitch_index) == set(range(NUM_PITCHES))
    assert (partials.gain >= 0).all()
    for index in (0, 20, 59):
        frequencies = np.array([frequency for frequency, _ in partial_magnitudes(index)])
        harmonics = frequencies / pitch_frequency_hz(index)
        np.testing.assert_allclose(harmonics, np.round(harmonics), atol=1e-6)


def test_every_pitch_belongs_to_one_voice() -> None:
    assert VOICES[0].low == FIRST_PITCH
    for voice, following in pairwise(VOICES):
        assert following.low == voice.high + 1
    assert voice_registers().tolist() == sorted(voice_registers())
    assert len(voice_registers()) == NUM_PITCHES


def test_drum_hits_start_and_end_in_silence() -> None:
    hits = drum_hits()
    assert hits.shape == (3, 2, DRUM_FRAMES * HOP_SAMPLES)
    assert np.abs(hits[:, :, 0]).max() < 1e-6
    assert np.abs(hits[:, :, -1]).max() < 1e-3
    assert (np.abs(hits).max(axis=(1, 2)) > 0.1).all()


def test_noise_has_its_band_only() -> None:
    noise = band_noise(np.random.default_rng(0), 48_000, 1000.0, 2000.0)
    spectrum = np.abs(np.fft.rfft(noise[0]))
    assert spectrum[1500] > 0
    assert max(spectrum[:1000].max(), spectrum[2000:].max()) < 1e-6 * spectrum.max()
    assert drum_noise().shape == (2, 2, NOISE_FRAMES * HOP_SAMPLES)
