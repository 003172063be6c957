"""Output and properties of results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Built

from profiling.bench.workload import with_runtime
from profiling.output import check_folders, check_plot, json_text, open_console, save_plot, write_json
from profiling.provenance import commit, provenance
from runtime.base.errors import ConfigError
from runtime.commands.terminal import Terminal
from runtime.config.bundle import load_bundle
from runtime.devices.device import HostDevice
from runtime.devices.machine import machine, machine_of
from runtime.engines.loading import open_engines

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
    check_plot(None)
    check_plot(tmp_path / "a.svg")
    for name, message in (("a.png", "not the name of an SVG file"), ("absent/a.svg", "there is no folder")):
        with pytest.raises(ConfigError, match=message):
            check_plot(tmp_path / name)


def test_lines_are_drawn_into_an_svg_file_with_texts_as_they_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, lines = tmp_path / "a.svg", {"one $x$": [(1.0, 2.0), (3.0, 4.0)], "two": [(2.0, 1.0)]}
    save_plot(Terminal(), path, "demo <1>", ("rows", "ms"), lines)
    text = path.read_text()
    for shown in ("demo &lt;1&gt;", "rows", "ms", "one $x$", "two"):
        assert f">{shown}</text>" in text
    save_plot(Terminal(), path, "without a line", ("rows", "ms"), {})
    assert "without a line" in path.read_text()


def test_without_matplotlib_a_plot_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    save_plot(Terminal(), tmp_path / "a.svg", "title", ("x", "y"), {"line": [(0.0, 0.0)]})
    assert "pip install 'tickrt[plots]'" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "a.svg").exists()


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_of_the_code_is_marked_where_files_changed(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git(tmp_path, "init")
    assert commit(tmp_path) is None
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.py").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert commit(tmp_path / "code") == head
    (tmp_path / "code" / "a.py").write_text("b")
    assert commit(tmp_path / "code") == f"{head}+"
    (tmp_path / "installed").mkdir()
    assert commit(tmp_path / "installed") is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_the_properties_of_a_result(built: Built) -> None:
    deployment = with_runtime(built(), capture=False)
    engines = open_engines(deployment, HostDevice())
    found = provenance(load_bundle(deployment.bundle), deployment, engines.decoder.manifest)
    engines.close()
    assert (found["bundle"], found["target"]) == ("tiny", "cpu")
    assert found["switches"]["capture"] is False
    assert found["switches"]["fused_guidance"] is True
    assert found["engine_sha256"] == engines.decoder.manifest.engine_sha256
    assert found["versions"].keys() == {"tickrt", "python", "numpy", "onnxruntime"}
    assert found["machine"] == machine_of("cpu") == machine()
