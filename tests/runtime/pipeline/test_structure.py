"""Structure: codes and hints against numpy, in the context of covers, by options and inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.factories import TinySpec
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES, codes_of, hints_of
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.engines.engine import RunnableGraph
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.structure import StructureCodec, parse_codes
from runtime.requests.options import parse_options
from runtime.requests.segments import Segment
from runtime.requests.tasks import check_task, task_of

SPEC = TinySpec()
T, C = SPEC.canvas_frames, SPEC.channels


@pytest.fixture(scope="module")
def pipeline(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(structure=True)) as opened:
        yield opened


@pytest.fixture
def structure(pipeline: Pipeline) -> StructureCodec:
    assert pipeline.structure is not None
    return pipeline.structure


def latents(frames: int = T, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((frames, C)).astype(np.float32)


def context_of(pipeline: Pipeline, inputs: GenerationInputs, **options: Any) -> NDArray[np.float32]:
    context = pipeline.request("a", inputs, **options).context
    assert context is not None
    return context


@pytest.mark.parametrize("frames", [1, 3, 31, 32, 33, 100])
def test_codes_and_hints_are_those_of_the_graphs_over_the_source_and_silence(
    structure: StructureCodec, pipeline: Pipeline, frames: int
) -> None:
    source = latents(frames)
    padded = np.concatenate((source, pipeline.bundle.silence(-frames % FRAMES_PER_CODE)))
    assert structure.codes(source).tolist() == codes_of(padded).tolist()
    assert np.array_equal(structure.hints(source), hints_of(codes_of(padded), C)[:frames])


def test_the_same_content_is_made_once(pipeline: Pipeline) -> None:
    counted = StructureCodec(pipeline.bundle, *_engines(pipeline), cache_entries=1)
    first = counted.hints(latents())
    assert counted.hints(latents().copy()) is first
    assert not first.flags.writeable
    other = counted.hints(latents(seed=1))
    assert not np.array_equal(other, first)
    assert counted.hints(latents()) is not first


def _engines(pipeline: Pipeline) -> tuple[RunnableGraph, RunnableGraph]:
    found = {engine.name: engine for engine in pipeline.other_engines}
    return found["structure_encode"], found["structure_decode"]


def test_a_cover_has_the_hints_of_its_source_everywhere(pipeline: Pipeline, structure: StructureCodec) -> None:
    context = context_of(pipeline, GenerationInputs(source=latents()))
    assert np.array_equal(context[:, :C], structure.hints(latents()))
    assert (context[:, C:] == 1.0).all()


def test_a_cover_begins_with_noise(pipeline: Pipeline) -> None:
    assert pipeline.request("a", GenerationInputs(source=latents())).denoise == 1.0
    assert pipeline.request("a", GenerationInputs(source=latents()), denoise=0.4).denoise == 0.4


def test_the_strength_interpolates_from_silence_frame_by_frame(pipeline: Pipeline, structure: StructureCodec) -> None:
    hints, silence = structure.hints(latents()), pipeline.bundle.silence(T)
    inputs = GenerationInputs(source=latents())
    none = context_of(pipeline, inputs, structure_strength=0.0)
    assert np.array_equal(none[:, :C], silence)
    rising = context_of(pipeline, inputs, structure_strength=[0.0, 1.0])
    share = np.linspace(0, 1, T)[:, None]
    np.testing.assert_allclose(rising[:, :C], share * hints + (1 - share) * silence, atol=1e-6)


def test_a_structure_of_its_own_and_codes(pipeline: Pipeline, structure: StructureCodec) -> None:
    other = latents(seed=2)
    context = context_of(pipeline, GenerationInputs(source=latents(), structure=other))
    assert np.array_equal(context[:, :C], structure.hints(other))
    codes = structure.codes(other)
    wanted = hints_of(codes, C)
    for given in (codes.tolist(), "".join(f"<|audio_code_{code}|>" for code in codes)):
        context = context_of(pipeline, GenerationInputs(), codes=given, seconds=T / 25)
        assert np.array_equal(context[:, :C], wanted[:T])


def test_a_source_that_is_no_cover_gives_its_structure_where_a_strength_asks_for_it(
    pipeline: Pipeline, structure: StructureCodec
) -> None:
    inputs, repaint = GenerationInputs(source=latents()), {"repaint": [{"start_s": 0.0, "end_s": 10.0}]}
    plain = context_of(pipeline, inputs, **repaint)
    asked = context_of(pipeline, inputs, **repaint, structure_strength=1.0)
    assert np.array_equal(plain[:, :C], pipeline.bundle.silence(T))
    assert np.array_equal(asked[:, :C], structure.hints(latents()))


def test_hints_stand_in_for_their_structure(pipeline: Pipeline) -> None:
    other = latents(seed=2)
    by_hints, by_structure = (
        pipeline.request("a", GenerationInputs(source=latents(), **given), structure_strength=0.5, seed=1)
        for given in ({"hints": pipeline.structure.hints(other)}, {"structure": other})
    )
    assert by_hints.context is not None
    assert np.array_equal(by_hints.context, by_structure.context)
    assert np.array_equal(by_hints.conditions[0].tokens, by_structure.conditions[0].tokens)


def test_codes_say_the_length_and_silence_follows_them(pipeline: Pipeline) -> None:
    codes = [3, 7, 1, 0]
    options = parse_options({"prompt": "a", "codes": codes})
    assert pipeline.lengths.total_frames(options) == 12
    context = context_of(pipeline, GenerationInputs(), codes=codes, seconds=T / 25)
    assert np.array_equal(context[:12, :C], hints_of(np.array(codes), C))
    assert np.array_equal(context[12:, :C], pipeline.bundle.silence(T)[12:])


def test_every_segment_has_its_part_of_the_hints(pipeline: Pipeline, structure: StructureCodec) -> None:
    source = latents(56)
    inputs = GenerationInputs(source=source)
    segment, tail = Segment(24, T, 8, 56), latents(T, 5)
    request = pipeline.composer.compose(parse_options({"prompt": "a"}), segment, inputs, tail)
    assert request.context is not None
    assert np.array_equal(request.context[8:, :C], structure.hints(source)[32:56])
    assert np.array_equal(request.context[:8, :C], tail[-8:])
    assert (request.context[:8, C:] == 0.0).all()
    assert (request.context[8:, C:] == 1.0).all()


def test_a_repaint_has_silence_inside_and_the_source_outside(pipeline: Pipeline) -> None:
    source = latents()
    context = context_of(pipeline, GenerationInputs(source=source), repaint=[{"start_s": 0.4, "end_s": 0.8}])
    inside = np.zeros(T, bool)
    inside[10:20] = True
    assert np.array_equal(context[~inside, :C], source[~inside])
    assert np.array_equal(context[inside, :C], pipeline.bundle.silence(T)[inside])
    assert np.array_equal(context[:, C], inside.astype(np.float32))


@pytest.mark.parametrize("task", ["extract", "complete"])
def test_a_task_for_tracks_has_the_source_itself(pipeline: Pipeline, task: str) -> None:
    request = pipeline.request("a", GenerationInputs(source=latents()), task=task)
    assert request.context is not None
    assert np.array_equal(request.context[:, :C], latents())
    assert (request.context[:, C:] == 1.0).all()
    assert (request.denoise, request.mask) == (1.0, None)


def test_a_lego_has_the_source_and_says_where_it_adds_to_it(pipeline: Pipeline) -> None:
    span = [{"start_s": 0.4, "end_s": 0.8}]
    request = pipeline.request("a", GenerationInputs(source=latents()), task="lego", repaint=span)
    assert request.context is not None
    assert np.array_equal(request.context[:, :C], latents())
    assert np.array_equal(np.flatnonzero(request.context[:, C] == 1.0), np.arange(10, 20))
    assert request.mask is None


def test_codes_make_a_cover(pipeline: Pipeline) -> None:
    assert task_of(parse_options({"prompt": "", "codes": [1]}), None) == "cover"
    options = parse_options({"prompt": "", "codes": [1, 2], "task": "cover"})
    check_task(options, None, pipeline.bundle)


def test_a_cover_s_strength_blends_with_the_instruction_for_new_music(built: Built) -> None:
    inputs = GenerationInputs(source=latents())
    with open_pipeline(built(conditions=True)) as opened:
        alone = [
            opened.request("a", inputs, **more).conditions for more in ({}, {"task": "text2music", "x0_strength": 1})
        ]
        blended = opened.request("a", inputs, cover_strength=0.75).conditions
        assert [one.weight for one in blended] == [0.75, 0.25]
        for found, (wanted,) in zip(blended, alone, strict=True):
            assert np.array_equal(found.tokens, wanted.tokens)
        assert not np.array_equal(alone[0][0].tokens, alone[1][0].tokens)
        assert len(opened.request("a", inputs, cover_strength=1.0).conditions) == 1
        curve = opened.request("a", inputs, cover_strength=[0.0, 1.0]).conditions
        np.testing.assert_allclose(np.add(curve[0].weight, curve[1].weight), 1.0, atol=1e-6)
        with pytest.raises(RequestError, match="has no effect unless the task is cover"):
            LongGeneration(opened, parse_options({"prompt": "a", "cover_strength": 0.5}))


def test_codes_may_be_as_large_as_the_demos() -> None:
    assert parse_codes(f"<|audio_code_{5**20 - 1}|>", 5**20) == [5**20 - 1]


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        ("", "expected codes"),
        ("hello", "expected codes, got 'hello'"),
        ([NUM_CODES], "the model has 0 to 24"),
        ("<|audio_code_99|>", "code 0 is 99"),
    ],
)
def test_codes_that_do_not_exist_are_refused(codes: Any, match: str) -> None:
    with pytest.raises(RequestError, match=match):
        parse_codes(codes, NUM_CODES)


@pytest.mark.parametrize(
    ("options", "inputs", "match"),
    [
        ({"structure_strength": 0.5}, GenerationInputs(), "has no effect without structure to keep"),
        ({"codes": [1]}, GenerationInputs(structure=latents()), "has no effect beside codes"),
    ],
)
def test_what_has_no_effect_is_refused(
    pipeline: Pipeline, options: dict[str, Any], inputs: GenerationInputs, match: str
) -> None:
    with pytest.raises(RequestError, match=match):
        LongGeneration(pipeline, parse_options({"prompt": "a", **options}), inputs)


def test_a_model_without_structure_takes_none(built: Built) -> None:
    with open_pipeline(built()) as plain:
        assert plain.structure is None
        for options, inputs in (
            ({"codes": [1]}, GenerationInputs()),
            ({}, GenerationInputs(structure=latents())),
            ({"structure_strength": 0.5}, GenerationInputs(source=latents())),
        ):
            with pytest.raises(RequestError, match=r"\[structure\]|makes nothing of it"):
                LongGeneration(plain, parse_options({"prompt": "a", **options}), inputs).next_request()
        assert plain.request("a", GenerationInputs(source=latents())).denoise == 0.7
