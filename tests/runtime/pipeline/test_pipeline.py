"""Opening a deployment: which engines, which lengths, which sources, and errors with the build command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import Built
from helpers.backends import SIMULATED
from helpers.factories import TinySpec, tiny_deployment
from helpers.generations import generate
from helpers.reads import bundle_reads
from numpy.typing import NDArray

from runtime.audio.formats import latents_bytes
from runtime.base.errors import EngineError, EngineMismatchError, EngineNotBuiltError, RequestError
from runtime.config.deployment import ModelIdentity, ShapeRange, load_deployment
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import parse_options

SPEC = TinySpec()
T, C = SPEC.canvas_frames, SPEC.channels


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, C)).astype(np.float32)


@pytest.mark.parametrize(
    ("seconds", "frames", "samples"),
    [(0.5, 14, 4000), (0.52, 14, 4160), (1.28, 32, 10_240), (0.123, 4, 984), (3.0, 76, 24_000), (None, 32, 10_240)],
)
def test_seconds_become_exact_samples_and_enough_frames(
    pipeline: Pipeline, seconds: float | None, frames: int, samples: int
) -> None:
    options = parse_options({"prompt": "a", "seconds": seconds})
    assert pipeline.lengths.total_frames(options) == frames
    assert pipeline.lengths.total_samples(options) == samples


@pytest.mark.parametrize(("seconds", "frames"), [(0.1, 8), (0.32, 8), (0.33, 16), (1.0, 32), (1.28, 32), (9.0, 32)])
def test_short_generations_use_few_lengths(pipeline: Pipeline, seconds: float, frames: int) -> None:
    assert pipeline.lengths.generations == (8, 16, 24, 32)
    request = pipeline.request("a", seconds=seconds)
    assert request.frames == frames
    assert generate(pipeline.loop, request).shape == (frames, C)


def test_lengths_below_the_engine_minimum_are_not_used(built: Built) -> None:
    deployment = built()
    shapes = deployment.shapes[0]
    narrow = shapes.model_copy(update={"frames": shapes.frames.model_copy(update={"min": 20})})
    with open_pipeline(deployment.model_copy(update={"shapes": (narrow,)})) as pipeline:
        assert pipeline.lengths.generations == (24, 32)
        assert generate(pipeline.loop, pipeline.request("a", seconds=0.5)).shape == (24, C)


def test_sources_are_read_from_audio_and_latents_files(pipeline: Pipeline, tmp_path: Path) -> None:
    pcm = np.random.default_rng(0).uniform(-0.5, 0.5, (SPEC.hop_samples * 6 + 1, 2)).astype(np.float32)
    soundfile.write(tmp_path / "a.flac", pcm, SPEC.sample_rate_hz, subtype="PCM_24")
    from_audio = pipeline.inputs.read_source(tmp_path / "a.flac")
    assert from_audio.shape == (8, C)
    assert np.abs(from_audio[:7] - pipeline.codec.encode(pcm)).max() < 1e-3
    assert np.array_equal(pipeline.inputs.read_source((tmp_path / "a.flac").read_bytes()), from_audio)
    data = latents_bytes(latents(6), {})
    (tmp_path / "a.safetensors").write_bytes(data)
    assert np.array_equal(pipeline.inputs.read_source(data), latents(6))
    assert np.array_equal(pipeline.inputs.read_source(tmp_path / "a.safetensors"), latents(6))


def test_a_too_long_source_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(RequestError, match="T up to 50"):
        pipeline.inputs.read_source(latents_bytes(latents(52), {}), max_seconds=2.0)


def test_all_engines_are_listed(pipeline: Pipeline) -> None:
    names = {engine.name for engine in pipeline.all_engines()}
    assert {"decoder", "codec_decode", "codec_encode", "text_encoder", "step.plain", "rows.plain"} <= names


def test_its_identity_is_that_of_what_its_sound_depends_on(pipeline: Pipeline) -> None:
    identity, bundle, engine = pipeline.identity, pipeline.bundle, pipeline.engines.decoder
    assert (len(identity.bundle_sha256), identity.precision) == (64, "fp32")

    def with_bundle(**values: Any) -> ModelIdentity:
        return replace(pipeline, bundle=bundle.model_copy(update=values)).identity

    assert with_bundle(evaluation={"prompts": 1}, description="other") == identity
    assert with_bundle(sampler=bundle.sampler.model_copy(update={"guidance": 9.0})) != identity
    manifest = engine.manifest
    try:
        engine.manifest = manifest.model_copy(update={"graph_sha256": 64 * "0"})
        assert pipeline.identity.bundle_sha256 != identity.bundle_sha256
        engine.manifest = manifest.model_copy(update={"build": {**manifest.build, "precision": "int8"}})
        assert (pipeline.identity.bundle_sha256, pipeline.identity.precision) == (identity.bundle_sha256, "fp32+int8")
    finally:
        engine.manifest = manifest


def test_opening_a_deployment_reads_its_bundle_once(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    config = built(planner={"capacity": 512}, conditions=True).path
    reads = bundle_reads(monkeypatch)
    with open_pipeline(config, target="cpu") as pipeline:
        pipeline.reload()
        assert reads == [pipeline.bundle.folder / "bundle.toml"]


def test_a_reload_executes_plans_from_elsewhere_in_a_process_of_its_own_first(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here, where a server runs, what ends its process must not be executed."""
    deployment = built(max_rows=16, backend=SIMULATED[0])
    shutil.copytree(deployment.engines, tmp_path / "engines")
    deployment = deployment.model_copy(update={"engines": tmp_path / "engines"})
    for path in deployment.engine_folder().glob("*.tried.json"):
        path.unlink()  # they come from another machine
    with SIMULATED[0].running(), open_pipeline(deployment) as pipeline:
        old = pipeline.engines
        request = next(pipeline.warm_up_requests())
        before = generate(pipeline.loop, request)
        monkeypatch.setenv("SIMULATED_FAULTS", json.dumps({"crash_above_level": -1}))
        with pytest.raises(EngineError, match=r"ended its process \(signal SIGSEGV\) at its first execute") as caught:
            pipeline.reload()
        assert "tickrt-build" in caught.value.fix
        assert pipeline.engines is old
        np.testing.assert_array_equal(generate(pipeline.loop, replace(request, id="again")), before)
        monkeypatch.delenv("SIMULATED_FAULTS")
        for path in deployment.engine_folder().glob("*.tried.json"):
            path.unlink()
        pipeline.reload()
        assert pipeline.engines is not old
        assert len(list(deployment.engine_folder().glob("*.tried.json"))) == len(pipeline.all_engines())
        np.testing.assert_array_equal(generate(pipeline.loop, replace(request, id="new")), before)


