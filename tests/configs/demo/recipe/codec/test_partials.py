"""The partials: tuning, rates, stereo, detuned copies."""

import numpy as np
import pytest

from configs.demo.recipe.codec.partials import (
    ENSEMBLE_FRAMES,
    PHASE_STEPS,
    SOUNDS,
    layer_partials,
    pitch_cycles,
)
from configs.demo.recipe.codec.voices import BAR_RATIOS
from configs.demo.recipe.instruments import INSTRUMENTS, REGISTERS
from configs.demo.recipe.latents import FRAME_RATE_HZ

LAYERS = sorted(SOUNDS)


@pytest.mark.parametrize("pitch", [36, 57, 69, 87])
def test_pitches_are_in_equal_temperament(pitch: int) -> None:
    frequency_hz = pitch_cycles(pitch) * FRAME_RATE_HZ / PHASE_STEPS
    assert frequency_hz == pytest.approx(440.0 * 2 ** ((pitch - 69) / 12), abs=1e-3)


@pytest.mark.parametrize("layer", LAYERS)
def test_partials_are_harmonics_or_modes_of_a_bar(layer: str) -> None:
    partials = layer_partials(layer)
    pitch = np.array([pitch_cycles(REGISTERS[layer][0] + int(index)) for index in partials.pitch_index])
    ratios = partials.cycles / pitch
    harmonic = np.abs(ratios - np.round(ratios)) < 1e-6
    bar = np.abs(ratios[:, None] - BAR_RATIOS).min(axis=1) < 1e-4
    assert (harmonic | bar).all()
    assert bar.any() == ("bells" in INSTRUMENTS[layer])


@pytest.mark.parametrize("layer", LAYERS)
def test_no_partial_reaches_half_its_layers_rate(layer: str) -> None:
    partials, sound = layer_partials(layer), SOUNDS[layer]
    highest_hz = partials.cycles.max() * FRAME_RATE_HZ / PHASE_STEPS
    assert highest_hz < sound.highest_hz < 0.45 * sound.hop_samples * FRAME_RATE_HZ


@pytest.mark.parametrize("layer", LAYERS)
def test_every_instrument_plays_every_pitch(layer: str) -> None:
    partials = layer_partials(layer)
    low, high = REGISTERS[layer]
    for gains in partials.soft + partials.loud:
        power = np.bincount(partials.pitch_index, gains**2)
        assert len(power) == high + 1 - low
        assert (power > 1e-4).all()


def test_detuned_copies_repeat_and_beat_slowly() -> None:
    copies = layer_partials("pad").copies
    assert copies.shape[1] == ENSEMBLE_FRAMES
    steps = np.abs(np.diff(copies, axis=1, append=copies[:, :1]))
    largest = 3 * 0.55 * 2 * np.pi * 4.5 / FRAME_RATE_HZ  # three copies of 0.55 at 4.5 Hz at most
    assert steps.max() < largest
    assert np.abs(np.abs(copies).mean() - 0.55 * np.sqrt(3)) < 0.15


def test_bass_is_in_the_middle_and_pads_are_wide() -> None:
    left, right = layer_partials("bass").direct
    np.testing.assert_array_equal(left, right)
    left, right = layer_partials("pad").direct
    assert np.abs(np.angle(left / right)).max() > 0.3
