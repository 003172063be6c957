"""The voices: loudness, brightness, what is known of bars and strings."""

import numpy as np
import pytest

from configs.demo.recipe.codec.voices import BAR_RATIOS, VOICES, amplitudes, voice_of
from configs.demo.recipe.instruments import INSTRUMENTS

HARMONICS = np.arange(1.0, 17.0)


def centroid_hz(instrument: str, level: float, pitch_hz: float = 220.0) -> float:
    frequencies_hz = HARMONICS * pitch_hz
    soft, loud = amplitudes(VOICES[instrument], 1.0, HARMONICS, frequencies_hz)
    power = (soft + level * loud) ** 2
    return float((power * frequencies_hz).sum() / power.sum())


def test_every_instrument_has_a_voice_and_each_voice_an_instrument() -> None:
    pairs = [(layer, name) for layer, names in INSTRUMENTS.items() if layer != "drums" for name in names]
    assert {name for _, name in pairs} == set(VOICES)
    assert all(voice_of(layer, name) for layer, name in pairs)


def test_bars_have_the_modes_of_a_free_bar() -> None:
    # Euler and Bernoulli: cos(x) cosh(x) = 1, frequency as x squared.
    x = np.linspace(4.0, 15.0, 1_100_001)
    values = np.cos(x) - 1.0 / np.cosh(x)
    roots = x[np.flatnonzero(np.diff(np.sign(values)))]
    np.testing.assert_allclose(roots[1:4] ** 2 / roots[0] ** 2, BAR_RATIOS, atol=1e-3)


@pytest.mark.parametrize("instrument", sorted(VOICES))
def test_voices_are_equally_loud(instrument: str) -> None:
    pitch_hz = 440.0
    ratios = np.array([*HARMONICS, *BAR_RATIOS])
    soft, loud = amplitudes(VOICES[instrument], 0.5, ratios, ratios * pitch_hz)
    assert (soft >= 0).all()
    assert (loud >= 0).all()
    amplitude = np.sqrt(np.sum((soft + loud) ** 2))
    assert 0.3 < amplitude < 0.6


@pytest.mark.parametrize("instrument", ["piano", "guitar", "electric bass", "trumpet", "harp"])
def test_soft_notes_are_darker(instrument: str) -> None:
    assert centroid_hz(instrument, 0.2) < 0.97 * centroid_hz(instrument, 1.0)


def test_an_organ_is_as_bright_at_any_level() -> None:
    assert centroid_hz("organ", 0.2) == pytest.approx(centroid_hz("organ", 1.0), rel=0.01)


def test_a_whistle_is_darker_than_a_flute_and_a_flute_than_a_violin() -> None:
    whistle, flute, violin = (centroid_hz(name, 1.0, 880.0) for name in ("whistle", "flute", "violin"))
    assert whistle < flute < violin


def test_a_string_plucked_at_a_fifth_lacks_its_fifth_harmonic() -> None:
    soft, loud = amplitudes(VOICES["guitar"], 1.0, HARMONICS, HARMONICS * 200.0)
    full = soft + loud
    assert full[4] < 0.3 * min(full[3], full[5])
