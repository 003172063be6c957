"""Drums and the noise of attacks: bands, decays, rooms."""

import numpy as np
import pytest

from configs.demo.recipe.codec.percussion import (
    DRUM_FRAMES,
    KITS,
    STRIKE_FRAMES,
    band_noise,
    drum_hits,
    strikes,
    take_shares,
)
from configs.demo.recipe.instruments import INSTRUMENTS
from configs.demo.recipe.latents import HOP_SAMPLES, SAMPLE_RATE_HZ, FloatArray


def share_above(sound: FloatArray, frequency_hz: float) -> float:
    power = np.abs(np.fft.rfft(sound.mean(axis=0))) ** 2
    return float(power[np.fft.rfftfreq(sound.shape[1], 1 / SAMPLE_RATE_HZ) > frequency_hz].sum() / power.sum())


def test_hits_start_and_end_in_silence() -> None:
    hits = drum_hits()
    assert hits.shape == (2, len(INSTRUMENTS["drums"]), 3, 2, DRUM_FRAMES * HOP_SAMPLES)
    assert np.abs(hits[..., 0]).max() < 1e-3
    assert np.abs(hits[..., -1]).max() < 1e-6
    peaks = np.abs(hits).max(axis=(3, 4))
    np.testing.assert_allclose(peaks, 2 * [[KITS[name].peaks for name in INSTRUMENTS["drums"]]], rtol=1e-5)


@pytest.mark.parametrize("kit", range(4))
def test_a_kick_is_low_and_a_hat_is_high(kit: int) -> None:
    kick, snare, hat = drum_hits()[0, kit]
    assert share_above(kick, 400.0) < 0.15
    assert share_above(kick, 150.0) > 0.001  # small speakers have something of it
    assert share_above(snare, 1000.0) > 0.3
    assert share_above(hat, 3000.0) > 0.95


def test_hits_ring_in_a_room_wider_than_the_hit() -> None:
    left, right = drum_hits()[0, 0, 1]
    early, late = slice(0, HOP_SAMPLES), slice(3 * HOP_SAMPLES, 7 * HOP_SAMPLES)
    assert np.sqrt(np.mean(left[late] ** 2)) > 1e-4
    assert np.corrcoef(left[late], right[late])[0, 1] < np.corrcoef(left[early], right[early])[0, 1]


def test_kits_differ() -> None:
    hits = drum_hits()[0].reshape(4, -1)
    similarity = np.corrcoef(hits)[~np.eye(4, dtype=bool)]
    assert similarity.max() < 0.9


def test_takes_share_their_tone_and_differ_in_their_noise() -> None:
    first, second = drum_hits()[:, 0, :, 0]
    kick, snare, hat = (np.corrcoef(one, other)[0, 1] for one, other in zip(first, second, strict=True))
    assert kick > 0.9
    assert abs(hat) < snare < 0.9
    np.testing.assert_allclose(take_shares().sum(axis=1), 1.0, rtol=1e-6)


@pytest.mark.parametrize("layer", ["bass", "pad", "arp", "melody"])
def test_strikes_are_short_and_softer_than_notes(layer: str) -> None:
    sounds = strikes(layer)
    assert sounds.shape == (len(INSTRUMENTS[layer]), 2, STRIKE_FRAMES * HOP_SAMPLES)
    assert np.abs(sounds).max() < 0.1
    assert np.abs(sounds[..., -1]).max() < 1e-6


def test_noise_has_its_band() -> None:
    noise = band_noise(np.random.default_rng(0), 48_000, 1000.0, 2000.0)
    spectrum = np.abs(np.fft.rfft(noise[0])) ** 2
    assert spectrum[800:2600].sum() > 0.98 * spectrum.sum()
    assert np.abs(noise).max() == pytest.approx(1.0)
