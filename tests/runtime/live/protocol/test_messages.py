"""Messages of the live protocol."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jsonschema_rs
import pytest
from annotated_types import Ge
from helpers.limits import assert_limits
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from runtime.base.errors import QueueFullError, RequestError
from runtime.live.protocol.backoff import backoff_s
from runtime.live.protocol.messages import (
    CLIENT_MESSAGES,
    Message,
    Open,
    SetBand,
    client_message,
    parse_client_message,
    seq_of,
)
from runtime.live.protocol.server_messages import (
    SERVER_MESSAGES,
    Applied,
    ReadyControls,
    message_text,
    messages_schema,
    parse_server_message,
    problem_of,
)

EXAMPLES = [
    {"type": "open", "mode": "extend", "prompts": [{"text": "calm piano"}], "controls": {"guidance": 4}},
    {"type": "open", "resume": "token"},
    {"type": "set", "seq": 1, "values": {"guidance": 5, "rescale": None}, "ramp_ms": 250, "at": 1.5},
    {"type": "prompts", "seq": 2, "items": [{"text": "a", "weight": 1}, {"text": "b", "weight": 0.5}]},
    {"type": "source", "seq": 3, "id": None},
    {"type": "structure", "seq": 4, "id": "sha", "strength": 0.5},
    {"type": "timbre", "seq": 5, "id": "sha"},
    {"type": "adapter", "seq": 6, "id": "soft", "strength": 0.5, "ramp_ms": 100},
    {"type": "write", "seq": 6, "at_s": 0, "samples": 4800, "format": "f32", "mode": "sum"},
    {"type": "band", "seq": 7, "start_s": 1, "end_s": 2.5},
    {"type": "band", "seq": 8, "start_s": None, "end_s": None},
    {"type": "mute", "seq": 8, "layers": ["drums"]},
    {"type": "seek", "to_s": 3},
    {"type": "clock", "seq": 9, "bpm": 124.3, "sample": 48_000},
    {"type": "seek", "to_s": 0.0, "seq": 9, "at": {"bars": 2}},
    {"type": "set", "seq": 9, "values": {"bpm": 124.3}, "at": "bar"},
    {"type": "reset", "seq": 9},
    {"type": "play"},
    {"type": "pause"},
    {"type": "ack", "playhead_sample": 2**64 - 1, "worst_lead_s": -0.1, "received_bytes": 10, "client_time_s": 1.0},
    {"type": "canvas"},
    {"type": "get_plan"},
    {"type": "set_plan", "seq": 10, "start_s": 64, "sections": [{"kind": "break", "layers": ["pads"], "bars": 8}]},
    {"type": "set_plan", "seq": 11, "start_s": 66.4, "codes": [7, 5**20 - 1]},
    {"type": "notes", "seq": 12, "items": [{"pitch": 60, "start_s": 0.5, "velocity": 90}], "layer": "bass", "bars": 2},
    {"type": "notes", "seq": 13, "mode": "hold", "items": []},
    {"type": "close"},
]


@pytest.mark.parametrize("values", EXAMPLES, ids=lambda values: values["type"])
def test_a_message_survives_its_text(values: dict) -> None:
    message = parse_client_message(json.dumps(values).encode())
    assert type(message) is CLIENT_MESSAGES[values["type"]]
    assert parse_client_message(message_text(message)) == message


def filled(annotation: Any) -> Any:
    """A value of a type, of a model with all of its members, as parsed JSON has it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        bounds = [each for each in arguments[1:] if isinstance(each, FieldInfo)]
        lows = [bound.ge for each in bounds for bound in each.metadata if isinstance(bound, Ge)]
        return lows[0] if lows else filled(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        return filled(arguments[0])
    if origin is dict:
        return {filled(arguments[0]): filled(arguments[1])}
    if origin is list:
        return [filled(arguments[0])]
    if origin is tuple:
        return [filled(argument) for argument in arguments]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {
            field.alias or name: field.default if name == "type" else filled(Annotated[field.annotation, field])
            for name, field in annotation.model_fields.items()
        }
    return {str: "a", int: 1, float: 1, bool: True, Any: {"a": [1]}}[annotation]


@pytest.mark.parametrize(
    "model", [*SERVER_MESSAGES.values(), *CLIENT_MESSAGES.values()], ids=lambda model: model.__name__
)
def test_a_message_with_all_of_its_members_survives_its_text(model: type[Message]) -> None:
    """Numbers are integers where they are floats, and tuples lists: parsed JSON has no others."""
    values = filled(model)
    for name in ("end_s", "start_s") if model is SetBand else ():
        values[name] = None
    read = parse_server_message if model in SERVER_MESSAGES.values() else parse_client_message
    message = read(json.dumps(values))
    assert type(message) is model
    assert message == model.model_validate_json(json.dumps(values))
    assert read(message_text(message)) == message


class Kind(Enum):
    LOUD = "loud"


@dataclass
class Place:
    frame: int
    share: float


class Held(Message):
    """Every type of Python that JSON has not, and that pydantic reads from it."""

    type: Literal["held"] = "held"
    place: Place
    kind: Kind
    ends: tuple[float, ...]
    names: frozenset[str]
    counts: dict[int, float]


def test_members_are_read_as_json_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLIENT_MESSAGES, "held", Held)  # type: ignore[arg-type]
    monkeypatch.setitem(SERVER_MESSAGES, "held", Held)  # type: ignore[arg-type]
    message = Held(place=Place(1, 2.0), kind=Kind.LOUD, ends=(1.0, 2.5), names=frozenset("a"), counts={1: 2.0})
    values = {"place": {"frame": 1, "share": 2}, "kind": "loud", "ends": [1, 2.5], "names": ["a"], "counts": {"1": 2}}
    text = json.dumps({"type": "held", **values})
    assert parse_client_message(text) == parse_server_message(text) == message
    for name, wrong in (("ends", ["1"]), ("place", {"frame": "1", "share": 2}), ("kind", "soft"), ("names", "a")):
        with pytest.raises(RequestError) as error:
            parse_server_message(json.dumps({"type": "held", **values, name: wrong}))
        assert error.value.field.startswith(name)
    with pytest.raises(RequestError, match="not JSON"):
        client_message({"type": "open", "resume": "\ud800"})


