"""What a client sends takes a time that grows with it, and no faster, at every place that takes values; findings end.

Every place is found in the tables that the places themselves are drawn from: options, messages, parameters.
"""

from __future__ import annotations

import json
import struct
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from helpers.growth import FLOOR_S, cpu_s, growth
from helpers.live_simulation import MODEL
from helpers.paths import DEMO_BUNDLE
from pydantic import BaseModel

import runtime.base.errors
from runtime.base.errors import TickError
from runtime.base.untrusted import MAX_JSON_MEMBERS, parse_json_object
from runtime.config.bundle import Bundle, load_bundle
from runtime.config.explain import DEEP_KEY, validated
from runtime.live.parts.controls import LiveControls, check_controls
from runtime.live.protocol.messages import CLIENT_MESSAGES, client_message
from runtime.music.tempo import prompt_tempo
from runtime.pipeline.songs.prompt import section_tags
from runtime.pipeline.structure import parse_codes
from runtime.requests.options import GenerationOptions, parse_options
from server.asgi.openapi import GenerationBody, body_schema
from server.asgi.problems import MAX_FINDINGS, ProblemError
from server.asgi.request_body import validate
from server.protocols.acestep.fields import ALIASES, Fields
from server.protocols.acestep.request import NEUTRAL, task_request
from server.protocols.lyria import messages as lyria_messages
from server.protocols.mcp.protocol import PROMPTS
from server.protocols.mcp.schemas import RecordArguments, VocabularyArguments, message_schema, model_schema
from server.protocols.mcp.tools import ToolEntry
from server.protocols.osc import packets as osc_packets
from server.protocols.osc.addresses import AddressTable

Take = Callable[[Any], object]
REFUSALS = (TickError, ProblemError)
BODIES: tuple[type[BaseModel], ...] = (GenerationBody, *CLIENT_MESSAGES.values(), lyria_messages.ClientMessage)
BODIES += (VocabularyArguments, RecordArguments)
OSC_VALUES: dict[str, Any] = {"dcw": {}, "prompts": [{"text": "a", "weight": 1.0}], "adapters": []}
# Parts of texts that some parser looks for, one after the other without an end.
PARTS = ("x", " ", "[", "[a]\n", "{", "1", "1.", "!", "a b ", "ab-", ", ", "|", "\\", "é", "<|audio_code_1|>", "-1,")
SHORT, LONG = 1000, 16_000
# For four times as much: linear work takes four to eight times as long, as memory is slower than caches; quadratic
# work sixteen times.
TIMES, MOST_GROWTH = 4, 10.0


