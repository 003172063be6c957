"""Planned generations: metadata and codes by the planner, ahead of the segments that need them."""

from __future__ import annotations

import doctest
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.factories import TinySpec
from helpers.paths import ROOT
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES, hints_of
from numpy.typing import NDArray

from runtime.config.deployment import Deployment
from runtime.config.planner import FieldSpec
from runtime.errors import DrainingError, RequestError, TickError
from runtime.language.sequence import SequenceRequest
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_latents
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.planning import Planner, is_planned
from runtime.requests.options import parse_options

SPEC = TinySpec()
T, C, RATE_HZ = SPEC.canvas_frames, SPEC.channels, SPEC.sample_rate_hz / SPEC.hop_samples
DURATION = FieldSpec(name="duration", option="seconds", kind="integer", minimum=1, maximum=3)


@pytest.fixture(scope="module")
def deployment(built: Built) -> Deployment:
    return built(planner={"capacity": 512}, conditions=True)


@pytest.fixture(scope="module")
def pipeline(deployment: Deployment) -> Iterator[Pipeline]:
    with open_pipeline(deployment) as opened:
        yield opened


def with_planner(pipeline: Pipeline, **changes: Any) -> Pipeline:
    """The same with other values in `[planner]`."""
    assert pipeline.planner is not None
    assert pipeline.structure is not None
    spec = pipeline.planner.spec.model_copy(update=changes)
    return replace(pipeline, planner=Planner(pipeline.bundle, spec, pipeline.loop, pipeline.structure))


@pytest.fixture
def small(pipeline: Pipeline) -> Pipeline:
    """Without thinking, and with a cache that has no room for long plans."""
    return with_planner(pipeline, capacity=96, thinking=None)


def options(**values: Any) -> Any:
    return parse_options({"prompt": "calm", "seed": 3, "seconds": 2.4, "plan_guidance": 2.0, **values})


def whole(pipeline: Pipeline, generation: LongGeneration) -> NDArray[np.float32]:
    return np.concatenate(list(generate_latents(pipeline, generation)))


def codes(generation: LongGeneration) -> list[int]:
    assert generation.plan is not None
    return generation.plan.finish()


def test_a_planned_generation_is_that_of_its_metadata_and_codes(pipeline: Pipeline) -> None:
    planned = LongGeneration(pipeline, options())
    made = whole(pipeline, planned)
    found = planned.metadata().plan
    assert found["codes"] == codes(planned)
    assert len(found["codes"]) == -(-len(made) // FRAMES_PER_CODE)
    assert all(0 <= code < NUM_CODES for code in found["codes"])
    assert len(set(found["codes"])) > 3
    assert 30 <= int(found["bpm"]) <= 300
    assert found["caption"]
    given = {"bpm": int(found["bpm"]), "language": found["language"], "codes": found["codes"]}
    same = LongGeneration(pipeline, options(plan_guidance=None, **given))
    assert same.plan is None
    assert np.array_equal(made, whole(pipeline, same))
    assert not np.array_equal(made, whole(pipeline, LongGeneration(pipeline, options(plan=False, plan_guidance=None))))


def test_the_same_seed_and_options_have_the_same_plan(pipeline: Pipeline) -> None:
    first, again, other = (LongGeneration(pipeline, options(seed=seed)) for seed in (5, 5, 6))
    assert codes(first) == codes(again) != codes(other)
    assert codes(LongGeneration(pipeline, options(seed=5, plan_temperature=0.0))) != codes(first)


def test_the_context_has_the_hints_of_the_codes(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=1.0))
    request = generation.next_request()
    assert request is not None
    assert request.context is not None
    hints = hints_of(np.array(codes(generation)), C)
    assert np.array_equal(request.context[:25, :C], hints[:25])
    generation.close()


def test_what_is_given_is_kept_and_the_rest_filled_in(pipeline: Pipeline) -> None:
    thinking = pipeline.bundle.planner.thinking if pipeline.bundle.planner else None
    assert thinking is not None
    longer = thinking.model_copy(update={"fields": (*thinking.fields, DURATION)})
    generation = LongGeneration(with_planner(pipeline, thinking=longer), options(bpm=90, seconds=None))
    found = generation.metadata()
    assert generation.options.bpm == 90
    assert found.plan["bpm"] == "90"
    assert generation.options.seconds == int(found.plan["duration"])
    assert generation.total_samples == generation.options.seconds * SPEC.sample_rate_hz
    assert generation.options.language == found.plan["language"]
    assert "language" not in found.options
    assert "codes" not in found.plan


