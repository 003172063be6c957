"""The encoder's filters: a sine gives 1 on its semitone, bands hold their energy."""

import numpy as np
import pytest

from configs.demo.recipe.codec.features import (
    BAND_EDGES_HZ,
    BLOCK_SAMPLES,
    DECIMATION,
    KERNEL_PITCHES,
    NUM_BANDS,
    NUM_FEATURES,
    band_sums,
    block_transform,
    decimator,
    feature_octaves,
    kernel_frequencies_hz,
    kernel_positions,
    kernel_windows,
)
from configs.demo.recipe.latents import SAMPLE_RATE_HZ


@pytest.mark.parametrize("index", [0, 24, 60, len(KERNEL_PITCHES) - 1])
def test_a_sine_gives_one_on_its_semitone(index: int) -> None:
    seconds, frequencies_hz = kernel_positions(), kernel_frequencies_hz()
    sine = np.cos(2 * np.pi * frequencies_hz[index] * seconds + 0.7)
    kernels = kernel_windows() * np.exp(-2j * np.pi * frequencies_hz[:, None] * seconds)
    magnitudes = np.abs(kernels @ sine)
    assert magnitudes[index] == pytest.approx(1.0, rel=0.02)
    assert magnitudes.argmax() == index
    assert magnitudes[np.abs(np.arange(len(magnitudes)) - index) > 6].max() < 0.03


def test_the_decimator_keeps_the_kernels_and_stops_aliases() -> None:
    gain = np.abs(np.fft.rfft(decimator(), SAMPLE_RATE_HZ))  # one bin per Hz
    assert gain[50] == pytest.approx(1.0, rel=0.01)
    assert gain[int(kernel_frequencies_hz()[-1])] > 0.9
    assert gain[SAMPLE_RATE_HZ // DECIMATION - int(kernel_frequencies_hz()[-1]) :].max() < 0.01


def test_bands_hold_the_energy_of_their_sines() -> None:
    samples = np.arange(BLOCK_SAMPLES) / SAMPLE_RATE_HZ
    centres = np.sqrt(np.array(BAND_EDGES_HZ[1:]) * np.array(BAND_EDGES_HZ[:-1]))
    for band in range(2, NUM_BANDS):
        spectrum = np.sin(2 * np.pi * centres[band] * samples) @ block_transform()
        energies = spectrum**2 @ band_sums()
        assert energies.argmax() == band
        assert energies[band] > 0.9 * energies.sum()


def test_octaves_are_those_of_the_features() -> None:
    octaves = feature_octaves()
    assert len(octaves) == NUM_FEATURES
    assert octaves[12] - octaves[0] == pytest.approx(1.0)
