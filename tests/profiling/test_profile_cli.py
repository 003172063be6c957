"""tickrt-profile: reports, errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import Result
from conftest import Built
from typer.testing import CliRunner

from profiling.profile_cli import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_a_profile_prints_tables_and_writes_every_report(built: Built, tmp_path: Path) -> None:
    names = ("json p.json", "layer-info i.json", "markdown m.md", "html h.html", "trace t.json")
    outputs = [word for option, name in map(str.split, names) for word in (f"--{option}", str(tmp_path / name))]
    result = run(str(built().path), "--rows", "2", "--runs", "3", "--peaks", "100,20", *outputs)
    assert result.exit_code == 0, result.stderr
    assert "gemm" in result.stdout
    assert "without the profiler" in result.stdout
    assert "100.0 GFLOP/s, 20.0 GB/s" in result.stdout
    head, *rows = json.loads((tmp_path / "p.json").read_text())
    assert head["count"] == 3
    layers = json.loads((tmp_path / "i.json").read_text())["Layers"]
    assert [row["name"] for row in rows] == [layer["Name"] for layer in layers]
    assert "| gemm |" in (tmp_path / "m.md").read_text()
    assert "<!doctype html>" in (tmp_path / "h.html").read_text()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


@pytest.mark.parametrize("option", ["--json", "--layer-info", "--markdown", "--html", "--trace"])
def test_a_folder_that_is_not_there_is_named_before_anything_is_measured(option: str) -> None:
    refused = run("absent.toml", option, "absent/file")
    assert refused.exit_code == 2
    assert "there is no folder absent" in refused.stderr


def test_engines_have_short_names(built: Built) -> None:
    result = run(str(built().path), "--engine", "step", "--rows", "2", "--runs", "2")
    assert result.exit_code == 0, result.stderr
    assert "step.plain: 2 executes" in result.stdout


def test_an_engine_that_is_not_built_names_the_command(built: Built) -> None:
    result = run(str(built().path), "--engine", "nope", "--ceilings")
    assert result.exit_code == 3
    assert "tickrt-build" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_target_that_is_not_built_names_the_command(built: Built) -> None:
    result = run(str(built().path), "--target", "cuda")
    assert result.exit_code == 3
    assert "fix:" in result.stderr
    assert "Traceback" not in result.stderr


def test_diff_compares_two_profiles(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert run(str(built().path), "--runs", "2", "--json", str(path)).exit_code == 0
    result = run("diff", str(path), str(path), "--fail-over", "1")
    assert result.exit_code == 0, result.stderr
    assert "sum of layers" in result.stdout
    assert run("diff", str(path), str(tmp_path / "nowhere.json")).exit_code == 2