def test_a_cache_without_room_for_all_codes_is_filled_again(small: Pipeline) -> None:
    submitted: list[SequenceRequest] = []
    submit = small.loop.submit_sequence

    def note(request: SequenceRequest, *rest: Any, **more: Any) -> str:
        submitted.append(request)
        return submit(request, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.loop, "submit_sequence", note)
        found = codes(LongGeneration(small, options(seconds=12.0)))
    assert small.planner is not None
    assert len(found) == 100
    assert len(submitted) > 2
    first, second, third = submitted[:3]
    size = len(first.prompt)
    assert second.prompt[:size] == third.prompt[:size] == first.prompt
    assert first.max_tokens + size <= 96
    heard = second.prompt[size:]
    assert second.negative == first.negative + heard
    ends = np.cumsum([request.max_tokens // 2 for request in submitted])
    assert found[ends[0] - len(heard) // 2 : ends[0]] == small.planner.spec.codes.numbers(heard)
    assert codes(LongGeneration(small, options(seconds=12.0))) == found


def test_a_prompt_that_has_no_room_is_refused(small: Pipeline) -> None:
    with pytest.raises(RequestError, match="the planner's cache has 96"):
        codes(LongGeneration(small, options(prompt="long " * 18)))


@pytest.mark.parametrize(
    ("values", "inputs"),
    [
        ({"plan": False}, GenerationInputs()),
        ({"codes": [1, 2]}, GenerationInputs()),
        ({}, GenerationInputs(structure=np.zeros((T, C), np.float32))),
        ({"task": "cover"}, GenerationInputs(source=np.zeros((T, C), np.float32))),
        ({"prompt": ""}, GenerationInputs(condition=np.zeros((2, 12), np.float32))),
    ],
)
def test_no_plan_where_something_else_says_the_structure(
    pipeline: Pipeline, values: dict[str, Any], inputs: GenerationInputs
) -> None:
    asked = options(plan_guidance=None, **values)
    assert not is_planned(asked, inputs, pipeline.bundle)
    assert LongGeneration(pipeline, asked, inputs).plan is None
    with pytest.raises(RequestError, match="plan_top_p: has no effect without a plan"):
        LongGeneration(pipeline, asked.model_copy(update={"plan_top_p": 0.5}), inputs)
    assert is_planned(options(task="text2music"), GenerationInputs(), pipeline.bundle)


def test_structure_options_work_on_the_plan(pipeline: Pipeline) -> None:
    request = LongGeneration(pipeline, options(structure_strength=0.0, seconds=1.0)).next_request()
    assert request is not None
    assert request.context is not None
    assert np.array_equal(request.context[:, :C], pipeline.bundle.silence(T))


def test_a_model_without_a_planner_has_no_plan(built: Built) -> None:
    with open_pipeline(built(structure=True)) as plain:
        assert LongGeneration(plain, parse_options({"prompt": "a"})).metadata().plan == {}
        with pytest.raises(RequestError, match="plan_top_p"):
            LongGeneration(plain, parse_options({"prompt": "a", "plan_top_p": 0.5}))
        with pytest.raises(RequestError, match="makes nothing of it"):
            LongGeneration(plain, parse_options({"prompt": "a", "plan": False}))


def test_the_readme_s_example(pipeline: Pipeline) -> None:
    section = (ROOT / "runtime" / "README.md").read_text(encoding="utf-8").partition("**Plans.**")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    test = doctest.DocTestParser().get_doctest(code, {"pipeline": pipeline}, "README", None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def test_closing_a_generation_ends_its_sequence(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=600.0, prompt="x"))
    started, ended = threading.Event(), list[BaseException]()
    plan = generation.plan
    assert plan is not None

    def ask() -> None:
        try:
            plan.codes(1)
            started.set()
            plan.finish()
        except TickError as error:
            ended.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert started.wait(60)
    generation.close()
    thread.join(60)
    assert [str(error) for error in ended] == ["the plan was cancelled"]


def test_a_generator_that_is_closed_ends_the_plan(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=60.0))
    pieces = generate_latents(pipeline, generation)
    next(pieces)
    pieces.close()
    with pytest.raises(TickError, match="cancelled"):
        codes(generation)


def test_a_loop_that_has_ended_makes_no_plan(deployment: Deployment) -> None:
    with open_pipeline(deployment) as opened:
        generation = LongGeneration(opened, options())
    with pytest.raises(DrainingError):
        codes(generation)
