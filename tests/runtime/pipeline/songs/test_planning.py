"""Planned generations: metadata and codes by the planner, ahead of the segments that need them."""

from __future__ import annotations

import doctest
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import Built
from helpers.factories import MEANING, TinySpec
from helpers.lock_check import lock_checked
from helpers.paths import ROOT
from helpers.plans import plans_with_and_without_drafts
from helpers.tiny_structure import FRAMES_PER_CODE, NUM_CODES, hints_of
from numpy.typing import NDArray

from runtime.base.errors import DrainingError, GenerationCancelledError, QueueTimeoutError, RequestError, TickError
from runtime.config.deployment import Deployment
from runtime.config.option_ranges import OptionRanges
from runtime.config.planner import FieldSpec
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration, generate_latents
from runtime.pipeline.meanings import PromptReader
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from runtime.pipeline.songs.planner import Caller, Planner, plan_seed
from runtime.pipeline.songs.planning import is_planned
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.prompt_words import PromptMeaning
from runtime.tick.language.sequence import SequenceRequest
from runtime.tick.loop.record import TickRecord

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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_of_another_size_changes_no_plan(built: Built, temperature: float) -> None:
    deployment = built(planner={"capacity": 512, "draft": True}, conditions=True)
    drafted, plain, num_drafted = plans_with_and_without_drafts(
        deployment, seconds=2.4, plan_guidance=2.0, plan_temperature=temperature
    )
    assert drafted == plain
    assert drafted["caption"]
    assert num_drafted > 0


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


def test_a_tempo_that_the_model_does_not_take_is_not_filled_in(pipeline: Pipeline) -> None:
    free = LongGeneration(pipeline, options())
    bpm = free.options.bpm
    assert bpm is not None
    assert free.metadata().plan["bpm"] == f"{bpm:g}"
    taken = OptionRanges.model_validate({"bpm": {"min": bpm + 1} if bpm < 165 else {"max": bpm - 1}})
    narrow = replace(pipeline, bundle=pipeline.bundle.model_copy(update={"options": taken}))
    generation = LongGeneration(with_planner(narrow), options())
    assert generation.metadata().plan["bpm"] == f"{bpm:g}"
    assert generation.options.bpm is None