def texts(size: int) -> Iterator[str]:
    for part in PARTS:
        yield part * (size // len(part))
        yield "A" + part * (size // len(part)) + "~"


def values(size: int) -> Iterator[Any]:
    """Values of every kind of JSON, with so many characters or items."""
    yield from texts(size)
    yield [0] * size
    yield [1 - index / size for index in range(size)]
    yield [f"x{index}" for index in range(size)]
    yield [{}] * size
    yield [[1.0]] * size
    yield [{"text": f"a{index}", "id": f"a{index}", "pitch": 60, "start_s": 0.1, "seconds": 1} for index in range(size)]
    yield {f"k{index}": 0 for index in range(size)}


def packets(size: int) -> Iterator[bytes]:
    """OSC messages with so many arguments of a type, and a bundle with as many messages."""
    for kind, one in {"i": bytes(4), "d": bytes(8), "s": b"abc\0", "T": b"", "Q": b""}.items():
        types = f",{kind * size}".encode()
        yield b"/a\0\0" + types + bytes(4 - len(types) % 4) + one * size
    yield b"#bundle\0" + bytes(8) + (struct.pack(">i", 4) + b"/a\0\0") * size
    yield b"/" * size


def of_texts(take: Take) -> Take:
    return lambda value: take(value) if isinstance(value, str) else None


def entries(bundle: Bundle) -> dict[str, Take]:
    """Every place that takes a value of a client: name -> what it does with one."""
    found: dict[str, Take] = {"json": lambda value: parse_json_object(json.dumps({"a": value}))}
    assert bundle.planner is not None
    plan, taken = bundle.planner.plan, bundle.options.bpm
    assert plan is not None
    found |= {
        "tags": of_texts(lambda text: section_tags(plan, text, sings=False)),
        "codes": lambda v: parse_codes(v, 64),
    }
    found |= {"tempo": of_texts(lambda text: prompt_tempo(text, taken))}
    for name in GenerationOptions.model_fields:
        found[f"option {name}"] = lambda value, name=name: parse_options({"prompt": "", name: value})
    for kind, model in CLIENT_MESSAGES.items():
        for name in model.model_fields:
            found[f"live {kind} {name}"] = lambda value, kind=kind, name=name: client_message(
                {"type": kind, "seq": 1, name: value}
            )
    for name in lyria_messages.ClientMessage.model_fields:
        found[f"lyria {name}"] = lambda value, name=name: lyria_messages.parse_message(json.dumps({name: value}))
    for name in (*ALIASES, *NEUTRAL, "lyrics", "bpm", "seed", "timesteps", "instruction", "metas", "shift"):
        found[f"acestep {name}"] = lambda value, name=name: task_request(Fields({name: value}), (), bundle)
    for address in AddressTable(LiveControls.model_json_schema()).all(OSC_VALUES):
        found[f"osc {address.name}"] = lambda value, address=address: address.message(
            value if isinstance(value, list) else [value], OSC_VALUES
        )
    for name in LiveControls.model_fields:
        found[f"control {name}"] = lambda value, name=name: check_controls({name: value}, MODEL)
    return found | {f"all of {name}": take for name, take in tables().items()}


def tables() -> dict[str, Take]:
    """Every place that takes members by name: what it does with an object."""
    found: dict[str, Take] = {"options": lambda value: parse_options(dict(value))}
    found["body"] = lambda value: validate(GenerationBody, dict(value))
    for kind in CLIENT_MESSAGES:
        found[f"live {kind}"] = lambda value, kind=kind: client_message({**value, "type": kind})
    found["lyria"] = lambda value: lyria_messages.parse_message(json.dumps({"setup": value}))
    for name, schema in tool_schemas().items():
        found[f"tool {name}"] = ToolEntry(name, schema, None).check  # type: ignore[arg-type]
    for name, prompt in PROMPTS.items():
        found[f"prompt {name}"] = lambda value, prompt=prompt: prompt.filled({key: str(value[key]) for key in value})
    found["controls"] = lambda value: check_controls(value, MODEL)
    found["file"] = lambda value: validated(GenerationBody, value, "a.toml")
    return {
        name: lambda value, take=take: take(value) if isinstance(value, dict) else None for name, take in found.items()
    }


def tool_schemas() -> dict[str, Any]:
    messages = {kind: message_schema(model) for kind, model in CLIENT_MESSAGES.items()}
    return {"generate": body_schema(GenerationBody), "vocabulary": model_schema(VocabularyArguments), **messages}


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(DEMO_BUNDLE)


def slow_places(places: Mapping[str, Take], make: Callable[[int], Iterator[Any]], size: int) -> list[str]:
    """Where twice as much takes too much longer."""
    found = []
    small = list(make(size))
    for name, take in places.items():
        for index, value in enumerate(small):
            if cpu_s(lambda value=value, take=take: take(value)) > FLOOR_S:  # type: ignore[misc]

                def work(times: int, index: int = index, take: Take = take) -> Callable[[], object]:
                    given = list(make(size * times))[index]
                    return lambda: take(given)

                grown = growth(work, 1, times=TIMES, most=MOST_GROWTH)
                found += [f"{name}: {grown:.1f} for {value!r:.60}"] if grown > MOST_GROWTH else []
    return found


def test_values_take_linear_time(bundle: Bundle) -> None:
    assert slow_places(entries(bundle), values, SHORT) == []


def test_packets_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(osc_packets, "MAX_PACKET_BYTES", 2**30)
    assert slow_places({"osc": osc_packets.parse_packet}, packets, LONG) == []


@pytest.mark.slow
def test_long_values_take_linear_time(bundle: Bundle) -> None:
    assert slow_places(entries(bundle), values, LONG) == []


def test_the_places_that_are_measured_can_be_slow() -> None:
    slow = {"list": lambda value: [value.count(item) for item in value if isinstance(value, list)]}
    assert len(slow_places(slow, values, SHORT // 3)) >= 3


def test_no_more_findings_are_made_than_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()
    monkeypatch.setattr(runtime.base.errors, "get_close_matches", lambda name, *_, **__: asked.append(name) or [])
    for name, take in tables().items():
        asked.clear()
        with pytest.raises(REFUSALS):
            take({f"promptx{index}": 0 for index in range(MAX_JSON_MEMBERS - 2)})
        assert len(asked) <= MAX_FINDINGS, name


@pytest.mark.parametrize("name", sorted(tool_schemas()))
def test_a_tool_does_not_look_at_more_members_than_a_request_has(name: str) -> None:
    entry = ToolEntry(name, tool_schemas()[name], None)  # type: ignore[arg-type]
    with pytest.raises(TickError, match=f"more than {MAX_JSON_MEMBERS} members"):
        entry.check({"items": [{f"k{index}": 0 for index in range(MAX_JSON_MEMBERS + 1)}]})


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_every_text_and_list_of_a_client_has_a_most(model: type[BaseModel]) -> None:
    schema = model.model_json_schema()
    assert list(unbounded(schema, schema.get("$defs", {}), model.__name__, ())) == []


def unbounded(
    schema: Mapping[str, Any], definitions: Mapping[str, Any], path: str, seen: tuple[str, ...]
) -> Iterator[str]:
    """The texts, lists and open objects of a schema that may have any length."""
    name = schema.get("$ref", "").rpartition("/")[2]
    branches = [branch for kind in ("anyOf", "oneOf", "allOf") for branch in schema.get(kind, ())]
    branches += [definitions[name]] if name and name not in seen else []
    for branch in branches:
        yield from unbounded(branch, definitions, path, (*seen, name))
    needed = {"string": {"maxLength", "enum", "const", "pattern"}, "array": {"maxItems"}, "object": {"maxProperties"}}
    kind = schema.get("type", "")
    if not needed.get(kind, {""}) & schema.keys() and schema.get("additionalProperties", True) is not False:
        yield from [path] if kind in needed else []
    if "items" in schema:
        yield from unbounded(schema["items"], definitions, f"{path}[]", seen)
    for member, inner in schema.get("properties", {}).items():
        yield from unbounded(inner, definitions, f"{path}.{member}", seen)


@pytest.mark.parametrize(
    "text", ["a." * 5000 + "a = 1", "[" + "a." * 5000 + "a]", "b = {c = 1, " + '"a" . ' * 5000 + "a = 1}"]
)
def test_a_key_of_many_names_is_seen_before_it_is_parsed(text: str) -> None:
    assert DEEP_KEY.search(text)
    tomllib.loads(text.replace("a." * 4900, "").replace('"a" . ' * 4900, ""))
