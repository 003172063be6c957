"""Stems sum to the mix, a silent layer is silent, and limits are those of the mix; tracks are extracted from it."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.factories import TinySpec

from runtime.audio.metadata import GenerationMetadata
from runtime.audio.stems import MIX, layer_latents, summing
from runtime.base.errors import RequestError, TickError
from runtime.config.bundle import load_bundle
from runtime.config.codec import Latents, Pcm
from runtime.music.score import Score
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration, all_latents, generate_audio, generate_latents
from runtime.pipeline.pipeline import open_pipeline
from runtime.pipeline.stem_files import StemFiles, stems_bytes
from runtime.requests.options import parse_options
from runtime.tick.loop.record import TickRecord

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


TRACKS = ("drums", "vocals", "bass")
TRACKED: dict[str, Any] = {"conditions": True, "tracks": TRACKS}


@pytest.mark.parametrize("finish", [True, False])
def test_tracks_are_extractions_with_the_gain_of_the_mix(built: Built, finish: bool) -> None:
    with open_pipeline(built(**TRACKED)) as pipeline:
        assert pipeline.codec is not None
        options = parse_options({"prompt": "a", "seed": 3, "seconds": 2.5, "bpm": 90.0, "steps": 3, "finish": finish})
        generation = LongGeneration(pipeline, options)
        latents = np.concatenate(list(generate_latents(pipeline, generation)))
        chunks = list(generation.stems(latents))
        found = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        assert list(found) == [MIX, *TRACKS]
        assert not generation.has_exact_stems
        raw = {MIX: pipeline.codec.decode(latents)}
        for track in TRACKS:
            asked = {"prompt": "a", "seed": 3, "bpm": 90.0, "steps": 3, "task": "extract", "track": track}
            one = LongGeneration(pipeline, parse_options(asked), GenerationInputs(source=latents))
            raw[track] = pipeline.codec.decode(np.concatenate(list(generate_latents(pipeline, one))))
    length = round(2.5 * SPEC.sample_rate_hz)
    gains = {name: found[name] / raw[name][:length] for name in found}
    heard = np.all([np.abs(raw[name][:length]) > 0.05 for name in raw], axis=0)
    assert heard.mean() > 0.2
    for track in TRACKS:
        np.testing.assert_allclose(gains[track][heard], gains[MIX][heard], rtol=2e-3)
        assert np.abs(raw[track] - raw[MIX]).max() > 0.05
    assert bool(np.ptp(gains[MIX][heard]) > 0.01) == finish


def test_tracks_share_ticks(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are submitted before the first one is waited for; the loop begins with the last one."""
    records: list[TickRecord] = []
    latents = np.random.default_rng(1).standard_normal((50, SPEC.channels)).astype(np.float32)
    with closing(open_pipeline(built(**TRACKED))) as pipeline:
        pipeline.loop.observers.append(records.append)
        late = threading.Timer(20.0, pipeline.start)  # Where one is waited for before.
        late.start()
        submit, submitted = pipeline.loop.submit, list[str]()

        def counted(*arguments: Any, **options: Any) -> str:
            submitted.append(submit(*arguments, **options))
            if len(submitted) == len(TRACKS):
                late.cancel()
                pipeline.start()
            return submitted[-1]

        monkeypatch.setattr(pipeline.loop, "submit", counted)
        generation = LongGeneration(pipeline, parse_options({"prompt": "a", "seconds": 2.0, "seed": 1}))
        together = all_latents(pipeline, generation.extractions(latents))
    assert {name: len(made) for name, made in together.items()} == dict.fromkeys(TRACKS, len(latents))
    assert len(submitted) == 2 * len(TRACKS)
    assert records[0].slots == len(TRACKS)


def test_the_extractions_of_a_loop_that_ends_end(built: Built) -> None:
    with open_pipeline(built(**TRACKED)) as pipeline:
        generation = LongGeneration(pipeline, parse_options({"prompt": "a", "seconds": 1.0}))
        extractions = generation.extractions(np.zeros((25, SPEC.channels), np.float32))
    with pytest.raises(TickError):
        all_latents(pipeline, extractions)


def test_what_could_be_extracted_has_to_be_named(built: Built) -> None:
    with open_pipeline(built(conditions=True)) as pipeline:
        generation = LongGeneration(pipeline, parse_options({"prompt": "a"}))
        with pytest.raises(RequestError, match=r"no \[stems\].*\n.*name the tracks that it can extract"):
            generation.check_stems()


@dataclass
class Stems:
    """Two layers, of which one has a peak."""

    peak: float
    sample_rate_hz: int = 8000
    total_samples: int = 200
    num_stems: int = 3
    has_notes: bool = True
    has_exact_stems: bool = True
    is_estimated: bool = False

    def metadata(self) -> GenerationMetadata:
        return GenerationMetadata(model="a", model_version="1", options={"seed": 1})

    def score(self, latents: Latents) -> Score:
        return Score((), 0.025, 0.04)

    def stems(self, latents: Latents, tracks: Mapping[str, Latents] | None = None) -> Iterator[dict[str, Pcm]]:
        bass, drums = np.full((100, 1), -0.3, np.float32), np.full((100, 1), 0.5, np.float32)
        yield {"mix": bass + drums, "bass": bass, "drums": drums}
        drums[7] = self.peak
        yield {"mix": bass + drums, "bass": bass, "drums": drums}


@pytest.mark.parametrize(("peak", "is_exact"), [(0.9, True), (-0.7, True), (1.2, False), (-1.2, False)])
def test_what_is_clipped_is_not_exact(peak: float, is_exact: bool) -> None:
    files = StemFiles(Stems(peak), np.zeros((1, 1), np.float32), "wav").finish()
    assert list(files) == ["mix.wav", "bass.wav", "drums.wav", "notes.mid", "options.json"]
    said = json.loads(files["options.json"])
    assert (said["exact"], said["estimated"], said["options"]) == (is_exact, False, {"seed": 1})


def test_the_archive_is_counted_twice() -> None:
    """Its files, and all of them together."""
    assert stems_bytes(Stems(0.9), channels=1) == 2 * 3 * 3 * 200
