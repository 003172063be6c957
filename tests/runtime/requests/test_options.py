"""The public options: what is refused, in which words, and that the schema tells the same limits."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from typing import Any

import pytest
from helpers.limits import assert_limits
from helpers.paths import ROOT
from pydantic import TypeAdapter, ValidationError

from runtime.base.errors import RequestError
from runtime.config.conditions import TextGraphSpec
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import generate_latents
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
from runtime.requests.options import GenerationOptions, StepOptions, parse_options
from server.asgi.openapi import GenerationBody

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "at most 2000 characters"),
    ({"prompt": "x" * 2001}, "prompt", "at most 2000 characters"),
    ({"prompt": []}, "prompt", "list of 1 to 8"),
    ({"prompt": [{"text": "a"}] * 9}, "prompt", "list of 1 to 8"),
    ({"prompt": [{"text": "a", "weight": 99}]}, "prompt", "weight from 0 to 10"),
    ({"prompt": [{"text": "a", "start": 0.5, "end": 0.5}]}, "prompt", "start < end"),
    ({"prompt": "lone \ud800 surrogate"}, "prompt", "expected a text"),
    ({"tempo": 1}, "tempo", "not a known name"),
    ({"guidance": True}, "guidance", "number from 0 to 50"),
    ({"guidance": "3"}, "guidance", "number from 0 to 50"),
    ({"guidance": float("nan")}, "guidance", "number from 0 to 50"),
    ({"guidance": [1.0, float("inf")]}, "guidance", "number from 0 to 50"),
    ({"guidance": 10**400}, "guidance", "number from 0 to 50"),
    ({"guidance": []}, "guidance", "list of 1 to 4096"),
    ({"guidance": [1.0] * (MAX_CURVE_VALUES + 1)}, "guidance", "list of 1 to 4096"),
    ({"steps": 0}, "steps", "at least 1"),
    ({"steps": 201}, "steps", "at most 200"),
    ({"steps": 2**63}, "steps", "at most 200"),
    ({"steps": 8.0}, "steps", "integer"),
    ({"seed": -1}, "seed", "at least 0"),
    ({"seed": 2**64}, "seed", "at most"),
    ({"seconds": 601}, "seconds", "at most 600"),
    ({"seconds": float("inf")}, "seconds", "finite"),
    ({"denoise": 1.5}, "denoise", "at most 1"),
    ({"channel_gain": [[1.0] * 1025]}, "channel_gain", "one per latent channel"),
    ({"dcw": {"mode": "wide"}}, "dcw.mode", "'low', 'high', 'double' or 'pix'"),
    ({"prompt": [{"text": "a", "weight": [1.0]}], "blend": "tokens"}, "", "no curves"),
    ({"prompt": [{"text": "a", "end": 0.5}], "blend": "tokens"}, "", "no start or end"),
    ({"prompt": [{"text": "a", "weight": 0.0}], "blend": "tokens"}, "", "weight above 0"),
    ({"repaint": [{"start_s": 2.0, "end_s": 1.0}]}, "repaint.0", "start_s < end_s"),
    ({"mask": 1.0, "repaint": [{"start_s": 0.0, "end_s": 1.0}]}, "", "one of them"),
    ({"cfg_interval_start": 0.6, "cfg_interval_end": 0.5}, "", "cfg_interval_start <= cfg_interval_end"),
    ({"lyrics": "x" * 8193}, "lyrics", "at most 8192 characters"),
    ({"language": "english!"}, "language", "text that matches"),
    ({"bpm": 29}, "bpm", "at least 30"),
    ({"bpm": 301}, "bpm", "at most 300"),
    ({"bpm": "fast"}, "bpm", "a number"),
    ({"key": "C7"}, "key", 'such as "C major", "F# minor"'),
    ({"key": "H major"}, "key", 'such as "C major"'),
    ({"time_signature": 5}, "time_signature", "2, 3, 4 or 6"),
    ({"time_signature": "7/8"}, "time_signature", "2, 3, 4 or 6"),
    ({"task": "remix"}, "task", "'lego' or 'complete'"),
    ({"track": ""}, "track", "at least 1 character"),
    ({"track_classes": []}, "track_classes", "at least 1 item"),
    ({"track_classes": 7}, "track_classes", "a list"),
    ({"instruction": "x" * 501}, "instruction", "at most 500 characters"),
    ({"timbre_strength": 1.1}, "timbre_strength", "number from 0 to 1"),
]


@pytest.mark.parametrize(("values", "field", "words"), REFUSED)
def test_refusal_names_the_field_and_what_it_takes(values: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_options({"prompt": "x", **values})
    assert caught.value.field == field
    assert words in caught.value.what


def test_a_missing_prompt_is_refused_and_no_value_repeated() -> None:
    with pytest.raises(RequestError, match="prompt: is missing"):
        parse_options({})
    with pytest.raises(RequestError) as caught:
        parse_options({"prompt": "secret words " * 400})
    assert "secret" not in str(caught.value)


def test_numbers_curves_and_whole_numbers_are_taken() -> None:
    options = parse_options(
        {"prompt": [{"text": "a", "weight": [0, 1]}], "guidance": 3, "momentum": [-1, 0.5], "seed": 2**64 - 1}
    )
    assert options.guidance == 3.0
    assert options.momentum == [-1.0, 0.5]
    assert options.seed == 2**64 - 1


def test_only_the_prompt_is_needed_and_the_rest_is_left_to_the_model() -> None:
    options = parse_options({"prompt": ""})
    assert [name for name in StepOptions.model_fields if getattr(options, name) is not None] == []
    assert (options.steps, options.shift, options.denoise, options.seconds, options.seed) == (None,) * 5


def test_every_field_is_described_and_the_schema_has_the_limits() -> None:
    schema = GenerationOptions.model_json_schema()
    assert all(field.get("description") for field in schema["properties"].values())
    number, numbers, _ = schema["properties"]["guidance"]["anyOf"]
    assert (number["minimum"], number["maximum"], numbers["maxItems"]) == (0.0, 50.0, MAX_CURVE_VALUES)
    assert schema["additionalProperties"] is False


def test_options_survive_json() -> None:
    options = parse_options({"prompt": [{"text": "a"}, {"text": "b", "weight": [0.0, 1.0]}], "dcw": {"low": 0.1}})
    assert parse_options(json.loads(options.model_dump_json())) == options


def test_options_cannot_be_changed() -> None:
    options = parse_options({"prompt": "x"})
    with pytest.raises(ValidationError):
        options.steps = 3  # type: ignore[misc]


def test_an_unknown_option_names_a_similar_one() -> None:
    with pytest.raises(RequestError, match="leave guidanse out, or did you mean guidance"):
        parse_options({"prompt": "a", "guidanse": 2.0})
    with pytest.raises(RequestError, match=r"leave volume out$"):
        parse_options({"prompt": "a", "volume": 2.0})


def test_timesteps_take_the_place_of_steps_shift_and_denoise() -> None:
    assert parse_options({"prompt": "", "timesteps": [1.0, 0.6, 0.2]}).timesteps == [1.0, 0.6, 0.2]
    for name, value in (("steps", 3), ("shift", 2.0), ("denoise", 0.5)):
        with pytest.raises(RequestError, match=f"timesteps and {name} say the same thing"):
            parse_options({"prompt": "", "timesteps": [1.0], name: value})
    for wrong in ([0.5, 0.5], [0.2, 0.6], [1.1], [0.5, 0.0], []):
        with pytest.raises(RequestError, match="timesteps"):
            parse_options({"prompt": "", "timesteps": wrong})


def counterparts() -> list[tuple[str, list[str], list[str]]]:
    """The rows of the table in generate.md: their arguments, ours."""
    text = (ROOT / "configs/docs/pages/generate.md").read_text(encoding="utf-8").partition("| diffusers | here |")[2]
    rows = [line.split("|")[1:3] for line in text.partition("\n\n")[0].splitlines() if line.startswith("| `")]
    return [(row[0], *(re.findall(r"`([\w.]+)`", cell) for cell in row)) for row in rows]


def test_every_counterpart_of_a_pipeline_argument_exists() -> None:
    known = {*GenerationBody.model_fields, *TextGraphSpec.model_fields, *inspect.signature(generate_latents).parameters}
    known |= {name for field in fields(GenerationInputs) for name in (field.name, f"GenerationInputs.{field.name}")}
    for theirs, _, ours in counterparts():
        assert ours, theirs
        assert set(ours) <= known, theirs


@pytest.mark.export
def test_every_argument_of_the_pipeline_has_its_counterpart() -> None:
    pipeline = pytest.importorskip("diffusers").AceStepPipeline
    arguments = [name for name in inspect.signature(pipeline.__call__).parameters if name != "self"]
    assert sorted(name for _, theirs, _ in counterparts() for name in theirs) == sorted(arguments)


def test_the_limits_are_those_that_clients_know() -> None:
    assert_limits("options", GenerationOptions)


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


@pytest.mark.parametrize("key", ["C major", "F# minor", "Bb major", "Ab minor"])
def test_keys_as_the_model_knows_them(key: str) -> None:
    assert parse_options({"prompt": "", "key": key}).key == key