def test_every_message_has_an_example() -> None:
    assert {values["type"] for values in EXAMPLES} == set(CLIENT_MESSAGES)


SECTION = {"kind": "break", "layers": ["pads"], "bars": 8}


def edit(**members: Any) -> str:
    return json.dumps({"type": "set_plan", "seq": 1, "start_s": 64.0, **members})


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", ""),
        ("[]", ""),
        ("{}", "type"),
        ('{"type": ["set"]}', "type"),
        ('{"type": "ready"}', "type"),
        ('{"type": "set", "seq": 0, "values": {}}', "seq"),
        ('{"type": "set", "seq": 4294967296, "values": {}}', "seq"),
        ('{"type": "set", "seq": "1", "values": {}}', "seq"),
        ('{"type": "set", "seq": true, "values": {}}', "seq"),
        ('{"type": "set", "seq": 1, "values": []}', "values"),
        ('{"type": "set", "seq": 1, "values": {}, "ramp_ms": 60001}', "ramp_ms"),
        ('{"type": "set", "seq": 1, "values": {}, "at": 1e999}', "at"),
        ('{"type": "prompts", "seq": 1, "items": [{"text": "a", "wieght": 1}]}', "items.0.wieght"),
        ('{"type": "band", "seq": 1, "start_s": 2, "end_s": 1}', ""),
        ('{"type": "band", "seq": 1, "start_s": 2, "end_s": null}', ""),
        ('{"type": "band", "seq": 1, "start_s": null, "end_s": 2}', ""),
        ('{"type": "band", "seq": 1, "start_s": 1, "end_s": 1}', ""),
        ('{"type": "ack", "playhead_sample": -1}', "playhead_sample"),
        ('{"type": "open", "slots": 5}', "slots"),
        ('{"type": "play", "speed": 2}', "speed"),
        ("[" * 10_000, ""),
        ('{"type": "seek", "to_s": NaN}', ""),
        (edit(), ""),
        (edit(sections=[], codes=[1]), ""),
        (edit(codes=[]), "codes"),
        (edit(codes=[-1]), "codes.0"),
        (edit(sections=[{**SECTION, "layers": []}]), "sections.0.layers"),
        (edit(sections=[{**SECTION, "bars": 0}]), "sections.0.bars"),
        (edit(sections=[SECTION] * 65), "sections"),
        (edit(sections=[], start_s=-1.0), "start_s"),
    ],
)
def test_a_wrong_message_names_the_member(text: str, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_client_message(text)
    assert caught.value.field == field


def test_similar_names_are_proposed() -> None:
    with pytest.raises(RequestError, match="did you mean prompts"):
        parse_client_message('{"type": "promts", "seq": 1}')
    with pytest.raises(RequestError, match="did you mean ramp_ms"):
        parse_client_message('{"type": "set", "seq": 1, "values": {}, "ramp": 5}')


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["type", "seq", "values", "items", "at_s", "id"]) | st.text(), inner)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_parsed_or_refused(values: object) -> None:
    with suppress(RequestError):
        parse_client_message(json.dumps(values))


