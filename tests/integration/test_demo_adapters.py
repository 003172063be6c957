"""The demo's adapters: generations with different ones share ticks, and each has its own instruments."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Built
from helpers.paths import DEMO

from configs.demo.recipe.evaluation.player import Piece, Player
from configs.demo.recipe.instruments import INSTRUMENTS, TIMBRE_CHANNELS, timbre_levels
from configs.demo.recipe.latents import FloatArray, levels_from_latents
from runtime.pipeline.pipeline import open_pipeline

pytestmark = pytest.mark.shipped

PROMPT = "arpeggios and melody in C major at 100 bpm"


def instrument(latents: FloatArray, layer: str) -> str:
    """The instrument that is nearest to the layer's timbre channels."""
    place = np.median(levels_from_latents(latents)[:, TIMBRE_CHANNELS[layer]], axis=0)
    return min(INSTRUMENTS[layer], key=lambda name: float(np.sum((place - timbre_levels(layer, name)) ** 2)))


def test_generations_with_different_adapters_in_the_same_ticks_have_their_instruments(built: Built) -> None:
    styles = {"music-box": "bells", "aggressive": "synth"}
    adapters = [[{"id": style, "strength": 1.0}] for style in styles]
    with open_pipeline(built(DEMO)) as pipeline:
        player = Player(pipeline)
        (alone,) = player.generate([Piece(PROMPT, 5, {})])
        plain, *styled = player.generate([Piece(PROMPT, 5, {"adapters": ids}) for ids in ([], *adapters)])
        (weak,) = player.generate([Piece(PROMPT, 5, {"adapters": [{"id": "music-box", "strength": 0.0}]})])
    np.testing.assert_allclose(plain, alone, atol=1e-4)
    np.testing.assert_allclose(weak, alone, atol=1e-4)
    for latents, wanted in zip(styled, styles.values(), strict=True):
        assert [instrument(latents, layer) for layer in ("arp", "melody")] == [wanted, wanted]
