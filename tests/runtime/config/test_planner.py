from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from helpers.factories import tiny_bundle
from helpers.tiny_planner import FIRST_GROUP, KEYED_PLAN, PLAN, SECOND_GROUP, planner_toml

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.explain import validated
from runtime.config.plan_spec import PlanSpec
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


SPEC = validated(PlanSpec, PLAN, "plan")


def test_tokens_stand_for_the_values_of_their_field() -> None:
    assert (SPEC.kind.token("break"), SPEC.kind.value(18), list(SPEC.kind.tokens)) == (18, "break", [16, 17, 18, 19])
    assert [SPEC.field_at(place).name for place in range(7)] == [
        "bpm",
        "meter",
        "kind",
        "layers",
        "bars",
        "kind",
        "layers",
    ]
    assert SPEC.field("meter").values == ("4/4", "3/4")
    with pytest.raises(ValueError, match="tuple"):
        SPEC.kind.token("solo")


def test_a_beginning_may_be_short() -> None:
    values = {**PLAN, "beginning": "verse", "beginning_bars": 2}
    spec = validated(PlanSpec, values, "plan")
    assert [spec.bars_of_kind(kind) for kind in ("verse", "chorus")] == [[1, 2], [1, 2, 4]]
    bars = {**PLAN["bars"], "values": ["4"]}
    assert validated(PlanSpec, {**values, "bars": bars}, "plan").bars_of_kind("verse") == [4]
    assert validated(PlanSpec, {**PLAN, "beginning": "verse"}, "plan").bars_of_kind("verse") == [1, 2, 4]


def with_tempos(values: list[str], tempos: dict[str, list[int]]) -> PlanSpec:
    """A plan whose prompts name genres (tokens 200 to 202) and tempos (from 300 on)."""
    genre = {"name": "genre", "first": 200, "values": ["house", "waltz", "noise"]}
    header = [genre, {"name": "bpm", "first": 300, "values": values}, PLAN["header"][1]]
    return validated(PlanSpec, {**PLAN, "header": header, "tempos": tempos}, "plan")


TWO_KEYS = {"name": "key", "first": 100, "values": ["a", "b"]}


def test_a_tempo_is_the_middle_of_its_range() -> None:
    spec = with_tempos(["60", "68", "80"], {})
    assert [spec.tempo(token) for token in (300, 301, 302)] == [64, 74, 86]
    assert with_tempos(["90"], {}).tempo(300) == 90


def test_what_a_prompt_names_limits_its_tempo() -> None:
    spec = with_tempos(["60", "70", "80", "90", "100"], {"house": [80, 99], "waltz": [65, 70], "noise": [1, 2]})
    assert spec.tempos_without([200]) == [300, 301, 304], "85 and 95 bpm are left"
    assert spec.tempos_without([201]) == [302, 303, 304], "a part of a range is enough"
    assert spec.tempos_without([200, 201]) == [304], "either genre's"
    assert spec.tempos_without([200, 300]) == [], "the prompt names a tempo"
    assert spec.tempos_without([202]) == [], "no tempo fits: none is ruled out"
    assert spec.tempos_without([7]) == []


