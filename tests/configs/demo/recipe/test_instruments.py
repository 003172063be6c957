"""Layers and instruments: every channel has one owner, every instrument its own place."""

import itertools

import numpy as np
import pytest

from configs.demo.recipe.instruments import (
    INSTRUMENTS,
    LAYERS,
    REGISTERS,
    TIMBRE_CHANNELS,
    channels_of,
    keys_of,
    pitch_channels,
    program_of,
    timbre_levels,
)
from configs.demo.recipe.latents import CHANNELS, FIRST_PITCH, NUM_PITCHES


def test_every_channel_belongs_to_one_layer() -> None:
    channels = [channel for layer in LAYERS for channel in channels_of(layer)]
    assert sorted(channels) == list(range(CHANNELS))


def test_registers_follow_each_other() -> None:
    pitches = [p + FIRST_PITCH for layer in REGISTERS for p in pitch_channels(layer)]
    assert sorted(pitches) == list(range(FIRST_PITCH, FIRST_PITCH + NUM_PITCHES))
    assert [pitch_channels(layer)[0] + FIRST_PITCH for layer in REGISTERS] == [low for low, _ in REGISTERS.values()]


@pytest.mark.parametrize("layer", LAYERS)
def test_instruments_lie_apart(layer: str) -> None:
    places = [timbre_levels(layer, name) for name in INSTRUMENTS[layer]]
    assert all(len(place) == len(TIMBRE_CHANNELS[layer]) for place in places)
    assert all(np.linalg.norm(np.subtract(a, b)) > 0.24 for a, b in itertools.combinations(places, 2))
    assert min(min(place) for place in places) >= 0.25


def test_an_unknown_instrument_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        timbre_levels("pad", "kazoo")


def test_every_instrument_has_a_program_and_every_channel_a_key() -> None:
    assert [key for layer in ("bass", "pad", "arp", "melody") for key in keys_of(layer)] == list(range(36, 88))
    assert len(keys_of("drums")) == len(pitch_channels("drums"))
    programs = {(layer, name): program_of(layer, name) for layer in LAYERS for name in INSTRUMENTS[layer]}
    assert programs["pad", "synth"] != programs["arp", "synth"] == programs["melody", "synth"]
    assert all(0 <= program <= 127 for program in programs.values())
