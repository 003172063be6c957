from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_bundle
from helpers.tiny_planner import FIRST_GROUP, KEYED_PLAN, PLAN, SECOND_GROUP, planner_toml

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.explain import validated
from runtime.config.planner import NO_WINDOW, CodesSpec, FieldSpec, PlannerSpec, PromptSpec


def table(window: int = 0, capacity: int = 64) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(planner_toml(capacity, window, thinking=True, draft=True))["planner"]
    return found


def read(values: dict[str, Any]) -> PlannerSpec:
    return validated(PlannerSpec, values, "planner")


def test_a_bundle_with_a_planner_is_read(tmp_path: Path) -> None:
    planner = load_bundle(tiny_bundle(tmp_path, planner={"window": 20, "capacity": 48})).planner
    assert planner is not None
    assert planner.thinking is not None
    assert (planner.window_input, planner.capacity, planner.codes.count) == (20, 48, 25)
    assert [field.name for field in planner.thinking.fields] == ["bpm", "caption", "language"]
    assert len(planner.inputs.past) == len(planner.outputs.present) == 4


def test_without_a_window_every_position_is_seen() -> None:
    assert read(table()).window_input == NO_WINDOW


def test_a_code_is_its_groups_digits() -> None:
    codes = read(table()).codes
    assert codes.tokens(0) == (FIRST_GROUP[0], SECOND_GROUP[0])
    assert codes.tokens(13) == (FIRST_GROUP[0] + 3, SECOND_GROUP[0] + 2)
    assert [codes.number(codes.tokens(number)) for number in range(codes.count)] == list(range(25))


def test_codes_may_have_no_markers() -> None:
    codes = {name: value for name, value in table()["codes"].items() if name != "markers"}
    assert read({**table(), "codes": codes}).codes.markers is None


def test_one_group_is_an_offset_as_ace_step_has_it() -> None:
    codes = CodesSpec(prompt="", groups=({"first": 151_669, "count": 64_000},))  # type: ignore[arg-type]
    assert (codes.tokens(63_999), codes.number([151_670])) == ((215_668,), 1)


def test_prompts_are_filled_with_the_users_negative_in_place_of_the_caption() -> None:
    prompt = PromptSpec(prompt="{caption}|{lyrics}", negative="|{lyrics}", user_negative="{caption}|{lyrics}")
    values = {"caption": "a {lyrics} song", "lyrics": "la"}
    assert prompt.texts(values) == ("a {lyrics} song|la", "|la")
    assert prompt.texts(values, "noise") == ("a {lyrics} song|la", "noise|la")


def test_a_fields_choices() -> None:
    assert FieldSpec(name="bpm", kind="integer", minimum=8, maximum=11).choices == ("8", "9", "10", "11")
    assert FieldSpec(name="language", kind="choice", values=("en", "de")).choices == ("en", "de")
    assert FieldSpec(name="caption", kind="text").choices == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"capacity": 15}, "capacity is 15, expected at least 16"),
        ({"window": 40}, "draft.capacity"),
        ({"capacity": 50, "window": 20}, "capacity is 50, expected a multiple of prefill_tokens 16"),
        ({"capacity": 48, "window": 40}, "capacity is 48, expected at least 55"),
        ({"end_token": 280}, "end_token is 280, vocabulary is 280"),
        ({"vocabulary": 268}, "codes.groups.1 ends at token 270, vocabulary is 268"),
        ({"codes": {**table()["codes"], "markers": {"first": 279, "count": 2}}}, "codes.markers ends at token 281"),
        ({"outputs": {"present": ["one"]}}, "inputs.past has 4 names, outputs.present 1"),
        ({"codes": {"prompt": "", "groups": []}}, "codes.groups"),
        ({"plan": {**PLAN, "clock_markers": {"first": 265, "count": 16}}}, "plan.clock_markers ends at token 281"),
        ({"plan": {**PLAN, "recall": 280}}, "plan.recall ends at token 281, vocabulary is 280"),
        (
            {"plan": {**KEYED_PLAN, "pitches": [[0] * 4]}},
            r"plan.pitches is for \[4\] tokens, codes.groups have \[5, 5\]",
        ),
        (
            {"plan": {**PLAN, "steps": {"4/4": [0.0]}, "onsets": [[], [0] * 4]}},
            r"plan.onsets is for \[0, 4\] tokens, codes.groups have \[5, 5\]; 0 for a group of none",
        ),
        ({"plan": {**PLAN, "steps": {"4/4": [0.0]}, "onsets": [[0] * 5]}}, r"plan.onsets is for \[5\] tokens"),
        ({"verify_token": 4}, "did you mean verify_tokens"),
        ({"tokenizer": None}, "thinking and plan need a tokenizer"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_expected(changes: dict[str, Any], expected: str) -> None:
    values = table()
    if changes.get("window") == 40 and "capacity" not in changes:
        values["capacity"], values["draft"]["window"] = 96, 60
    with pytest.raises(ConfigError, match=expected):
        read({**values, **changes})


@pytest.mark.parametrize(
    "values", [{"kind": "integer", "minimum": 3, "maximum": 2}, {"kind": "choice"}, {"kind": "text", "values": ["a"]}]
)
def test_a_field_with_values_that_its_kind_does_not_have_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        validated(FieldSpec, {"name": "field", **values}, "field")
