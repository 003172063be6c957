"""`[planner.plan]`: fields, tokens, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.tiny_planner import PLAN

from runtime.config.explain import validated
from runtime.config.plan_spec import PlanSpec
from runtime.errors import ConfigError

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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"header": PLAN["header"][:1]}, "header has bpm, expected meter once"),
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
