from __future__ import annotations

import pytest

from server.asgi.problems import MAX_FINDINGS, ProblemError
from server.protocols.mcp.prompts import MAX_ARGUMENT, PROMPTS


def test_an_argument_that_looks_like_a_place_for_another_stays_as_it_is() -> None:
    text = PROMPTS["cover"].filled({"file": "{style}" * 200, "style": "x" * MAX_ARGUMENT})
    assert "{style}{style}" in text
    assert text.count("x" * MAX_ARGUMENT) == 1


def test_wrong_arguments_are_named_up_to_a_limit() -> None:
    with pytest.raises(ProblemError, match="/arguments/a0: is not known") as caught:
        PROMPTS["song"].filled({f"a{index}": "" for index in range(1000)})
    assert len(caught.value.errors) == MAX_FINDINGS
    with pytest.raises(ProblemError, match="/arguments/about: has more than 2000 characters"):
        PROMPTS["song"].filled({"about": "x" * 2001})
    with pytest.raises(ProblemError, match="/arguments/style: is missing"):
        PROMPTS["cover"].filled({"file": "a"})
