"""`[planner.plan]`: fields, tokens, and what is refused."""

from __future__ import annotations

from typing import Any, Final

import pytest
from helpers.tiny_planner import KEYED_PLAN, PLAN

from runtime.base.errors import ConfigError
from runtime.config.explain import validated
from runtime.config.plan_spec import PlanSpec

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
    ("changes", "expected"),
    [
        ({"tempos": {"polka": [90, 100]}}, "tempos has 'polka' from 90 to 100 bpm"),
        ({"tempos": {"3/4": [100, 90]}}, "tempos has '3/4' from 100 to 90 bpm"),
        ({"header": PLAN["header"][:1]}, "header has bpm, expected meter once"),
        ({"openings": 2}, "header has bpm, meter, expected key once"),
        ({"beats": [4]}, "beats has 1 numbers, expected one for each of 2"),
        ({"materials": []}, "materials has 0 numbers, expected one for each of 4"),
        ({"beginning": "prelude"}, "there is no kind 'prelude'"),
        ({"ending": "coda"}, "there is no kind 'coda', there are verse, chorus, break, outro"),
        ({"tags": {"drop": "hook"}}, "there is no kind 'hook'"),
        ({"bar_markers": {"first": 32, "count": 3}}, "bar_markers has 3 tokens, sections have up to 4 bars"),
        ({"bars": {**PLAN["bars"], "values": ["0"]}}, "values of bars have to be numbers above 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        validated(PlanSpec, {**PLAN, **changes}, "plan")


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": {"4/4": [0.0]}}, "steps and onsets are read together: give both, or neither"),
        ({"onsets": [[], [0] * 5]}, "steps and onsets are read together: give both, or neither"),
        ({"steps": {"5/4": [0.0]}, "onsets": [[], []]}, "steps has '5/4', which is no value of header"),
        ({"steps": {"4/4": [0.0, 1.0]}, "onsets": [[], []]}, "steps: expected less than 1"),
        ({"steps": {"4/4": [0.0]}, "onsets": [[], [-1]]}, "onsets.1.0"),
    ],
)
def test_steps_that_do_not_fit_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        validated(PlanSpec, {**PLAN, **changes}, "plan")


def test_a_scale_is_its_modes_steps_above_the_key() -> None:
    keyed = validated(PlanSpec, KEYED_PLAN, "plan")
    assert keyed.scale((9, 12, 100, 120)) == 1 << 0 | 1 << 4 | 1 << 7
    assert keyed.scale((9, 12, 100, 121)) == 1 << 0 | 1 << 3 | 1 << 7
    assert keyed.scale((8, 13, 110, 120)) == 1 << 10 | 1 << 2 | 1 << 5, "B flat, and over the octave D and F"
    assert SPEC.scale((9, 12)) == 0b1111_1111_1111
    assert (keyed.tonic((9, 12, 100, 121)), keyed.tonic((8, 13, 110, 120))) == (0, 10)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"scales": []}, "scales and pitches are read together: give both, or neither"),
        ({"pitches": []}, "scales and pitches are read together: give both, or neither"),
        ({"header": KEYED_PLAN["header"][:2]}, "header has bpm, meter, expected key once"),
        ({"header": KEYED_PLAN["header"][:3]}, "header has bpm, meter, key, expected mode once"),
        ({"scales": [[0, 4, 7]]}, "scales has 1 of them, expected one for each of major, minor"),
        ({"scales": [[0, 4, 12], [0]]}, "scales.0.2"),
        ({"pitches": [[0, 1, 4096, 2, 3], [0] * 5]}, "pitches.0.2"),
        ({"pitches": [[0, 1, -1, 2, 3], [0] * 5]}, "pitches.0.2"),
        (
            {"header": [*PLAN["header"], {"name": "key", "first": 100, "values": ["a", "b"]}, KEYED_PLAN["header"][3]]},
            "values of key are a, b; expected c, c#, d, d#",
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        validated(PlanSpec, {**KEYED_PLAN, **changes}, "plan")
