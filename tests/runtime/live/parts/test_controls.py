"""The controls' model, its schema, and checks of what clients send."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.live_simulation import CHANNELS, MODEL

from runtime.base.errors import RequestError
from runtime.live.parts.controls import CONTROL_NAMES, EXCLUDED, check_controls, controls_schema, prompt_weights
from runtime.live.protocol.messages import LivePrompt
from runtime.requests.options import GenerationOptions, StepOptions


def test_every_option_of_a_generation_is_a_control_or_excluded() -> None:
    assert set(GenerationOptions.model_fields) | {"variation", "loop_bars"} == set(CONTROL_NAMES) | set(EXCLUDED)


def test_the_schema_marks_the_kind_and_has_the_models_defaults() -> None:
    properties = controls_schema(MODEL)["properties"]
    kinds = {name: schema["x-kind"] for name, schema in properties.items()}
    assert {name for name, kind in kinds.items() if kind == "step"} == set(StepOptions.model_fields)
    assert set(kinds.values()) == {"step", "generation"}
    assert (properties["guidance"]["default"], properties["momentum"]["default"]) == (3.0, -0.75)
    assert properties["denoise"]["x-needs-source"] is True


@pytest.mark.parametrize(
    ("patch", "field", "text"),
    [
        ({"guidance": 99.0}, "values.guidance", "from 0 to 50"),
        ({"guidnce": None}, "values.guidnce", "did you mean guidance"),
        ({"solver": "heun"}, "values.solver", "ode"),
        ({"channel_gain": [1.0] * (CHANNELS + 1)}, "values.channel_gain", "channels"),
        ({"prompt": "x"}, "values.prompt", "leave prompt out"),
    ],
)
def test_a_wrong_patch_names_the_member(patch: dict[str, object], field: str, text: str) -> None:
    with pytest.raises(RequestError, match=text) as caught:
        check_controls(patch, MODEL)
    assert caught.value.field == field


def test_what_the_bundle_makes_nothing_of_is_no_control() -> None:
    model = replace(MODEL, untaken=frozenset({"lyrics", "bpm"}))
    assert {"lyrics", "bpm"} <= controls_schema(MODEL)["properties"].keys()
    assert not {"lyrics", "bpm"} & controls_schema(model)["properties"].keys()
    assert check_controls({"bpm": 90}, MODEL) == {"bpm": 90}
    with pytest.raises(RequestError, match="the bundle makes nothing of it"):
        check_controls({"bpm": 90}, model)


def test_equal_prompts_become_one() -> None:
    assert prompt_weights([LivePrompt(text="a"), LivePrompt(text="a", weight=2.0)], MODEL, "items") == {"a": 3.0}


def test_null_stays_null_in_a_checked_patch() -> None:
    assert check_controls({"guidance": None, "shift": 2}, MODEL) == {"guidance": None, "shift": 2.0}
