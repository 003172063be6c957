"""Values of options: what they take, and the one sentence that refuses everything else."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from runtime.requests.option_types import (
    MAX_CURVE_VALUES,
    Adapters,
    Codes,
    DcwOptions,
    Gain,
    NoteOptions,
    Prompt,
    Span,
    UnitCurve,
    WeightedPrompt,
)

TOO_LONG = [0.5] * (MAX_CURVE_VALUES + 1)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (UnitCurve, 0.5),
        (UnitCurve, [0.0, 1.0]),
        (Gain, 8.0),
        (Gain, [1.0, 2.0]),
        (Gain, [[1.0, 2.0], [0.0, 0.5]]),
        (Codes, "<|audio_code_1|>"),
        (Codes, [0, 12]),
        (Prompt, "a"),
    ],
)
def test_what_a_value_takes(kind: Any, value: Any) -> None:
    assert TypeAdapter(kind).validate_python(value) == value


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (UnitCurve, 1.5, "expected a number from 0 to 1, or a list of 1 to 4096 such numbers"),
        (UnitCurve, TOO_LONG, "expected a number from 0 to 1, or a list of 1 to 4096 such numbers"),
        (UnitCurve, [], "expected a number from 0 to 1, or a list of 1 to 4096 such numbers"),
        (Gain, [9.0], "expected a number from 0 to 8, a list with one per latent channel, or a list of such lists"),
        (Codes, [-1], "expected codes such as <|audio_code_12|><|audio_code_7|>, or a list of 1 to 4096 numbers"),
        (Adapters, [{"id": "a"}, {"id": "a"}], "expected every adapter once"),
        (Span, {"start_s": 2.0, "end_s": 2.0}, "needs start_s < end_s"),
        (WeightedPrompt, {"text": "a", "start": 0.5, "end": 0.5}, "needs start < end"),
        (DcwOptions, {"mode": "high", "low": 0.1}, "mode high does not read low: leave it out"),
        (NoteOptions, {"pitch": 60, "start_s": 599.0, "seconds": 1.1}, "needs start_s + seconds <= 600"),
    ],
)
def test_what_it_does_not_take(kind: Any, value: Any, sentence: str) -> None:
    with pytest.raises(ValidationError) as found:
        TypeAdapter(kind).validate_python(value)
    assert [error["msg"] for error in found.value.errors()] == [sentence]


def test_a_note_may_end_with_the_longest_generation() -> None:
    assert NoteOptions(pitch=60, start_s=599.0, seconds=1.0).end_s == 600.0
