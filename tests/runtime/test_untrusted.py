"""JSON is bounded before it is parsed; text of unknown origin is bounded and on one line."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from runtime import untrusted
from runtime.errors import RequestError
from runtime.untrusted import (
    MAX_HEADER_BYTES,
    MalformedJsonError,
    one_line,
    parse_json_object,
    quoted,
    safetensors_header,
)


@pytest.mark.parametrize("text", [b'{"a": [1, {"b": "c"}]}', '{"a": [1, {"b": "c"}]}'])
def test_an_object_is_parsed(text: bytes | str) -> None:
    assert parse_json_object(text) == {"a": [1, {"b": "c"}]}


@pytest.mark.parametrize(
    "text",
    [
        b"{" + b'"a": 0, ' * 500_000 + b'"a": 0}',
        b"[" * 200_000,
        b'{"a":' * 40_000,
        b'{"a": [' + b"{}," * 40_000 + b"{}]}",
    ],
    ids=["members", "arrays", "nested", "objects"],
)
def test_structure_is_counted_before_anything_is_parsed(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(*_: Any, **__: Any) -> None:
        pytest.fail("the text was parsed")

    monkeypatch.setattr(untrusted, "from_json", parse)
    with pytest.raises(MalformedJsonError, match="more than"):
        parse_json_object(text)


def test_members_are_counted_at_all_depths() -> None:
    inner = [{f"k{number}": number for number in range(90)} for _ in range(10)]
    whole = {"inner": inner, **{f"o{number}": 0 for number in range(99)}}
    assert parse_json_object(json.dumps(whole)) == whole
    with pytest.raises(MalformedJsonError, match="more than 1000 members"):
        parse_json_object(json.dumps({**whole, "one": 1}))


def test_long_lists_and_texts_with_colons_are_taken() -> None:
    whole = {"curve": [0.5] * 100_000, "text": ":" * 20_000}
    assert parse_json_object(json.dumps(whole)) == whole


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        ('{"a": "\ud800"}', "not valid JSON"),
        (b'{"a":' * 250 + b"1" + b"}" * 250, "recursion limit"),
        (b"[1]", "expected a JSON object"),
        (b'{"a": {"b": 1, "b": 2}}', "'b' occurs more than once"),
        (b'{"' + b"k" * 3000 + b'": 1, "' + b"k" * 3000 + b'": 2}', "kkk… occurs|kkk…' occurs"),
    ],
)
def test_other_texts_are_refused(text: bytes | str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as error:
        parse_json_object(text)
    assert len(error.value.what) < 200


def test_quoted_text_is_bounded_and_on_one_line() -> None:
    assert quoted("F32") == "'F32'"
    assert quoted("a\nERROR forged \x1b[31m\u202e") == r"'a\nERROR forged \x1b[31m\u202e'"
    assert quoted("x" * 1000, 5) == "'xxxxx…'"
    assert quoted("\ud800") == r"'\ud800'"


def test_a_line_keeps_what_prints_and_escapes_the_rest() -> None:
    assert one_line('é "quoted" \\ 音', 100) == 'é "quoted" \\ 音'
    assert one_line("a\r\nb\ud800", 100) == r"a\r\nb\ud800"
    assert one_line("x" * 1000, 5) == "xxxxx…"


def test_a_header_of_safetensors_has_a_largest_length() -> None:
    content = b"{}".ljust(MAX_HEADER_BYTES)
    assert safetensors_header(io.BytesIO(len(content).to_bytes(8, "little") + content)) == {}
    with pytest.raises(RequestError, match=f"at most {MAX_HEADER_BYTES} are read"):
        safetensors_header(io.BytesIO((len(content) + 1).to_bytes(8, "little") + b"{}"))
