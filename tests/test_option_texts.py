"""What people write as text for an option means the same at every door: the command line, HTTP, Python and sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from runtime.base.errors import RequestError
from runtime.commands.generate_options import NUMBERS, flag_values, option_flags
from runtime.live.parts.controls import CONTROL_NAMES, LiveControls
from runtime.requests.options import GenerationOptions, parse_options
from server.asgi.openapi import body_model
from server.asgi.problems import ProblemError
from server.asgi.request_body import validate
from tickrt.options import plain_options

SPAN, TWO = {"start_s": 8.0, "end_s": 12.0}, {"start_s": 0.5, "end_s": 2.0}
ADAPTERS = [{"id": "soft", "strength": 0.7}, {"id": "hard", "strength": 1.0}]
# Option -> a text that people write for it, and what that is.
TEXTS: dict[str, tuple[Any, Any]] = {
    "bpm": ("118,5 BPM", 118.5),
    "key": ("b-flat major", "Bb major"),
    "time_signature": ("3/4", 3),
    "repaint": (["8:12", ".5:2 s"], [SPAN, TWO]),
    "adapters": (["soft:0.7", "hard"], ADAPTERS),
    "track_classes": ("drums, bass", ["drums", "bass"]),
    "codes": ("<|audio_code_12|><|audio_code_7|>", "<|audio_code_12|><|audio_code_7|>"),
}
# Of lists also one text with commas.
JOINED = {"repaint": "8:12, .5:2 s", "adapters": "soft:0.7, hard"}
WRONG = {"repaint": "FROM:TO", "adapters": "ID:STRENGTH"}
# Options of which a flag has parts of its own, or a file.
OTHERS = {"prompt", "dcw", "notes"}


def plain(options: GenerationOptions, name: str) -> Any:
    return options.model_dump()[name]


def by_flags(name: str, text: Any) -> GenerationOptions:
    repeated = {"repaint": [], "adapters": []} | ({name: text if isinstance(text, list) else [text]})
    flags = {} if name in ("repaint", "adapters") else {name: text}
    return parse_options(flag_values(["a"], repeated["repaint"], flags, repeated["adapters"]))


def by_python(name: str, text: Any) -> GenerationOptions:
    return parse_options({"prompt": "a", **plain_options({name: text})})


def by_http(name: str, text: Any) -> GenerationOptions:
    return validate(body_model(60.0, None), json.loads(json.dumps({"prompt": "a", name: text})))


@pytest.mark.parametrize("door", [by_flags, by_python, by_http])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_means_the_same_at_every_door(name: str, door: Any) -> None:
    text, value = TEXTS[name]
    assert plain(door(name, text), name) == value


@pytest.mark.parametrize("door", [by_python, by_http])
@pytest.mark.parametrize("name", JOINED)
def test_a_list_may_be_one_text(name: str, door: Any) -> None:
    assert plain(door(name, JOINED[name]), name) == TEXTS[name][1]


@pytest.mark.parametrize("name", sorted(TEXTS.keys() & CONTROL_NAMES))
def test_a_session_takes_the_same_texts(name: str) -> None:
    text, value = TEXTS[name]
    parsed = LiveControls.model_validate({name: text})
    assert parsed.model_dump()[name] == value


@pytest.mark.parametrize("door", [by_flags, by_python, by_http])
@pytest.mark.parametrize("name", WRONG)
def test_a_text_that_is_not_understood_is_told_what_is_expected(name: str, door: Any) -> None:
    with pytest.raises((RequestError, ProblemError)) as error:
        door(name, ["8:x"])
    errors = getattr(error.value, "errors", None)
    assert WRONG[name] in (errors[0].detail if errors else error.value.what)


def test_every_option_that_is_no_number_and_no_plain_text_is_in_the_table() -> None:
    flags = {flag.name: flag.annotation.__metadata__[0] for flag in option_flags()}
    schemas = GenerationOptions.model_json_schema()["properties"]
    plain_texts = {
        name
        for name, schema in schemas.items()
        if all(branch.get("type") in ("string", "null") for branch in schema.get("anyOf", [schema]))
    }
    numbers = {name for name, flag in flags.items() if flag.metavar in ("INTEGER", "NUMBER", "CURVE", NUMBERS, None)}
    unknown = schemas.keys() - numbers - plain_texts - OTHERS - TEXTS.keys()
    assert not unknown
