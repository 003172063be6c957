"""What a generation does with its source, and options that would have no effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.factories import TinySpec
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.sources import has_encoded_latents, kept_frames, settled_options
from runtime.requests.option_types import Span
from runtime.requests.options import GenerationOptions, parse_options

SPEC = TinySpec()
RATE_HZ = 25.0


def latents(frames: int) -> NDArray[np.float32]:
    return np.zeros((frames, SPEC.channels), np.float32)


def audio_source(frames: int) -> GenerationInputs:
    pcm = np.zeros((frames * SPEC.hop_samples, SPEC.audio_channels), np.float32)
    return GenerationInputs(source=latents(frames), source_audio=lambda: iter([pcm]))


def settled(pipeline: Pipeline, values: dict[str, Any], inputs: GenerationInputs) -> GenerationOptions:
    options = parse_options({"prompt": "a", **values})
    return settled_options(options, inputs, pipeline.lengths.total_frames(options, inputs.source), pipeline.bundle)


def kept(pipeline: Pipeline, values: dict[str, Any], inputs: GenerationInputs) -> list[int]:
    """The frames at which keeping begins or ends."""
    options = settled(pipeline, values, inputs)
    frames = kept_frames(options, inputs, pipeline.lengths.total_frames(options, inputs.source), pipeline.bundle)
    return np.flatnonzero(np.diff(frames, prepend=False)).tolist()


def test_a_generation_that_is_much_longer_than_its_source_continues_it(pipeline: Pipeline) -> None:
    (span,) = settled(pipeline, {"seconds": 4.0}, GenerationInputs(source=latents(50))).repaint or []
    assert span == Span(start_s=2.0, end_s=4.0)
    assert settled(pipeline, {"seconds": 3.0}, GenerationInputs(source=latents(50))).repaint is None


def test_a_continued_audio_source_is_generated_from_its_last_whole_frames_on(pipeline: Pipeline) -> None:
    """Silence may fill its last frames."""
    (span,) = settled(pipeline, {"seconds": 4.0}, audio_source(50)).repaint or []
    assert span == Span(start_s=(50 - SPEC.frame_multiple) / RATE_HZ, end_s=4.0)


@pytest.mark.parametrize("values", [{"denoise": 0.5}, {"mask": [0.0, 1.0]}, {"x0_strength": 0.5}])
def test_a_source_that_an_option_uses_is_not_continued(pipeline: Pipeline, values: dict[str, Any]) -> None:
    assert settled(pipeline, {"seconds": 4.0, **values}, GenerationInputs(source=latents(50))).repaint is None


@pytest.mark.parametrize(
    ("seconds", "span", "says", "fix"),
    [
        (None, (40.0, 70.0), "40 to 70 s is outside: the source has 2 s", "begin it before 2"),
        (
            None,
            (1.0, 2.5),
            "1 to 2.5 s is outside: the source has 2 s",
            "end it at 2 or before, or give more",
        ),
        (1.2, (1.0, 1.5), "the source has 2 s, the generation 1.2 s", "end it at 1.2 or before"),
        (4.0, (3.0, 4.0), "3 to 4 s is outside: the source has 2 s, the generation 4 s", "begin it before 2"),
    ],
)
def test_a_repaint_outside_of_the_source_is_refused_with_its_length(
    pipeline: Pipeline, seconds: float | None, span: tuple[float, float], says: str, fix: str
) -> None:
    values = {"seconds": seconds, "repaint": [{"start_s": 0.0, "end_s": 0.4}, {"start_s": span[0], "end_s": span[1]}]}
    with pytest.raises(RequestError) as caught:
        settled(pipeline, values, GenerationInputs(source=latents(50)))
    assert caught.value.field == "repaint.1"
    assert says in caught.value.what
    assert fix in caught.value.fix


def test_a_repaint_may_begin_at_the_end_of_the_source(pipeline: Pipeline) -> None:
    spans = [{"start_s": 1.0, "end_s": 1.2}, {"start_s": 2.0, "end_s": 2.4}]
    settled(pipeline, {"seconds": 2.4, "repaint": spans}, GenerationInputs(source=latents(50)))


@pytest.mark.parametrize(
    ("values", "inputs", "field"),
    [
        ({}, GenerationInputs(condition=latents(2)), "prompt"),
        ({}, GenerationInputs(target=latents(32)), "target"),
        ({"target_gate": 0.5}, GenerationInputs(source=latents(32)), "target_gate"),
        ({"target_curve": 0.5, "x0_strength": 0.5}, GenerationInputs(source=latents(32)), "x0_strength"),
        ({"ode_noise": [0.0, 0.1], "solver": "sde"}, GenerationInputs(), "ode_noise"),
        ({"ode_noise": 0.1, "sde_curve": 1.0}, GenerationInputs(source=latents(32)), "ode_noise"),
        ({"dcw": {"mode": "low"}}, GenerationInputs(), "dcw.mode"),
        ({"guidance": 1.0, "negative_prompt": "b"}, GenerationInputs(), "negative_prompt"),
        ({"guidance": [1.0, 1.0], "momentum": 0.1}, GenerationInputs(), "momentum"),
        ({"guidance": 1.0, "rescale": [0.0, 0.5]}, GenerationInputs(), "rescale"),
        ({"guidance": 1.0, "guidance_mode": "initialize"}, GenerationInputs(), "guidance_mode"),
        ({"guidance_mode": "self", "negative_prompt": "b"}, GenerationInputs(), "negative_prompt"),
    ],
)
def test_an_option_without_effect_is_refused(
    pipeline: Pipeline, values: dict[str, Any], inputs: GenerationInputs, field: str
) -> None:
    with pytest.raises(RequestError, match="has no effect") as caught:
        settled(pipeline, values, inputs)
    assert caught.value.field == field


def test_one_end_of_the_guidance_interval_is_not_beyond_the_models_other_one(pipeline: Pipeline) -> None:
    sampler = pipeline.bundle.sampler.model_copy(update={"cfg_interval_start": 0.25, "cfg_interval_end": 0.5})
    changed = replace(pipeline, bundle=pipeline.bundle.model_copy(update={"sampler": sampler}))
    for field, value in (("cfg_interval_start", 0.75), ("cfg_interval_end", 0.125)):
        with pytest.raises(RequestError, match="needs cfg_interval_start <= cfg_interval_end, they are") as caught:
            settled(changed, {field: value}, GenerationInputs())
        assert caught.value.field == field
    settled(changed, {"cfg_interval_start": 0.75, "cfg_interval_end": 1.0}, GenerationInputs())


def test_neutral_values_are_accepted(pipeline: Pipeline) -> None:
    values = {"guidance": 1.0, "rescale": 0.0, "ode_noise": 0.0, "solver": "sde", "dcw": {"mode": "low", "low": 0.0}}
    assert settled(pipeline, values, GenerationInputs()).guidance == 1.0


def test_kept_frames_are_those_that_a_mask_or_a_repaint_leaves_out(pipeline: Pipeline) -> None:
    source = audio_source(50)
    assert kept(pipeline, {"repaint": [{"start_s": 0.4, "end_s": 0.81}]}, source) == [0, 10, 21]
    assert kept(pipeline, {"mask": [0.0, 0.0, 1.0]}, source) == [0, 25]
    assert kept(pipeline, {"seconds": 4.0}, source) == [0, 50 - SPEC.frame_multiple]
    assert kept(pipeline, {"denoise": 0.0}, source) == [0]


def test_a_cover_and_a_source_of_latents_keep_no_audio(pipeline: Pipeline) -> None:
    assert kept(pipeline, {}, audio_source(50)) == []
    spans = [{"start_s": 0.4, "end_s": 0.8}]
    assert kept(pipeline, {"repaint": spans}, GenerationInputs(source=latents(50))) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),  # A cover starts from it.
        ({"denoise": 1.0}, False),
        ({"denoise": 0.0}, True),
        ({"timesteps": [0.6, 0.3]}, True),
        ({"timesteps": [1.0, 0.5]}, False),
        ({"repaint": [{"start_s": 0.4, "end_s": 0.8}], "denoise": 1.0}, True),
        ({"repaint": [{"start_s": 0.0, "end_s": 2.0}], "denoise": 1.0}, False),
        ({"seconds": 4.0}, True),  # It is continued.
        ({"x0_strength": 0.5}, True),
        ({"x0_strength": 0.0}, False),
        ({"target_curve": [0.0, 1.0]}, True),
        ({"initial_noise_curve": [1.0, 0.5]}, True),
        ({"sde_curve": 0.5}, True),
    ],
)
def test_encoded_audio_is_a_part_of_what_keeps_starts_from_or_is_drawn_to_it(
    pipeline: Pipeline, values: dict[str, Any], expected: bool
) -> None:
    def has_encoded(inputs: GenerationInputs) -> bool:
        options, frames = settled(pipeline, values, inputs), pipeline.lengths.total_frames(parsed, inputs.source)
        return has_encoded_latents(options, inputs, frames, pipeline.bundle)

    parsed = parse_options({"prompt": "a", **values})
    assert has_encoded(GenerationInputs(source=latents(50), encoded=frozenset({"source"}))) == expected
    assert not has_encoded(GenerationInputs(source=latents(50)))


def test_what_is_drawn_to_an_encoded_target_has_it_as_a_part(pipeline: Pipeline) -> None:
    options = parse_options({"prompt": "a", "x0_strength": 1.0})
    for encoded in ("target", "source"):
        inputs = GenerationInputs(target=latents(32), encoded=frozenset({encoded}))
        assert has_encoded_latents(options, inputs, 32, pipeline.bundle) == (encoded == "target")
