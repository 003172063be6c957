"""JSON: an object per line, to a file or to standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiling.output import check_folders, json_text, open_console, write_json
from runtime.base.errors import ConfigError

CONTENT = {"kind": "x:cat:", "points": [{"a": [1, 2]}, {"a": []}], "values": [1, 2]}


def test_a_file_has_a_member_or_an_object_per_line(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", CONTENT)
    text = (tmp_path / "a.json").read_text()
    assert json.loads(text) == CONTENT
    assert text.splitlines() == [
        "{", '"kind": "x:cat:",', '"points": [', '{"a": [1, 2]},', '{"a": []}', "],", '"values": [1, 2]', "}",
    ]  # fmt: skip
    assert json.loads(json_text([])) == []
    assert json.loads(json_text({})) == {}


def test_a_dash_is_standard_output_and_tables_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    open_console(Path("-")).print("a table [red]of[/] names [/x]")
    write_json(Path("-"), CONTENT)
    open_console(None).print("another table")
    out, err = capsys.readouterr()
    assert (json.loads(out.removesuffix("another table\n")), err) == (CONTENT, "a table [red]of[/] names [/x]\n")


def test_a_missing_folder_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    check_folders(None, Path("-"), tmp_path / "a.json")
    with pytest.raises(ConfigError, match=r"absent/a\.json cannot be written[\s\S]*fix: mkdir"):
        check_folders(tmp_path / "absent" / "a.json")