def test_a_cache_without_room_for_all_codes_is_filled_again(small: Pipeline) -> None:
    submitted: list[SequenceRequest] = []
    submit = small.loop.submit_sequence

    def note(request: SequenceRequest, *rest: Any, **more: Any) -> str:
        submitted.append(request)
        return submit(request, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.loop, "submit_sequence", note)
        found = codes(LongGeneration(small, options(seconds=12.0, negative_prompt="noise")))
    assert small.planner is not None
    assert len(found) == 100
    assert len(submitted) > 2
    first, second, third = submitted[:3]
    assert first.prompt != first.negative
    size = len(first.prompt)
    assert second.prompt[:size] == third.prompt[:size] == first.prompt
    assert first.max_tokens + size <= 96
    heard = second.prompt[size:]
    assert second.negative == first.negative + heard
    ends = np.cumsum([request.max_tokens // 2 for request in submitted])
    assert found[ends[0] - len(heard) // 2 : ends[0]] == small.planner.spec.codes.numbers(heard)
    assert codes(LongGeneration(small, options(seconds=12.0, negative_prompt="noise"))) == found


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
            LongGeneration(plain, parse_options({"prompt": "a", "plan": True}))


def test_the_examples_of_its_page(pipeline: Pipeline, form: Pipeline) -> None:
    section = (ROOT / "configs/docs/pages/generate.md").read_text(encoding="utf-8").partition("\n## Plans\n")[2]
    code = "".join(part.partition("```")[0] for part in section.split("```python\n")[1:3])
    test = doctest.DocTestParser().get_doctest(code, {"pipeline": pipeline, "form": form}, "generate.md", None, 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("closes_plan", [False, True])
def test_closing_a_generation_or_its_plan_ends_its_sequence(closes_plan: bool, pipeline: Pipeline) -> None:
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
    if closes_plan:
        plan.close()
    else:
        generation.close()
    thread.join(60)
    assert [type(error) for error in ended] == [GenerationCancelledError]


def test_a_generator_that_is_closed_ends_the_plan(pipeline: Pipeline) -> None:
    generation = LongGeneration(pipeline, options(seconds=60.0))
    pieces = generate_latents(pipeline, generation)
    next(pieces)
    pieces.close()
    with pytest.raises(TickError, match="cancelled"):
        codes(generation)


def test_what_is_made_is_there_while_the_plan_of_what_follows_is_waited_for(pipeline: Pipeline) -> None:
    generation, goes_on = LongGeneration(pipeline, options(seconds=2.4)), threading.Event()
    assert generation.num_segments > 1
    assert generation.plan is not None
    hints = generation.plan.hints

    def gated(start_frame: int, frames: int) -> NDArray[np.float32]:
        assert start_frame == 0 or goes_on.wait(60)
        return hints(start_frame, frames)

    generation.plan.hints = gated  # type: ignore[method-assign]
    pieces = generate_latents(pipeline, generation)
    first = next(pieces)
    assert not goes_on.is_set()
    goes_on.set()
    made = np.concatenate([first, *pieces])
    assert np.array_equal(made, whole(pipeline, LongGeneration(pipeline, options(seconds=2.4))))


@pytest.fixture(scope="module")
def form(built: Built) -> Iterator[Pipeline]:
    with open_pipeline(built(planner={"capacity": 1024, "plan": True})) as opened:
        yield opened


def with_words(form: Pipeline) -> Pipeline:
    """A plan with words for its layers."""
    assert form.planner is not None
    assert form.planner.spec.plan is not None
    words = {"drums": ("drums", "no drums"), "bass": ("bass", "no bass")}
    return with_planner(form, plan=form.planner.spec.plan.model_copy(update={"layer_words": words}))


def test_a_generation_in_sections_says_them_and_follows_their_hints(form: Pipeline) -> None:
    generation = LongGeneration(form, options(seconds=2.4, plan_guidance=None, lyrics="[break] [drop]"))
    assert list(generation.metadata().plan) == ["bpm", "meter", "sections"], "before its codes are made"
    made = whole(form, generation)
    found = generation.metadata().plan
    assert [each["kind"] for each in found["sections"]][:1] == ["break"]
    assert (found["sections"][0]["start_s"], found["sections"][-1]["end_s"]) == (0.0, 2.4)
    assert len(found["codes"]) == -(-len(made) // FRAMES_PER_CODE)
    assert found["meter"] in ("4/4", "3/4")
    same = LongGeneration(form, options(seconds=2.4, plan_guidance=None, codes=found["codes"]))
    assert np.array_equal(made, whole(form, same))
    assert np.array_equal(made, whole(form, LongGeneration(form, generation.options)))


def test_sections_are_named_in_the_prompts_of_their_frames(form: Pipeline) -> None:
    pipeline = with_words(form)
    generation = LongGeneration(pipeline, options(seconds=6.0, plan_guidance=None, bpm=144))
    counts = set()
    while (request := generation.next_request()) is not None:
        total = sum(np.broadcast_to(condition.weight, request.frames) for condition in request.conditions)
        assert np.allclose(total, 1.0)
        counts.add(len(request.conditions))
        generation.append(np.zeros((request.frames, C), np.float32))
    assert generation.options.prompt == "calm"
    layers = {tuple(each["layers"]) for each in generation.metadata().plan["sections"]}
    assert (max(counts) > 1) == (len(layers) > 1)
    assert max(counts) <= len(layers)


def test_what_is_played_is_told_at_the_tempo_of_the_plan(form: Pipeline) -> None:
    class Prompts(PromptReader):
        told: ClassVar[list[Any]] = []

        def meanings(self, options: GenerationOptions, seed: int) -> tuple[PromptMeaning, ...]:
            self.told.append((options, seed))
            return ()

    pipeline = replace(form)
    vars(pipeline)["prompts"] = Prompts(form.bundle, form.text_encoder, form.planner)
    generation = LongGeneration(pipeline, options(seconds=2.4, plan_guidance=None))
    assert generation.meanings == ()
    (said, seed), header = Prompts.told[-1], generation.metadata().plan
    assert (said.prompt, said.bpm, said.time_signature, seed) == ("calm", header["bpm"], int(header["meter"][0]), 3)
    assert generation.options.bpm is None, "what was given stays"
    generation.close()


def test_planner_and_sections_get_what_the_seed_draws(built: Built) -> None:
    planned, words = list[str](), ("chant", "no")
    with open_pipeline(built(planner={"capacity": 1024, "plan": True}, meaning=True, words=words)) as opened:
        pipeline = with_words(opened)
        tokens_of = pipeline.planner.tokens
        vars(pipeline.planner)["tokens"] = lambda text: planned.append(text) or tokens_of(text)
        generation = LongGeneration(pipeline, options(prompt="chant", seconds=1.2, plan_guidance=None))
        request = generation.next_request()
        assert request is not None
        (section,) = generation.metadata().plan["sections"][:1]
        said = ", ".join(name if name in section["layers"] else f"no {name}" for name in ("drums", "bass"))
        played = generation.meanings[0].played_text
        assert played in [f"chant, {genre}" for genre in MEANING["genre"]]
        assert any(text.startswith(played) for text in planned)
        assert np.array_equal(request.conditions[0].tokens, pipeline.text_encoder.encode(f"{played}, {said}"))
        generation.close()


@pytest.mark.parametrize("default", [True, False])
def test_the_bundle_says_whether_it_plans_where_options_do_not(form: Pipeline, default: bool) -> None:
    assert form.bundle.planner is not None
    bundle = form.bundle.model_copy(update={"planner": form.bundle.planner.model_copy(update={"default": default})})
    asked: dict[str, Any] = {"plan_guidance": None}
    assert is_planned(options(**asked), GenerationInputs(), bundle) == default
    assert is_planned(options(**asked, plan=True), GenerationInputs(), bundle)
    assert not is_planned(options(**asked, plan=False), GenerationInputs(), bundle)
    assert is_planned(options(**asked, lyrics="[verse]"), GenerationInputs(), bundle)
    with pytest.raises(RequestError, match="lyrics: has no effect without a plan"):
        is_planned(options(**asked, plan=False, lyrics="[verse]"), GenerationInputs(), bundle)


def test_short_generations_may_be_left_unplanned(form: Pipeline) -> None:
    assert form.bundle.planner is not None
    bundle = form.bundle.model_copy(update={"planner": form.bundle.planner.model_copy(update={"default_from_s": 5.0})})
    asked = [options(seconds=seconds, plan_guidance=None) for seconds in (None, 4.9, 5.0)]
    assert [is_planned(each, GenerationInputs(), bundle) for each in asked] == [False, False, True]
    assert is_planned(options(seconds=1.0, plan=True), GenerationInputs(), bundle)


def test_words_to_sing_are_refused_before_anything_is_made(form: Pipeline) -> None:
    with pytest.raises(RequestError, match="this model does not sing"):
        LongGeneration(form, options(plan_guidance=None, lyrics="[verse] la la la"))


@pytest.mark.parametrize("has_place", [True, False])
def test_a_caller_that_leaves_ends_the_thinking_or_the_wait_for_it(deployment: Deployment, has_place: bool) -> None:
    opened = open_pipeline(deployment)  # its loop ticks by hand
    loop, caller, ended = opened.loop, Caller(), list[GenerationCancelledError]()
    places = deployment.runtime.planner_sequences + deployment.runtime.queue
    for number in range(0 if has_place else places):
        loop.submit_sequence(SequenceRequest(f"other {number}", (1,), max_tokens=5), lambda event: None)

    def think() -> None:
        try:
            LongGeneration(opened, options(), caller=caller)
        except GenerationCancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=think)
    thread.start()
    while has_place and loop.tick() is None:
        time.sleep(0.001)
    caller.leave()
    while has_place and thread.is_alive():
        loop.tick()
        time.sleep(0.001)
    thread.join(60)
    assert [str(error).endswith("was cancelled") for error in ended] == [True]
    assert len(loop._shared.registry) == (0 if has_place else places)
    opened.close()


@pytest.mark.parametrize("free_places", [0, 1])
def test_who_waits_for_a_slot_waits_no_longer_than_its_time(deployment: Deployment, free_places: int) -> None:
    """With a waiting place, too."""
    opened = open_pipeline(deployment)
    others = deployment.runtime.planner_sequences + deployment.runtime.queue - free_places
    for number in range(others):
        request = SequenceRequest(f"other {number}", (1,), max_tokens=5)
        opened.loop.submit_sequence(request, lambda event: None)
    with pytest.raises(QueueTimeoutError, match=r"within 0\.01 s"):
        LongGeneration(opened, options(), caller=Caller(place_timeout_s=0.01))
    opened.loop._ticks._drain_inbox()
    assert len(opened.loop._shared.registry) == others, "what waited is not in the loop any more"
    opened.close()


def test_engines_that_are_swapped_while_a_plan_is_written_leave_it_as_it_is(deployment: Deployment) -> None:
    with open_pipeline(deployment) as opened:
        expected = codes(LongGeneration(opened, options(seconds=6.0)))
    ticked, go_on = threading.Event(), threading.Event()

    def pause(record: TickRecord) -> None:
        ticked.set()
        go_on.wait(60)

    with open_pipeline(deployment) as opened:
        old = opened.engines
        generation = LongGeneration(opened, options(seconds=6.0))
        opened.loop.observers.append(pause)
        with ThreadPoolExecutor(2) as pool:
            finishing = pool.submit(codes, generation)
            assert ticked.wait(60)
            reloading = pool.submit(opened.reload)
            while opened.loop._shared.inbox._queue.empty():
                assert not reloading.done()
                time.sleep(0.001)
            assert not finishing.done()
            go_on.set()
            reloading.result(60)
            assert finishing.result(60) == expected
        assert opened.engines is not old


def test_a_loop_that_has_ended_makes_no_plan(deployment: Deployment) -> None:
    with open_pipeline(deployment) as opened:
        generation = LongGeneration(opened, options())
    with pytest.raises(DrainingError):
        codes(generation)


def test_a_caller_that_leaves_ends_what_it_waits_for_once() -> None:
    calls = list[str]()
    caller = lock_checked(Caller, "_on_leave")("someone")
    caller.on_leave(lambda: calls.append("earlier"))
    caller.on_leave(lambda: calls.append("newest"))
    assert not caller.has_left
    caller.leave()
    caller.leave()
    assert (calls, caller.has_left) == (["newest"], True)
    caller.on_leave(lambda: calls.append("late"))
    assert calls == ["newest", "late"]


def test_every_sequence_of_a_plan_has_a_seed_of_its_own() -> None:
    seeds = {plan_seed(seed, *numbers) for seed in (1, 2) for numbers in ((0,), (1,), (0, 1), (-1, 0))}
    assert len(seeds) == 8
    assert plan_seed(1, 0) == plan_seed(1, 0)
