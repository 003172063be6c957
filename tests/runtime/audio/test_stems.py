"""Stems sum to the mix, a silent layer is silent, and limits are those of the mix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from conftest import Built
from helpers.factories import TinySpec

from runtime.audio.stems import MIX, layer_latents, summing
from runtime.config.bundle import load_bundle
from runtime.errors import RequestError
from runtime.pipeline.generation import LongGeneration, generate_audio, generate_latents
from runtime.pipeline.pipeline import open_pipeline
from runtime.requests.options import parse_options

SPEC = TinySpec(stems=True)


def decibels(values: np.ndarray) -> float:
    return 20 * math.log10(float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) + 1e-30)


@pytest.mark.parametrize("level", [0.01, 0.3, 0.7])
def test_layers_of_a_saturated_sum_are_found(level: float) -> None:
    layers = (level * np.random.default_rng(1).standard_normal((3, 5000, 2))).astype(np.float32)
    layers[1, :1000] = 0.0
    mix = np.tanh(layers.sum(axis=0, dtype=np.float64))
    stems = summing(list(np.tanh(layers)), "tanh")
    assert decibels(np.sum(stems, axis=0, dtype=np.float64) - mix) - decibels(mix) < -100
    assert not stems[1][:1000].any()
    assert all(np.isfinite(stem).all() for stem in summing([np.ones((4, 2), np.float32)] * 2, "tanh"))


def test_without_saturation_layers_are_stems() -> None:
    layers = [np.full((3, 2), value, np.float32) for value in (0.25, -0.5)]
    assert [stem.tolist() for stem in summing(layers, "none")] == [layer.tolist() for layer in layers]


def test_a_layer_s_latents_have_the_others_silent(built: Built) -> None:
    bundle = load_bundle(built(stems=True).bundle)
    latents = np.random.default_rng(2).standard_normal((5, SPEC.channels)).astype(np.float32)
    found = layer_latents(bundle, latents)
    assert list(found) == ["bass", "drums"]
    assert np.array_equal(found["bass"][:, [0, 1, 2, 5, 6, 7]], latents[:, [0, 1, 2, 5, 6, 7]])
    assert np.array_equal(found["bass"][:, [3, 4]], bundle.silence(5)[:, [3, 4]])
    assert np.array_equal(found["drums"][:, [3, 4, 6, 7]], latents[:, [3, 4, 6, 7]])


@pytest.mark.parametrize("finish", [True, False])
def test_stems_of_a_generation_sum_to_its_audio(built: Built, finish: bool) -> None:
    with open_pipeline(built(stems=True)) as pipeline:
        pipeline.start()
        options = parse_options({"prompt": "a", "seed": 3, "seconds": 2.5, "finish": finish})
        audio = np.concatenate(list(generate_audio(pipeline, LongGeneration(pipeline, options))))
        generation = LongGeneration(pipeline, options)
        latents = np.concatenate(list(generate_latents(pipeline, generation)))
        chunks = list(generation.stems(latents))
    assert [list(chunk) for chunk in chunks] == [[MIX, "bass", "drums"]] * len(chunks)
    found = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
    mix = found.pop(MIX)
    assert mix.shape == audio.shape == (round(2.5 * SPEC.sample_rate_hz), 2)
    assert np.array_equal(mix, audio)
    assert decibels(np.sum(list(found.values()), axis=0, dtype=np.float64) - mix) - decibels(mix) < -100
    assert min(decibels(stem) for stem in found.values()) > -60


def test_a_model_without_stems_says_so(built: Built) -> None:
    with open_pipeline(built(notes=True)) as pipeline:
        generation = LongGeneration(pipeline, parse_options({"prompt": "a"}))
        with pytest.raises(RequestError, match=r"no \[stems\]"):
            next(generation.stems(np.zeros((4, 8), np.float32)))