def test_a_problem_carries_the_error() -> None:
    problem = problem_of(RequestError("too big", field="values.guidance", fix="use 50"), seq=9)
    assert (problem.status, problem.code, problem.field) == (422, "invalid_request", "values.guidance")
    assert (problem.fix, problem.seq, problem.urn) == ("use 50", 9, "urn:tickrt:problem:invalid_request")
    assert problem_of(QueueFullError("full", retry_after_s=2.5)).retry_after_s == 2.5
    assert parse_server_message(message_text(problem)) == problem


def test_the_schema_accepts_what_the_parser_accepts() -> None:
    schema = messages_schema()
    client = jsonschema_rs.validator_for({**schema["client"], "$defs": schema["$defs"]})
    assert all(client.is_valid(values) for values in EXAMPLES)
    assert not client.is_valid({"type": "set", "seq": 0, "values": {}})
    assert len(schema["server"]["oneOf"]) == len(SERVER_MESSAGES)


@pytest.mark.parametrize(
    ("text", "seq"),
    [
        ('{"seq": 7}', 7),
        ('{"seq": true}', None),
        ('{"seq": -1}', None),
        ('{"seq": 1.5}', None),
        ("[7]", None),
        ("{", None),
    ],
)
def test_a_refused_message_is_named_by_its_seq_where_it_has_one(text: str, seq: int | None) -> None:
    assert seq_of(text) == seq


def test_defaults_of_open() -> None:
    message = parse_client_message('{"type": "open"}')
    assert isinstance(message, Open)
    assert (message.mode, message.slots, message.format, message.blend) == ("loop", 2, "s16", "velocity")


def test_an_edit_has_sections_or_codes_or_both() -> None:
    given = [{"sections": []}, {"sections": [SECTION]}, {"codes": [5**20 - 1]}, {"sections": [SECTION], "codes": [7]}]
    for members in given:
        assert json.loads(message_text(parse_client_message(edit(**members)))).items() >= members.items()


def test_null_members_are_sent() -> None:
    assert json.loads(message_text(Applied(seq=1)))["full_sample"] is None


def test_the_schema_of_the_controls_is_the_member_schema() -> None:
    controls = ReadyControls(schema={"type": "object"}, values={}, prompts=[], blend="velocity", seed=1)
    assert json.loads(controls.model_dump_json())["schema"] == {"type": "object"}


def test_each_wait_is_twice_as_long_up_to_the_longest() -> None:
    assert [backoff_s(failures, 0.5, 3.0) for failures in (0, 1, 2, 3, 4, 100_000)] == [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_the_limits_are_those_that_clients_know() -> None:
    assert_limits("protocol", *CLIENT_MESSAGES.values(), *SERVER_MESSAGES.values())
