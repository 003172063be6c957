"""Edits of a plan as messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.errors import RequestError
from runtime.sessions.protocol.messages import parse_client_message
from runtime.sessions.protocol.plan import SetPlan

SECTION = {"kind": "break", "layers": ["pads"], "bars": 8}


def parsed(**members: Any) -> Any:
    return parse_client_message(json.dumps({"type": "set_plan", "seq": 1, "start_s": 64.0, **members}))


def test_an_edit_has_sections_or_codes_or_both() -> None:
    message = parsed(sections=[SECTION])
    assert isinstance(message, SetPlan)
    assert message.sections is not None
    assert (message.sections[0].kind, message.sections[0].layers, message.sections[0].bars) == ("break", ["pads"], 8)
    assert parsed(sections=[]).sections == []
    assert parsed(codes=[5**20 - 1]).codes == [5**20 - 1]
    assert (len(parsed(sections=[SECTION], codes=[7]).sections), parsed(sections=[SECTION], codes=[7]).codes) == (
        1,
        [7],
    )


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, ""),
        ({"sections": [], "codes": [1]}, ""),
        ({"codes": []}, "codes"),
        ({"codes": [-1]}, "codes.0"),
        ({"sections": [{**SECTION, "layers": []}]}, "sections.0.layers"),
        ({"sections": [{**SECTION, "bars": 0}]}, "sections.0.bars"),
        ({"sections": [SECTION] * 65}, "sections"),
        ({"sections": [], "start_s": -1.0}, "start_s"),
    ],
)
def test_a_wrong_edit_names_its_member(members: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parsed(**members)
    assert caught.value.field == field
