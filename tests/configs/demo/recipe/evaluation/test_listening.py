"""librosa's detectors, on signals whose truth is known."""

from collections.abc import Sequence

import numpy as np
import pytest

pytest.importorskip("librosa")

from configs.demo.recipe.evaluation import listening
from configs.demo.recipe.latents import SAMPLE_RATE_HZ, FloatArray

RATE = SAMPLE_RATE_HZ


def stereo(mono: np.ndarray) -> FloatArray:
    return np.repeat(np.asarray(mono, np.float32)[:, None], 2, axis=1)


def tones(pitches: Sequence[float], seconds: float, level: float = 0.1) -> np.ndarray:
    """MIDI pitches together, each with four partials."""
    time_s = np.arange(round(seconds * RATE)) / RATE
    parts = [
        level / n * np.sin(2 * np.pi * n * 440 * 2 ** ((p - 69) / 12) * time_s) for p in pitches for n in range(1, 5)
    ]
    fade = np.minimum(1, np.minimum(time_s, time_s[::-1]) / 0.02)
    return np.sum(parts, axis=0) * fade


def clicks(starts_s: np.ndarray, seconds: float) -> FloatArray:
    audio = np.zeros(round(seconds * RATE))
    burst = 0.5 * np.random.default_rng(0).standard_normal(1200) * np.linspace(1, 0, 1200)
    for start in np.round(starts_s * RATE).astype(int):
        audio[start : start + 1200] += burst[: len(audio) - start]
    return stereo(audio)


def cadences(*chords: Sequence[float]) -> FloatArray:
    return stereo(np.concatenate([tones(chord, 0.8) for chord in chords] * 3))


@pytest.mark.parametrize("bpm", [83.0, 97.0, 151.0])
def test_the_tempo_of_clicks(bpm: float) -> None:
    audio = clicks(np.arange(0, 19, 60 / bpm), 20)
    assert listening.octave_in(listening.tempo_bpm(audio), bpm, bpm) > 0
    assert listening.tempo_bpm(audio, near_bpm=bpm) == pytest.approx(bpm, rel=0.01)
    assert listening.tempo_bpm(audio, near_bpm=1.1 * bpm) != pytest.approx(1.1 * bpm, rel=0.05)


def test_silence_has_no_tempo_and_no_onsets() -> None:
    silence = np.zeros((4 * RATE, 2), np.float32)
    assert listening.tempo_bpm(silence) == 0.0
    assert len(listening.onset_times_s(silence)) == 0


def test_octaves_of_a_tempo_are_named() -> None:
    found = [listening.octave_in(bpm, 85, 105) for bpm in (95, 190, 47, 120, 83)]
    assert found == [1.0, 0.5, 2.0, 0.0, 1.0]


def test_the_tonic_of_a_cadence() -> None:
    d_major = cadences((62, 66, 69), (62, 67, 71), (61, 64, 69), (62, 66, 69))
    b_minor = cadences((62, 66, 71), (64, 67, 71), (61, 66, 70), (62, 66, 71))
    assert listening.key_of(d_major) == (2, "major")
    assert listening.key_of(b_minor) == (11, "minor")


def test_the_profile_is_turned_to_its_tonic() -> None:
    for mode, profile in listening.KEY_PROFILES.items():
        assert [listening.key_of_chroma(np.roll(profile, n)) for n in range(12)] == [(n, mode) for n in range(12)]


def test_drums_and_bass_are_heard_where_they_sound_alone() -> None:
    pad, bass = stereo(tones((60, 64, 67), 5)), stereo(tones((40,), 5, 0.4))
    drums = clicks(np.arange(0, 5, 0.25), 5)
    assert listening.heard_layers(pad) == {"drums": False, "bass": False}
    assert listening.heard_layers(bass) == {"drums": False, "bass": True}
    assert listening.heard_layers(drums) == {"drums": True, "bass": False}
    assert listening.heard_layers(pad + bass + drums) == {"drums": True, "bass": None}


def test_a_gap_is_as_long_as_it_is() -> None:
    audio = stereo(np.concatenate([tones((60,), 2), np.zeros(RATE), tones((60,), 1)]))
    share, longest_s = listening.gaps(audio)
    assert share == pytest.approx(0.25, abs=0.02)
    assert longest_s == pytest.approx(1.0, abs=0.06)
    assert listening.gaps(stereo(tones((60,), 2)))[0] < 0.02
    assert listening.gaps(np.zeros((RATE, 2), np.float32)) == (1.0, pytest.approx(1.0, abs=0.06))


def test_levels_are_those_of_both_channels() -> None:
    audio = np.zeros((RATE, 2), np.float32)
    audio[:, 0] = 0.1
    assert listening.levels_db(audio) == pytest.approx(-23.0, abs=0.1)
    assert listening.levels_db(np.stack([audio[:, 0], -audio[:, 0]], axis=1)) == pytest.approx(-20.0, abs=0.1)


def test_onsets_are_where_clicks_are() -> None:
    starts_s = np.arange(0.5, 9.5, 0.5)
    found = listening.onset_times_s(clicks(starts_s, 10))
    assert listening.match_f1(found, starts_s) > 0.95
    assert listening.match_f1(found, starts_s + 0.2) < 0.1


def test_times_match_one_to_one() -> None:
    assert listening.match_f1([1.0, 2.0], [1.04, 2.0]) == 1.0
    assert listening.match_f1([1.0, 2.0], [1.06, 2.0]) == 0.5
    assert listening.match_f1([1.0, 1.01, 1.02], [1.0]) == 0.5
    assert listening.match_f1([], [1.0]) == 0.0
    assert listening.match_f1([], []) == 1.0


def test_the_distance_of_spectra_is_in_decibels() -> None:
    noise = stereo(0.1 * np.random.default_rng(1).standard_normal(2 * RATE))
    assert listening.mel_distance_db(noise, noise) == 0.0
    assert listening.mel_distance_db(noise, 0.5 * noise) == pytest.approx(6.02, abs=0.1)
    assert listening.mel_distance_db(noise, np.zeros_like(noise)) > 30.0


def test_strength_is_where_something_begins() -> None:
    audio = np.zeros((2 * SAMPLE_RATE_HZ, 2), np.float32)
    noise = 0.5 * np.random.default_rng(0).standard_normal((2400, 2)).astype(np.float32)
    for start_s in (0.5, 1.2):
        audio[round(start_s * SAMPLE_RATE_HZ) :][:2400] = noise
    strength = listening.onset_strength(audio)
    assert len(strength) == pytest.approx(2 * listening.STRENGTH_HZ, abs=2)
    strongest = sorted(np.argsort(strength)[-2:])
    assert strongest == pytest.approx([0.5 * listening.STRENGTH_HZ, 1.2 * listening.STRENGTH_HZ], abs=3)
