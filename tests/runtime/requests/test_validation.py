"""Requests that do not fit the bundle or the engines are refused with the tensor, the dimension and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import tiny_bundle, tiny_deployment
from helpers.generations import CONTEXT, C, D, X, make, rand

from runtime.base.errors import RequestError, ShapeError
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.deployment import Deployment, load_deployment
from runtime.requests.request import MAX_CONDITIONS, Condition, GenerationRequest, LatentMask, StepParameters, Target
from runtime.requests.validation import check_request, plan_text_options, plans_texts, untaken_options

Model = tuple[Bundle, Deployment]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return model_in(tmp_path_factory.mktemp("tiny"))


def model_in(folder: Path, **changes: Any) -> Model:
    deployment = load_deployment(tiny_deployment(folder, codec=False, text_encoder=False, **changes))
    return load_bundle(deployment.bundle), deployment


def check(model: Model, **changes: Any) -> None:
    check_request(make("a", **changes), *model, condition_width=D)


def of_length(frames: int) -> GenerationRequest:
    return GenerationRequest(frames=frames, conditions=(Condition(rand(3, D)),), context=rand(frames, X))


@pytest.mark.parametrize("frames", CONTEXT)
def test_a_request_that_fits_is_accepted(frames: int, model: Model) -> None:
    check(model, frames=frames, source=rand(frames, C), negatives=(Condition(rand(32, D)),) * MAX_CONDITIONS)


@pytest.mark.parametrize(
    ("frames", "says"),
    [(31, "frames is 31, the decoder takes multiples of 2"), (128, r"(?s)frames is 128.*2\.\.64.*tickrt-build")],
)
def test_a_length_that_no_engine_takes_is_refused(frames: int, says: str, model: Model) -> None:
    with pytest.raises(ShapeError, match=says):
        check_request(of_length(frames), *model, condition_width=D)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"source": rand(32, 3)}, "source"),
        ({"noise": rand(32, 3)}, "noise"),
        ({"mask": LatentMask(1.0, rand(32, 3))}, "mask.original"),
        ({"mask": LatentMask(1.0, rand(32, C), rand(32, 3))}, "mask.noise"),
        ({"target": Target(rand(32, 3))}, "target.latents"),
        ({"context": rand(32, 3)}, "context"),
        ({"parameters": StepParameters(channel_gain=np.ones(3))}, "channel_gain"),
        ({"parameters": StepParameters(channel_gain=np.ones((32, 3)))}, "channel_gain"),
    ],
)
def test_another_number_of_channels_is_refused(changes: dict[str, Any], field: str, model: Model) -> None:
    with pytest.raises(RequestError, match="has 3") as caught:
        check(model, **changes)
    assert caught.value.field == field


def test_a_context_is_needed_where_the_decoder_takes_one_and_refused_elsewhere(model: Model, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=rf"needs a context \[T, {X}\]"):
        check(model, context=None)
    without = model_in(tmp_path, context=False)
    check(without, context=None)
    with pytest.raises(RequestError, match="the decoder takes 0"):
        check(without)


@pytest.mark.parametrize("group", ["conditions", "negatives"])
def test_conditions_are_checked_one_by_one(group: str, model: Model) -> None:
    good = Condition(rand(3, D))
    with pytest.raises(RequestError, match=f"at most {MAX_CONDITIONS}") as caught:
        check(model, **{group: (good,) * (MAX_CONDITIONS + 1)})
    assert caught.value.field == group
    with pytest.raises(RequestError, match=f"has width 5, the decoder takes {D}") as caught:
        check(model, **{group: (good, Condition(rand(3, 5)))})
    assert caught.value.field == f"{group}.1.tokens"
    with pytest.raises(ShapeError, match=rf"(?s){group}\.0 has 40 tokens.*1\.\.32 at 32 frames.*tickrt-build"):
        check(model, **{group: (Condition(rand(40, D)),)})


def test_a_condition_shorter_than_every_range_is_padded(model: Model) -> None:
    bundle, deployment = model
    tokens = deployment.shapes[0].tokens.model_copy(update={"min": 8})
    shapes = (deployment.shapes[0].model_copy(update={"tokens": tokens}),)
    check((bundle, deployment.model_copy(update={"shapes": shapes})), conditions=(Condition(rand(3, D)),))


OF_PARTS = {"timbre_strength", "structure_strength", "codes", "cover_strength"}


@pytest.mark.parametrize(
    ("parts", "untaken"),
    [
        ((), OF_PARTS),
        (("conditions",), {"structure_strength", "codes"}),
        (("structure",), {"timbre_strength", "cover_strength"}),
        (("conditions", "structure"), set()),
    ],
    ids=["neither", "conditions", "structure", "both"],
)
def test_options_of_parts_that_a_bundle_lacks_are_not_taken(
    parts: tuple[str, ...], untaken: set[str], tmp_path: Path
) -> None:
    bundle = load_bundle(tiny_bundle(tmp_path / "tiny", **dict.fromkeys(parts, True)))
    assert untaken_options(bundle) & OF_PARTS == untaken


def test_a_planner_takes_texts_that_the_decoder_does_not(tmp_path: Path) -> None:
    """Tempo and meter are in the plan's template, lyrics have its sections."""
    plain = load_bundle(load_deployment(tiny_deployment(tmp_path / "a")).bundle)
    thinking = load_bundle(load_deployment(tiny_deployment(tmp_path / "b", planner={})).bundle)
    form = load_bundle(load_deployment(tiny_deployment(tmp_path / "c", planner={"plan": True})).bundle)
    assert [plans_texts(bundle) for bundle in (plain, thinking, form)] == [False, True, True]
    assert not plan_text_options(plain) | plan_text_options(thinking)
    assert plan_text_options(form) == {"bpm", "time_signature", "lyrics"}
    assert {"bpm", "lyrics", "key", "plan"} <= untaken_options(plain)
    assert untaken_options(form) & {"bpm", "lyrics", "key", "plan"} == {"key"}