def test_missing_engines_are_reported_with_the_build_command(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    with pytest.raises(EngineNotBuiltError) as caught:
        open_pipeline(path)
    assert caught.value.fix == f"tickrt-build {path} --target cpu"


@pytest.mark.parametrize("name", ["codec_decode", "text_encoder"])
def test_a_damaged_codec_or_text_encoder_engine_is_refused(built: Built, tmp_path: Path, name: str) -> None:
    deployment = built()
    shutil.copytree(deployment.engines, tmp_path / "engines")
    engine = tmp_path / "engines" / "cpu" / f"{name}.onnx"
    engine.write_bytes(engine.read_bytes()[:-1] + b"\xff")
    with pytest.raises(EngineMismatchError, match=name):
        open_pipeline(deployment.model_copy(update={"engines": tmp_path / "engines"}))


def test_lengths_come_from_the_shape_ranges(pipeline: Pipeline) -> None:
    shape = pipeline.deployment.shapes[0]
    exact = [shape.model_copy(update={"frames": ShapeRange(min=n, opt=n, max=n)}) for n in (6, 16, T)]
    there = replace(pipeline, deployment=pipeline.deployment.model_copy(update={"shapes": tuple(exact)}))
    assert pipeline.lengths.generations == (8, 16, 24, 32)
    assert there.lengths.generations == (6, 16, 32)


def test_a_bundle_without_codec_and_text_encoder_opens(built: Built) -> None:
    bare = built(codec=False, text_encoder=False, context=False)
    with open_pipeline(bare) as pipeline:
        assert (pipeline.codec, pipeline.text_encoder, pipeline.bundle.context) == (None, None, None)
        with pytest.raises(RequestError, match="takes no text"):
            pipeline.request("a")
        tokens = np.ones((3, SPEC.condition_width), np.float32)
        request = pipeline.request("", GenerationInputs(condition=tokens))
        assert np.array_equal(request.conditions[0].tokens, tokens)
        assert request.negatives == ()
        assert generate(pipeline.loop, request).shape == (T, C)
        with pytest.raises(RequestError, match=r"negative_prompt: .*nor a null condition"):
            pipeline.request("", GenerationInputs(condition=tokens), guidance=3.0)
        with pytest.raises(RequestError, match="cannot turn audio into latents"):
            pipeline.inputs.read_source(b"RIFF")
    assert load_deployment(bare.path).path == bare.path
