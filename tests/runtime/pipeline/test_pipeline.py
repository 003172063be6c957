"""A deployment opened; public options become requests that the loop takes and that mean what they say."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import soundfile
from conftest import Built
from factories import TinySpec, tiny_deployment
from numpy.typing import NDArray

from runtime.audio.formats import latents_bytes
from runtime.config.deployment import ShapeRange, load_deployment
from runtime.errors import ConfigError, EngineMismatchError, EngineNotBuiltError, RequestError
from runtime.pipeline.pipeline import COVER_DENOISE, Pipeline, open_pipeline
from runtime.requests.options import parse_options
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment
from runtime.tick.events import Event, Failed, Finished

SPEC = TinySpec()
T, C = SPEC.canvas_frames, SPEC.channels


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built()) as opened:
        yield opened


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, C)).astype(np.float32)


def generate(pipeline: Pipeline, request: GenerationRequest) -> NDArray[np.float32]:
    """Through the real loop."""
    events: SimpleQueue[Event] = SimpleQueue()
    pipeline.loop.submit(request, events.put)
    while True:
        event = events.get(timeout=30)
        if isinstance(event, Finished):
            return event.latents
        assert not isinstance(event, Failed), event


def test_a_prompt_is_enough(pipeline: Pipeline) -> None:
    request = pipeline.request("warm piano")
    assert (request.frames, request.steps, request.shift, request.denoise) == (T, SPEC.steps, 3.0, 1.0)
    assert request.parameters.guidance == SPEC.guidance
    assert np.array_equal(request.conditions[0].tokens, pipeline.text_encoder.encode("warm piano"))
    assert np.array_equal(request.negatives[0].tokens, pipeline.text_encoder.encode(""))
    assert (request.mask, request.source, request.target) == (None, None, None)
    assert generate(pipeline, request).shape == (T, C)


def test_the_context_says_that_nothing_is_known(pipeline: Pipeline) -> None:
    context = pipeline.request("a").context
    assert context is not None
    assert np.array_equal(context[:, :C], np.tile(np.array(SPEC.silence, np.float32), (T, 1)))
    assert (context[:, C:] == 1.0).all()


def test_a_seed_is_kept_and_none_is_drawn(pipeline: Pipeline) -> None:
    assert pipeline.request("a", seed=0).seed == 0
    assert pipeline.request("a", seed=2**64 - 1).seed == 2**64 - 1
    assert len({pipeline.request("a").seed for _ in range(8)}) > 1


def test_the_same_seed_gives_the_same_latents(pipeline: Pipeline) -> None:
    first, second, other = (generate(pipeline, pipeline.request("a", seed=seed)) for seed in (5, 5, 6))
    assert np.array_equal(first, second)
    assert np.abs(first - other).max() > 0.01


@pytest.mark.parametrize(
    ("seconds", "frames", "samples"),
    [(0.5, 14, 4000), (0.52, 14, 4160), (1.28, 32, 10_240), (0.123, 4, 984), (3.0, 76, 24_000), (None, 32, 10_240)],
)
def test_seconds_are_samples_exactly_and_frames_enough(
    pipeline: Pipeline, seconds: float | None, frames: int, samples: int
) -> None:
    options = parse_options({"prompt": "a", "seconds": seconds})
    assert pipeline.total_frames(options) == frames
    assert pipeline.total_samples(options) == samples


@pytest.mark.parametrize(("seconds", "frames"), [(0.1, 8), (0.32, 8), (0.33, 16), (1.0, 32), (1.28, 32), (9.0, 32)])
def test_few_lengths_are_generated(pipeline: Pipeline, seconds: float, frames: int) -> None:
    assert pipeline.lengths == (8, 16, 24, 32)
    request = pipeline.request("a", seconds=seconds)
    assert request.frames == frames
    assert generate(pipeline, request).shape == (frames, C)


def test_engines_that_take_no_less_generate_more(built: Built) -> None:
    deployment = built()
    shapes = deployment.shapes[0]
    narrow = shapes.model_copy(update={"frames": shapes.frames.model_copy(update={"min": 20})})
    with open_pipeline(deployment.model_copy(update={"shapes": (narrow,)})) as pipeline:
        assert pipeline.lengths == (24, 32)
        assert generate(pipeline, pipeline.request("a", seconds=0.5)).shape == (24, C)


def test_options_reach_the_request(pipeline: Pipeline) -> None:
    request = pipeline.request(
        "a", negative_prompt="noise", steps=3, shift=1.5, guidance=[1.0, 3.0], guidance_mode="initialize",
        solver="sde", rescale=0.5, session="s", client="c",
    )  # fmt: skip
    assert (request.steps, request.shift, request.guidance_mode, request.solver) == (3, 1.5, "initialize", "sde")
    assert (request.session, request.client) == ("s", "c")
    assert np.array_equal(request.negatives[0].tokens, pipeline.text_encoder.encode("noise"))
    assert np.allclose(request.parameters.guidance, np.linspace(1.0, 3.0, T))
    assert request.parameters.rescale == 0.5
    assert np.isfinite(generate(pipeline, request)).all()


def test_weighted_prompts_are_blended(pipeline: Pipeline) -> None:
    prompt = [{"text": "a", "weight": [1.0, 0.0]}, {"text": "b", "weight": [0.0, 1.0]}]
    request = pipeline.request(prompt, seed=1, guidance=1.0)
    assert np.allclose(request.conditions[1].weight, np.linspace(0.0, 1.0, T))
    assert (request.conditions[0].start, request.conditions[0].end) == (0.0, 1.0)
    blended, only_a = generate(pipeline, request), generate(pipeline, pipeline.request("a", seed=1, guidance=1.0))
    assert np.abs(blended - only_a).max() > 1e-3


def test_a_cover_starts_from_its_source(pipeline: Pipeline) -> None:
    source = latents(T)
    request = pipeline.request("a", source=source)
    assert request.denoise == COVER_DENOISE
    assert np.array_equal(request.source, source)
    near, far = (generate(pipeline, pipeline.request("a", source=source, denoise=d, seed=1)) for d in (0.3, 0.9))
    assert np.abs(near - source).mean() < np.abs(far - source).mean()


def test_a_source_with_another_use_is_no_cover(pipeline: Pipeline) -> None:
    assert pipeline.request("a", source=latents(T), mask=[0.0, 1.0]).denoise == 1.0
    assert pipeline.request("a", source=latents(T), x0_strength=0.5).denoise == 1.0


def test_a_source_decides_the_length_and_ends_in_silence(pipeline: Pipeline) -> None:
    assert pipeline.total_frames(parse_options({"prompt": "a"}), latents(20)) == 20
    source = pipeline.request("a", source=latents(20), seconds=1.28).source
    assert source is not None
    assert np.array_equal(source[20:], np.tile(np.array(SPEC.silence, np.float32), (12, 1)))


def test_repaint_keeps_the_rest_to_the_bit(pipeline: Pipeline) -> None:
    source = latents(T)
    request = pipeline.request("a", source=source, repaint=[{"start_s": 0.4, "end_s": 0.8}], seed=1)
    painted = slice(10, 20)
    rest = np.r_[0:10, 20:T]
    assert request.context is not None
    assert np.array_equal(request.context[rest, :C], source[rest])
    assert (request.context[rest, C:] == 0.0).all()
    assert (request.context[painted, C:] == 1.0).all()
    result = generate(pipeline, request)
    assert np.array_equal(result[rest], source[rest])
    assert np.abs(result[painted] - source[painted]).min(axis=1).max() > 1e-3


def test_a_tail_is_known_and_kept(pipeline: Pipeline) -> None:
    tail = latents(20)
    options = parse_options({"prompt": "a", "seed": 4})
    request = pipeline.compose(options, Segment(12, T, 8, 100), tail=tail)
    assert request.mask is not None
    assert np.asarray(request.mask.mask).tolist() == [0.0] * 8 + [1.0] * 24
    assert request.context is not None
    assert np.array_equal(request.context[:8, :C], tail[-8:])
    assert np.array_equal(generate(pipeline, request)[:8], tail[-8:])


def test_a_target_draws_the_result_to_it(pipeline: Pipeline) -> None:
    target = latents(T)
    drawn = generate(pipeline, pipeline.request("a", target=target, target_curve=1.0, seed=1))
    free = generate(pipeline, pipeline.request("a", seed=1))
    assert np.abs(drawn - target).max() < 1e-4 < np.abs(free - target).max()


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"mask": 0.5}, "mask", "needs a source"),
        ({"repaint": [{"start_s": 0.0, "end_s": 1.0}]}, "repaint", "needs a source"),
        ({"denoise": 0.5}, "denoise", "needs a source"),
        ({"initial_noise_curve": [0.0, 1.0]}, "initial_noise_curve", "needs a source"),
        ({"sde_curve": 0.5}, "sde_curve", "needs a source"),
        ({"target_curve": 0.5}, "target_curve", "needs a target or a source"),
        ({"x0_strength": 0.5}, "x0_strength", "needs a target or a source"),
        ({"negative_prompt": "x" * 100}, "negative_prompt", "101 tokens"),
        ({"steps": 0}, "steps", "greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(
    pipeline: Pipeline, options: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        pipeline.request("a", **options)
    assert caught.value.field == field


def test_a_prompt_that_is_too_long_is_named(pipeline: Pipeline) -> None:
    with pytest.raises(RequestError, match=r"prompt\.1\.text: the text has 51 tokens, the model takes 32"):
        pipeline.request([{"text": "a"}, {"text": "b" * 50}])


def test_sources_are_read_from_audio_and_from_latents(pipeline: Pipeline, tmp_path: Path) -> None:
    pcm = np.random.default_rng(0).uniform(-0.5, 0.5, (SPEC.hop_samples * 6 + 1, 2)).astype(np.float32)
    soundfile.write(tmp_path / "a.flac", pcm, SPEC.sample_rate_hz, subtype="PCM_24")
    from_audio = pipeline.read_source(tmp_path / "a.flac")
    assert from_audio.shape == (8, C)
    assert np.abs(from_audio[:7] - pipeline.codec.encode(pcm)).max() < 1e-3
    assert np.array_equal(pipeline.read_source((tmp_path / "a.flac").read_bytes()), from_audio)
    data = latents_bytes(latents(6), {})
    (tmp_path / "a.safetensors").write_bytes(data)
    assert np.array_equal(pipeline.read_source(data), latents(6))
    assert np.array_equal(pipeline.read_source(tmp_path / "a.safetensors"), latents(6))


def test_a_source_that_is_too_long_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(RequestError, match="T up to 50"):
        pipeline.read_source(latents_bytes(latents(52), {}), max_seconds=2.0)


def test_all_engines_are_listed(pipeline: Pipeline) -> None:
    names = {engine.name for engine in pipeline.all_engines()}
    assert {"decoder", "codec_decode", "codec_encode", "text_encoder", "step.plain", "rows.plain"} <= names


def test_missing_engines_come_with_the_command(tmp_path: Path) -> None:
    path = tiny_deployment(tmp_path)
    with pytest.raises(EngineNotBuiltError) as caught:
        open_pipeline(path)
    assert caught.value.fix == f"tickrt-build {path} --target cpu"


@pytest.mark.parametrize("name", ["codec_decode", "text_encoder"])
def test_a_damaged_edge_engine_is_refused(built: Built, tmp_path: Path, name: str) -> None:
    deployment = built()
    shutil.copytree(deployment.engines, tmp_path / "engines")
    engine = tmp_path / "engines" / "cpu" / f"{name}.onnx"
    engine.write_bytes(engine.read_bytes()[:-1] + b"\xff")
    with pytest.raises(EngineMismatchError, match=name):
        open_pipeline(deployment.model_copy(update={"engines": tmp_path / "engines"}))


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration"):
        open_pipeline(tmp_path / "none.toml")


def test_without_a_text_encoder_the_null_condition_is_left(built: Built, tmp_path: Path) -> None:
    null = np.full((1, SPEC.condition_width), 0.5, np.float32)
    np.save(tmp_path / "null.npy", null)
    with open_pipeline(built(text_encoder=False)) as plain:
        decoder = plain.bundle.decoder.model_copy(update={"null_condition": "null.npy"})
        pipeline = replace(plain, bundle=plain.bundle.model_copy(update={"folder": tmp_path, "decoder": decoder}))
        request = pipeline.request("")
        assert np.array_equal(request.conditions[0].tokens, null)
        assert np.array_equal(request.negatives[0].tokens, null)
        assert generate(pipeline, request).shape == (T, C)
        with pytest.raises(RequestError, match=r"(?s)takes no text.*only its null condition.*leave the text empty"):
            pipeline.request("warm piano")


def test_lengths_are_those_that_a_range_takes(pipeline: Pipeline) -> None:
    shape = pipeline.deployment.shapes[0]
    exact = [shape.model_copy(update={"frames": ShapeRange(min=n, opt=n, max=n)}) for n in (6, 16, T)]
    there = replace(pipeline, deployment=pipeline.deployment.model_copy(update={"shapes": tuple(exact)}))
    assert pipeline.lengths == (8, 16, 24, 32)
    assert there.lengths == (6, 16, 32)


def test_silence_that_is_a_sequence_begins_with_every_canvas(pipeline: Pipeline, tmp_path: Path) -> None:
    sequence = latents(2 * T, seed=9)
    np.save(tmp_path / "silence.npy", sequence)
    context = pipeline.bundle.context.model_copy(update={"silence": "silence.npy"})
    silent = replace(pipeline, bundle=pipeline.bundle.model_copy(update={"folder": tmp_path, "context": context}))
    options, tail = parse_options({"prompt": "a"}), latents(8)
    first = silent.compose(options, Segment(0, T, 0, 56))
    later = silent.compose(options, Segment(24, T, 8, 56), tail=tail)
    assert np.array_equal(first.context[:, :C], sequence[:T])
    assert np.array_equal(later.context[:8, :C], tail)
    assert np.array_equal(later.context[8:, :C], sequence[8:T])
    covered = silent.compose(options, Segment(0, T, 0, T), source=latents(T - 4))
    assert np.array_equal(covered.source[T - 4 :], sequence[T - 4 : T])


def test_a_bundle_of_bare_latents_opens(built: Built) -> None:
    bare = built(codec=False, text_encoder=False, context=False)
    with open_pipeline(bare) as pipeline:
        assert (pipeline.codec, pipeline.text_encoder, pipeline.bundle.context) == (None, None, None)
        with pytest.raises(RequestError, match="takes no text"):
            pipeline.request("a")
        tokens = np.ones((3, SPEC.condition_width), np.float32)
        request = pipeline.request("", condition=tokens)
        assert np.array_equal(request.conditions[0].tokens, tokens)
        assert request.negatives == ()
        assert generate(pipeline, request).shape == (T, C)
        with pytest.raises(RequestError, match=r"negative_prompt: .*takes no text"):
            pipeline.request("", condition=tokens, guidance=3.0)
        with pytest.raises(RequestError, match="cannot turn audio into latents"):
            pipeline.read_source(b"RIFF")
    assert load_deployment(bare.path).path == bare.path
