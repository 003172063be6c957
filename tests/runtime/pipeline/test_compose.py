"""Requests composed from public options: tokens, masks, contexts, sources, targets, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.backends import FEW_VARIANTS
from helpers.factories import TinySpec
from helpers.generations import expected_latents, generate
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.sampler import DcwSpec
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.requests.options import COVER_DENOISE, parse_options
from runtime.requests.request import Condition
from runtime.requests.segments import Segment
from runtime.requests.timesteps import noise
from runtime.requests.torch_noise import torch_noise

SPEC = TinySpec()
T, C = SPEC.canvas_frames, SPEC.channels


def latents(frames: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, C)).astype(np.float32)


def test_a_prompt_alone_uses_the_bundle_defaults(pipeline: Pipeline) -> None:
    request = pipeline.request("warm piano")
    assert (request.frames, request.steps, request.shift, request.denoise) == (T, SPEC.steps, 3.0, 1.0)
    assert request.parameters.guidance == SPEC.guidance
    assert np.array_equal(request.conditions[0].tokens, pipeline.text_encoder.encode("warm piano"))
    assert np.array_equal(request.negatives[0].tokens, pipeline.text_encoder.encode(""))
    assert (request.mask, request.source, request.target) == (None, None, None)
    assert generate(pipeline.loop, request).shape == (T, C)


def test_context_without_a_source_is_silence_to_generate(pipeline: Pipeline) -> None:
    context = pipeline.request("a").context
    assert context is not None
    assert np.array_equal(context[:, :C], np.tile(np.array(SPEC.silence, np.float32), (T, 1)))
    assert (context[:, C:] == 1.0).all()


def test_a_model_without_timbre_takes_no_reference(pipeline: Pipeline) -> None:
    with pytest.raises(RequestError, match=r"has no \[timbre\]") as caught:
        pipeline.request("a", GenerationInputs(timbre=latents(12)))
    assert caught.value.field == "timbre"


def test_a_missing_seed_is_random_and_a_given_one_is_kept(pipeline: Pipeline) -> None:
    assert pipeline.request("a", seed=0).seed == 0
    assert pipeline.request("a", seed=2**64 - 1).seed == 2**64 - 1
    assert len({pipeline.request("a").seed for _ in range(8)}) > 1


def test_options_reach_the_request(pipeline: Pipeline) -> None:
    request = pipeline.request(
        "a", GenerationInputs(session="s", client="c"),
        negative_prompt="noise", steps=3, shift=1.5, guidance=[1.0, 3.0], guidance_mode="initialize",
        solver="sde", rescale=0.5,
    )  # fmt: skip
    assert (request.steps, request.shift, request.guidance_mode, request.solver) == (3, 1.5, "initialize", "sde")
    assert (request.session, request.client) == ("s", "c")
    assert np.array_equal(request.negatives[0].tokens, pipeline.text_encoder.encode("noise"))
    assert np.allclose(request.parameters.guidance, np.linspace(1.0, 3.0, T))
    assert request.parameters.rescale == 0.5
    assert np.isfinite(generate(pipeline.loop, request)).all()


def test_weighted_prompts_are_blended(pipeline: Pipeline) -> None:
    prompt = [{"text": "a", "weight": [1.0, 0.0]}, {"text": "b", "weight": [0.0, 1.0]}]
    request = pipeline.request(prompt, seed=1, guidance=1.0)
    assert np.allclose(request.conditions[1].weight, np.linspace(0.0, 1.0, T))
    assert (request.conditions[0].start, request.conditions[0].end) == (0.0, 1.0)
    blended, only_a = (
        generate(pipeline.loop, request),
        generate(pipeline.loop, pipeline.request("a", seed=1, guidance=1.0)),
    )
    assert np.abs(blended - only_a).max() > 1e-3


def test_blended_tokens_are_one_row_and_agree_with_the_oracle(pipeline: Pipeline) -> None:
    """The reference blends in float64; the shorter text counts as zeros beyond its end."""
    texts, weights = ("a", "a much longer text", "b"), np.array([1.0, 0.5, 0.0])
    prompt = [{"text": text, "weight": weight} for text, weight in zip(texts, weights.tolist(), strict=True)]
    request = pipeline.request(prompt, blend="tokens", seed=1)
    assert pipeline.text_encoder is not None
    encoded = [pipeline.text_encoder.encode(text).astype(np.float64) for text in texts]
    length = max(map(len, encoded))
    padded = np.stack([np.pad(tokens, ((0, length - len(tokens)), (0, 0))) for tokens in encoded])
    reference = np.tensordot(weights / weights.sum(), padded, 1)
    (condition,) = request.conditions
    assert (condition.weight, condition.start, condition.end) == (1.0, 0.0, 1.0)
    np.testing.assert_allclose(condition.tokens, reference, atol=1e-6)
    by_oracle = replace(request, conditions=(Condition(reference.astype(np.float32)),))
    result = generate(pipeline.loop, request)
    np.testing.assert_allclose(result, expected_latents(pipeline.loop, by_oracle), atol=1e-4, rtol=1e-4)


def test_equal_tokens_are_one_where_the_decoder_counts_them(built: Built, pipeline: Pipeline) -> None:
    tokens = np.random.default_rng(4).standard_normal((20, SPEC.condition_width)).astype(np.float32)
    tokens[5:] = tokens[5]
    with open_pipeline(built(mask_counts=True, more=FEW_VARIANTS)) as counting:
        request = counting.request("", GenerationInputs(condition=tokens), seed=1)
        (condition,) = request.conditions
        np.testing.assert_array_equal(condition.tokens, tokens[:6])
        np.testing.assert_array_equal(condition.counts, [1, 1, 1, 1, 1, 15])
        as_given = replace(request, conditions=(Condition(tokens),))
        wanted = expected_latents(counting.loop, as_given)
        np.testing.assert_allclose(generate(counting.loop, request), wanted, atol=1e-4, rtol=1e-4)
    (plain,) = pipeline.request("", GenerationInputs(condition=tokens), seed=1).conditions
    np.testing.assert_array_equal(plain.tokens, tokens)


def test_a_prompt_that_a_segment_does_not_hear_takes_no_row_of_it(pipeline: Pipeline) -> None:
    prompt = [{"text": "a", "weight": [1.0, 1.0, 0.0, 0.0]}, {"text": "b", "weight": [0.0, 0.0, 1.0, 1.0]}]
    options = parse_options({"prompt": prompt, "seed": 1})
    begin, end = (Segment(start, T, total_frames=4 * T) for start in (0, 3 * T))
    for segment, text in ((begin, "a"), (end, "b")):
        (condition,) = pipeline.composer.compose(options, segment).conditions
        assert np.array_equal(condition.tokens, pipeline.text_encoder.encode(text))
        assert np.array_equal(condition.weight, np.ones(T))
    silent = parse_options({"prompt": [{"text": "a", "weight": [0.0, 0.0]}], "seed": 1})
    assert len(pipeline.composer.compose(silent, begin).conditions) == 1


def test_a_text_without_weight_has_no_part_in_blended_tokens(pipeline: Pipeline) -> None:
    prompt = [{"text": "a", "weight": 3.0}, {"text": "a much longer text", "weight": 0.0}]
    (condition,) = pipeline.request(prompt, blend="tokens").conditions
    assert np.array_equal(condition.tokens, pipeline.request("a").conditions[0].tokens)


def test_given_noise_replaces_that_of_the_seed(pipeline: Pipeline) -> None:
    inputs = GenerationInputs(noise=noise(T, C, 7))
    request = pipeline.request("a", inputs, seed=1)
    np.testing.assert_allclose(
        generate(pipeline.loop, request), expected_latents(pipeline.loop, request), atol=1e-4, rtol=1e-4
    )
    assert np.array_equal(generate(pipeline.loop, request), generate(pipeline.loop, pipeline.request("a", seed=7)))
    options = parse_options({"prompt": "a"})
    later = pipeline.composer.compose(options, Segment(8, T, 0, 100), GenerationInputs(noise=latents(100)))
    assert np.array_equal(later.noise, latents(100)[8 : 8 + T])
    with pytest.raises(RequestError, match=f"has 100 frames, this segment needs {80 + T}") as error:
        pipeline.composer.compose(options, Segment(80, T, 0, 200), GenerationInputs(noise=latents(100)))
    assert error.value.field == "noise"


def test_a_segment_without_an_end_takes_its_own_source_noise_and_tail(pipeline: Pipeline) -> None:
    """What a live session composes: inputs cut for one segment, at any place and with any number of kept frames."""
    inputs = GenerationInputs(source=latents(T), noise=latents(T, 1))
    options = parse_options({"prompt": "a", "seed": 4, "guidance": [1.0, 3.0], "denoise": 0.5})
    request = pipeline.composer.compose(options, Segment(1234, T, 4), inputs, latents(6, 2))
    assert np.array_equal(request.source, inputs.source)
    assert np.array_equal(request.noise, inputs.noise)
    assert np.allclose(request.parameters.guidance, np.linspace(1.0, 3.0, T))
    result = generate(pipeline.loop, request)
    assert np.array_equal(result[:4], latents(6, 2)[-4:])
    np.testing.assert_allclose(result, expected_latents(pipeline.loop, request), atol=1e-4, rtol=1e-4)


def test_a_cover_starts_from_its_source(pipeline: Pipeline) -> None:
    source = latents(T)
    inputs = GenerationInputs(source=source)
    request = pipeline.request("a", inputs)
    assert request.denoise == COVER_DENOISE
    assert np.array_equal(request.source, source)
    near, far = (generate(pipeline.loop, pipeline.request("a", inputs, denoise=d, seed=1)) for d in (0.3, 0.9))
    assert np.abs(near - source).mean() < np.abs(far - source).mean()


def test_a_source_with_a_mask_or_target_strength_is_not_a_cover(pipeline: Pipeline) -> None:
    assert pipeline.request("a", GenerationInputs(source=latents(T)), mask=[0.0, 1.0]).denoise == 1.0
    assert pipeline.request("a", GenerationInputs(source=latents(T)), x0_strength=0.5).denoise == 1.0


def test_a_short_source_is_padded_with_silence(pipeline: Pipeline) -> None:
    assert pipeline.lengths.total_frames(parse_options({"prompt": "a"}), latents(20)) == 20
    source = pipeline.request("a", GenerationInputs(source=latents(20)), seconds=1.28).source
    assert source is not None
    assert np.array_equal(source[20:], np.tile(np.array(SPEC.silence, np.float32), (12, 1)))


def test_repaint_keeps_the_other_frames_bit_identical(pipeline: Pipeline) -> None:
    source = latents(T)
    request = pipeline.request("a", GenerationInputs(source=source), repaint=[{"start_s": 0.4, "end_s": 0.8}], seed=1)
    painted = slice(10, 20)
    rest = np.r_[0:10, 20:T]
    assert request.context is not None
    assert np.array_equal(request.context[rest, :C], source[rest])
    assert (request.context[rest, C:] == 0.0).all()
    assert (request.context[painted, C:] == 1.0).all()
    result = generate(pipeline.loop, request)
    assert np.array_equal(result[rest], source[rest])
    assert np.abs(result[painted] - source[painted]).min(axis=1).max() > 1e-3


def test_tail_frames_are_context_and_are_kept(pipeline: Pipeline) -> None:
    tail = latents(20)
    options = parse_options({"prompt": "a", "seed": 4})
    request = pipeline.composer.compose(options, Segment(12, T, 8, 100), tail=tail)
    assert request.mask is not None
    assert np.asarray(request.mask.mask).tolist() == [0.0] * 8 + [1.0] * 24
    assert request.context is not None
    assert np.array_equal(request.context[:8, :C], tail[-8:])
    assert np.array_equal(generate(pipeline.loop, request)[:8], tail[-8:])


def test_a_target_curve_of_one_gives_the_target(pipeline: Pipeline) -> None:
    target = latents(T)
    drawn = generate(pipeline.loop, pipeline.request("a", GenerationInputs(target=target), target_curve=1.0, seed=1))
    free = generate(pipeline.loop, pipeline.request("a", seed=1))
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
        ({"steps": 0}, "steps", "at least 1"),
    ],
)
def test_invalid_options_are_refused_with_their_field(
    pipeline: Pipeline, options: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        pipeline.request("a", **options)
    assert caught.value.field == field


def test_the_field_of_a_too_long_prompt_is_reported(pipeline: Pipeline) -> None:
    with pytest.raises(RequestError, match=r"prompt\.1\.text: the text has 51 tokens, the model accepts 32"):
        pipeline.request([{"text": "a"}, {"text": "b" * 50}])


def test_without_a_text_encoder_only_the_null_condition_is_accepted(built: Built, tmp_path: Path) -> None:
    null = np.full((1, SPEC.condition_width), 0.5, np.float32)
    np.save(tmp_path / "null.npy", null)
    with open_pipeline(built(text_encoder=False)) as plain:
        decoder = plain.bundle.decoder.model_copy(update={"null_condition": "null.npy"})
        pipeline = replace(plain, bundle=plain.bundle.model_copy(update={"folder": tmp_path, "decoder": decoder}))
        request = pipeline.request("")
        assert np.array_equal(request.conditions[0].tokens, null)
        assert np.array_equal(request.negatives[0].tokens, null)
        assert generate(pipeline.loop, request).shape == (T, C)
        with pytest.raises(RequestError, match=r"(?s)takes no text.*leave the text empty"):
            pipeline.request("warm piano")


def test_a_silence_sequence_starts_anew_with_every_segment(pipeline: Pipeline, tmp_path: Path) -> None:
    sequence = latents(2 * T, seed=9)
    np.save(tmp_path / "silence.npy", sequence)
    context = pipeline.bundle.context.model_copy(update={"silence": "silence.npy"})
    silent = replace(pipeline, bundle=pipeline.bundle.model_copy(update={"folder": tmp_path, "context": context}))
    options, tail = parse_options({"prompt": "a"}), latents(8)
    first = silent.composer.compose(options, Segment(0, T, 0, 56))
    later = silent.composer.compose(options, Segment(24, T, 8, 56), tail=tail)
    assert np.array_equal(first.context[:, :C], sequence[:T])
    assert np.array_equal(later.context[:8, :C], tail)
    assert np.array_equal(later.context[8:, :C], sequence[8:T])
    covered = silent.composer.compose(options, Segment(0, T, 0, T), GenerationInputs(source=latents(T - 4)))
    assert np.array_equal(covered.source[T - 4 :], sequence[T - 4 : T])


@pytest.fixture(scope="module")
def singing(built: Built) -> Iterator[Pipeline]:
    """A bundle that takes lyrics, metadata, tasks and a timbre."""
    with open_pipeline(built(conditions=True, more=FEW_VARIANTS)) as opened:
        yield opened


REFERENCE = latents(SPEC.timbre_frames, 3)
SONG = {"lyrics": "la", "language": "de", "bpm": 92, "key": "C major", "time_signature": 3}


def test_lyrics_and_metadata_reach_the_condition(singing: Pipeline) -> None:
    assert singing.text_encoder is not None
    request = singing.request("a", **SONG, seed=1)
    (condition,) = request.conditions
    expected = singing.text_encoder.encode("a", values={**SONG, "task": "text2music"})
    assert np.array_equal(condition.tokens, expected)
    for name in SONG:
        others = {key: value for key, value in SONG.items() if key != name}
        assert not np.array_equal(singing.request("a", **others).conditions[0].tokens, expected), name
    assert np.isfinite(generate(singing.loop, request)).all()


def test_lyrics_timbre_and_text_are_packed_in_the_bundle_order(singing: Pipeline) -> None:
    encoder = singing.text_encoder
    assert encoder is not None
    assert encoder.timbre is not None
    text = "a - - - t:"
    lengths = (len("en "), 1, len(text))
    tokens = encoder.encode("a")
    assert len(tokens) == sum(lengths) + 2  # Two start tokens.
    assert np.array_equal(tokens[4], encoder.timbre.silence[0])
    assert np.array_equal(encoder.encode("a", values={"lyrics": "la"})[-len(text) :], tokens[-len(text) :])


def test_the_source_says_the_instruction(singing: Pipeline) -> None:
    assert singing.text_encoder is not None
    source = GenerationInputs(source=latents(T))
    span = [{"start_s": 0.4, "end_s": 0.8}]
    for options, task in (
        ({}, "cover"),
        ({"repaint": span}, "repaint"),
        ({"task": "extract", "track": "d"}, "extract"),
    ):
        request = singing.request("a", source, **options)
        values = {"task": task, "track": options.get("track")}
        assert np.array_equal(request.conditions[0].tokens, singing.text_encoder.encode("a", values=values)), task
        assert (request.denoise == COVER_DENOISE) == (task == "cover")


def test_the_empty_prompt_is_the_null_condition_unless_something_else_is_given(singing: Pipeline) -> None:
    assert singing.text_encoder is not None
    null = singing.text_encoder.encode("")
    assert np.array_equal(singing.request("").conditions[0].tokens, null)
    assert np.array_equal(singing.request("a").negatives[0].tokens, null)
    assert not np.array_equal(singing.request("", bpm=90).conditions[0].tokens, null)


def test_a_timbre_is_interpolated_from_silence(singing: Pipeline) -> None:
    def tokens(strength: float) -> NDArray[np.float32]:
        request = singing.request("a", GenerationInputs(timbre=REFERENCE), timbre_strength=strength)
        return request.conditions[0].tokens

    assert np.array_equal(tokens(0.0), singing.request("a").conditions[0].tokens)
    np.testing.assert_allclose(tokens(0.5), (tokens(0.0) + tokens(1.0)) / 2, atol=1e-6)
    assert np.abs(tokens(1.0) - tokens(0.0)).max() > 0.1


def test_a_curve_of_timbre_blends_two_velocities(singing: Pipeline) -> None:
    inputs = GenerationInputs(timbre=REFERENCE)
    request = singing.request("a", inputs, timbre_strength=[0.0, 1.0], seed=1, guidance=1.0)
    with_timbre, without = request.conditions
    assert np.allclose(with_timbre.weight, np.linspace(0.0, 1.0, T))
    assert np.allclose(without.weight, np.linspace(1.0, 0.0, T))
    for condition, strength in ((with_timbre, 1.0), (without, 0.0)):
        plain = singing.request("a", inputs, timbre_strength=strength)
        assert np.array_equal(condition.tokens, plain.conditions[0].tokens)
    result = generate(singing.loop, request)
    np.testing.assert_allclose(result, expected_latents(singing.loop, request), atol=1e-4, rtol=1e-4)


def test_a_reference_of_audio_and_of_latents(singing: Pipeline) -> None:
    assert singing.codec is not None
    pcm = np.random.default_rng(0).uniform(-0.5, 0.5, (20 * SPEC.hop_samples, 2)).astype(np.float32)
    found = singing.inputs.array(pcm, None).timbre()
    part = 4 * SPEC.hop_samples
    middle = len(pcm) // 3
    cut = np.concatenate([pcm[:part], pcm[middle : middle + part], pcm[-part:]])
    assert np.array_equal(found, singing.codec.encode(cut))
    assert singing.inputs.array(pcm, None).timbre() is found
    assert np.array_equal(singing.inputs.timbre_latents(latents(12)), latents(12))


@pytest.mark.parametrize(
    ("options", "timbre", "field"),
    [
        ({"lyrics": "la"}, None, "lyrics"),
        ({"bpm": 90}, None, "bpm"),
        ({"instruction": "x"}, None, "instruction"),
        ({"timbre_strength": 0.5}, None, "timbre_strength"),
        ({}, REFERENCE, "timbre"),
    ],
)
def test_what_a_bundle_makes_nothing_of_is_refused(
    pipeline: Pipeline, options: dict[str, Any], timbre: NDArray[np.float32] | None, field: str
) -> None:
    with pytest.raises(RequestError) as error:
        LongGeneration(pipeline, parse_options({"prompt": "a", **options}), GenerationInputs(timbre=timbre))
    assert error.value.field == field


def test_a_strength_without_a_timbre_and_texts_beside_a_condition_are_refused(singing: Pipeline) -> None:
    with pytest.raises(RequestError, match="timbre_strength: has no effect without a timbre"):
        LongGeneration(singing, parse_options({"prompt": "a", "timbre_strength": 0.5}))
    given = GenerationInputs(condition=np.ones((2, SPEC.condition_width), np.float32))
    with pytest.raises(RequestError, match="bpm: has no effect beside condition tokens"):
        LongGeneration(singing, parse_options({"prompt": "", "bpm": 90}), given)


def test_torch_noise_is_the_noise_of_the_seed_in_every_segment(pipeline: Pipeline) -> None:
    request = pipeline.request("a", noise="torch", seed=5)
    assert request.noise is not None
    assert np.array_equal(request.noise, torch_noise(request.frames, C, 5))
    assert pipeline.request("a", seed=5).noise is None


def test_timesteps_mix_in_a_source_as_far_as_the_first_one_is_below_one(pipeline: Pipeline) -> None:
    request = pipeline.request("a", GenerationInputs(source=latents(32)), timesteps=[0.8, 0.3])
    assert (request.timesteps, request.steps, request.denoise) == ((0.8, 0.3), 2, 0.8)
    assert pipeline.request("a", timesteps=[0.8]).denoise == 1.0


def with_sampler(pipeline: Pipeline, **changes: Any) -> Pipeline:
    sampler = pipeline.bundle.sampler.model_copy(update=changes)
    return replace(pipeline, bundle=pipeline.bundle.model_copy(update={"sampler": sampler}))


def test_solver_and_guidance_interval_come_from_the_bundle_unless_they_are_given(pipeline: Pipeline) -> None:
    assert pipeline.request("a").solver == "ode"
    changed = with_sampler(pipeline, solver="ab2", cfg_interval_start=0.125, cfg_interval_end=0.5)
    request = changed.request("a")
    assert (request.solver, changed.request("a", solver="ode").solver) == ("ab2", "ode")
    assert (request.parameters.cfg_interval_start, request.parameters.cfg_interval_end) == (0.125, 0.5)
    other = changed.request("a", cfg_interval_end=1.0).parameters
    assert (other.cfg_interval_start, other.cfg_interval_end) == (0.125, 1.0)


def test_the_bundles_times_hold_for_their_number_of_steps_from_noise_without_a_shift(pipeline: Pipeline) -> None:
    changed = with_sampler(pipeline, schedules={3: (1.0, 0.75, 0.25)}, steps=3)
    for given in ({}, {"steps": 3}):
        request = changed.request("a", **given)
        assert (request.timesteps, request.steps) == ((1.0, 0.75, 0.25), 3)
    assert changed.request("a", timesteps=[1.0, 0.5]).timesteps == (1.0, 0.5)
    for other in ({"steps": 4}, {"shift": 3.0}):
        assert changed.request("a", **other).timesteps is None
    covered = changed.request("a", GenerationInputs(source=latents(32)), denoise=0.5)
    assert (covered.timesteps, covered.steps) == (None, 3)
    repainted = changed.request("a", GenerationInputs(source=latents(32)), mask=[0.0, 1.0])
    assert repainted.timesteps == (1.0, 0.75, 0.25)


def test_dcw_comes_from_the_bundle_unless_it_is_asked_for(pipeline: Pipeline) -> None:
    assert pipeline.request("a").parameters.dcw is None
    changed = with_sampler(pipeline, dcw=DcwSpec(low=0.0625, high=0.25))
    dcw = changed.request("a").parameters.dcw
    assert dcw is not None
    assert (dcw.mode, dcw.low, dcw.high) == ("double", 0.0625, 0.25)
    off = changed.request("a", dcw={"low": 0.0, "high": 0.0}).parameters.dcw
    assert off is not None
    assert off.is_neutral