@pytest.mark.parametrize(
    ("base", "changes", "expected"),
    [
        (PLAN, {"tempos": {"polka": [90, 100]}}, "tempos has 'polka' from 90 to 100 bpm"),
        (PLAN, {"tempos": {"3/4": [100, 90]}}, "tempos has '3/4' from 100 to 90 bpm"),
        (PLAN, {"header": PLAN["header"][:1]}, "header has bpm, expected meter once"),
        (PLAN, {"openings": 2}, "header has bpm, meter, expected key once"),
        (PLAN, {"beats": [4]}, "beats has 1 numbers, expected one for each of 2"),
        (PLAN, {"materials": []}, "materials has 0 numbers, expected one for each of 4"),
        (PLAN, {"beginning": "prelude"}, "there is no kind 'prelude'"),
        (PLAN, {"ending": "coda"}, "there is no kind 'coda', there are verse, chorus, break, outro"),
        (PLAN, {"tags": {"drop": "hook"}}, "there is no kind 'hook'"),
        (PLAN, {"bar_markers": {"first": 32, "count": 3}}, "bar_markers has 3 tokens, sections have up to 4 bars"),
        (PLAN, {"bars": {**PLAN["bars"], "values": ["0"]}}, "values of bars have to be numbers above 0"),
        (PLAN, {"steps": {"4/4": [0.0]}}, "steps and onsets are read together: give both, or neither"),
        (PLAN, {"onsets": [[], [0] * 5]}, "steps and onsets are read together: give both, or neither"),
        (PLAN, {"steps": {"5/4": [0.0]}, "onsets": [[], []]}, "steps has '5/4', which is no value of header"),
        (PLAN, {"steps": {"4/4": [0.0, 1.0]}, "onsets": [[], []]}, "steps: expected less than 1"),
        (PLAN, {"steps": {"4/4": [0.0]}, "onsets": [[], [-1]]}, "onsets.1.0"),
        (KEYED_PLAN, {"scales": []}, "scales and pitches are read together: give both, or neither"),
        (KEYED_PLAN, {"pitches": []}, "scales and pitches are read together: give both, or neither"),
        (KEYED_PLAN, {"header": KEYED_PLAN["header"][:2]}, "header has bpm, meter, expected key once"),
        (KEYED_PLAN, {"header": KEYED_PLAN["header"][:3]}, "header has bpm, meter, key, expected mode once"),
        (KEYED_PLAN, {"scales": [[0, 4, 7]]}, "scales has 1 of them, expected one for each of major, minor"),
        (KEYED_PLAN, {"scales": [[0, 4, 12], [0]]}, "scales.0.2"),
        (KEYED_PLAN, {"pitches": [[0, 1, 4096, 2, 3], [0] * 5]}, "pitches.0.2"),
        (KEYED_PLAN, {"pitches": [[0, 1, -1, 2, 3], [0] * 5]}, "pitches.0.2"),
        (
            KEYED_PLAN,
            {"header": [*PLAN["header"], TWO_KEYS, KEYED_PLAN["header"][3]]},
            "values of key are a, b; expected",
        ),
    ],
)
def test_a_plan_that_does_not_fit_together_is_refused(
    base: dict[str, Any], changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        validated(PlanSpec, {**base, **changes}, "plan")


STEPS: Final = {"4/4": [0.0, 0.25, 0.5, 0.75], "96": [0.0, 0.667], "minor": [0.0]}


def test_the_last_field_that_has_steps_says_where_in_a_beat_notes_begin() -> None:
    table = {**KEYED_PLAN, "steps": STEPS, "onsets": [[], [0, 1, 2, 4, 31]]}
    spec = validated(PlanSpec, table, "plan")
    bpm, meter, _, mode = spec.header
    for values, expected in (
        (("96", "4/4", "major"), (0.0, 0.25, 0.5, 0.75)),
        (("96", "3/4", "major"), (0.0, 0.667)),
        (("120", "3/4", "major"), ()),
        (("96", "4/4", "minor"), (0.0,)),
    ):
        tokens = [field.token(value) for field, value in zip((bpm, meter, mode), values, strict=True)]
        assert spec.steps_of((*tokens[:2], 100, tokens[2])) == expected
    assert SPEC.steps_of((9, 12)) == ()


def test_a_scale_is_its_modes_steps_above_the_key() -> None:
    keyed = validated(PlanSpec, KEYED_PLAN, "plan")
    assert keyed.scale((9, 12, 100, 120)) == 1 << 0 | 1 << 4 | 1 << 7
    assert keyed.scale((9, 12, 100, 121)) == 1 << 0 | 1 << 3 | 1 << 7
    assert keyed.scale((8, 13, 110, 120)) == 1 << 10 | 1 << 2 | 1 << 5, "B flat, and over the octave D and F"
    assert SPEC.scale((9, 12)) == 0b1111_1111_1111
    assert (keyed.tonic((9, 12, 100, 121)), keyed.tonic((8, 13, 110, 120))) == (0, 10)
