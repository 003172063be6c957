"""JSON is bounded before it is parsed; text of unknown origin is bounded and on one line."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT

from runtime.base import untrusted
from runtime.base.errors import ConfigError, RequestError
from runtime.base.untrusted import (
    MAX_HEADER_BYTES,
    MalformedJsonError,
    check_members,
    one_line,
    parse_json_object,
    plain_utf8,
    quoted,
    safetensors_header,
)
from runtime.commands.generate_options import file_values
from runtime.config.deployment import load_deployment
from runtime.music.midi_file import read_notes
from runtime.pipeline.text_encoder import read_tokenizer


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


def test_members_that_another_parser_read_are_counted_at_all_depths() -> None:
    check_members({"a": [{"b": [[{"c": 1}]]}]}, max_members=3)
    check_members([1, "a", None], max_members=0)
    with pytest.raises(MalformedJsonError, match="more than 2 members"):
        check_members({"a": [{"b": [[{"c": 1}]]}]}, max_members=2)


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


UTF_16 = ("utf-16", "utf-16-le", "utf-16-be", "utf-32")


def test_a_text_may_begin_with_the_mark_of_windows() -> None:
    assert plain_utf8(b"\xef\xbb\xbf{}") == plain_utf8(b"{}") == b"{}"
    for text in ('{"a": "ü"}'.encode("utf-8-sig"), '\ufeff{"a": "ü"}'):
        assert parse_json_object(text) == {"a": "ü"}


@pytest.mark.parametrize("encoding", UTF_16)
def test_other_encodings_of_windows_are_named_with_what_to_do(encoding: str) -> None:
    with pytest.raises(MalformedJsonError, match="UTF-16, expected UTF-8: save it again"):
        parse_json_object('{"a": 1}'.encode(encoding))
    with pytest.raises(ValueError, match="UTF-16, expected UTF-8"):
        plain_utf8("[deployment]".encode(encoding))


def test_files_of_people_may_begin_with_the_mark(tmp_path: Path) -> None:
    """As the Notepad of older Windows and PowerShell write them: deployment, bundle, tokenizers, options, notes."""
    deployment = tiny_deployment(tmp_path)
    (tmp_path / "options.json").write_text('{"prompt": "ü"}', encoding="utf-8")
    (tmp_path / "notes.json").write_text("[]", encoding="utf-8")
    texts = [path for path in tmp_path.rglob("*") if path.suffix in (".toml", ".json", ".txt")]
    for path in texts:
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    bundle = load_deployment(deployment).loaded_bundle
    assert bundle.text_encoder is not None
    read_tokenizer(bundle.graph_path(bundle.text_encoder.tokenizer))
    assert file_values(tmp_path / "options.json") == {"prompt": "ü"}
    assert read_notes(tmp_path / "notes.json", None) == []  # type: ignore[arg-type]
    deployment.write_text(deployment.read_text(encoding="utf-8-sig"), encoding="utf-16")
    with pytest.raises(ConfigError, match=r"tiny\.toml is not TOML: it is UTF-16, expected UTF-8: save it again"):
        load_deployment(deployment)
    deployment.write_text("# für Musik", encoding="cp1252")
    with pytest.raises(ConfigError, match=r"(?s)tiny\.toml is not TOML: .*fix: save it again with the encoding UTF-8"):
        load_deployment(deployment)


PARSED = re.compile(r"\b(?:from_json|json\.loads?|tomllib\.loads?)\(.*(?:read_file|read_bytes|read_text)\(")
KNOWN = re.compile(r"plain_utf8\(|with_name\(")  # without the mark, or beside the code


def test_every_file_of_people_is_read_without_the_mark() -> None:
    """One that only we write is named here, or lies beside the code."""
    ours = {"ray_cluster.py", "examples.py", "onnxruntime.py", "unpack.py", "weights.py"}
    lines = [
        f"{path.name}: {line.strip()}"
        for package in ("runtime", "server", "engine_build", "profiling")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if PARSED.search(line) and not KNOWN.search(line) and path.name not in ours
    ]
    assert lines == []
