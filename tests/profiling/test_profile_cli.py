"""tickrt-profile: reports, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import Built
from typer.testing import CliRunner

from profiling import profile_cli
from profiling.layers.timings import Profile, Wall
from profiling.layers.work import Ceilings
from profiling.profile_cli import app
from runtime.devices.device import HostDevice


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


@pytest.mark.parametrize(
    ("options", "expected", "steps"),
    [
        ({"peaks": "", "ceilings": True}, Ceilings(30.0, 8.0, "measured"), ["ceilings", "profiled"] * 2 + ["ceilings"]),
        ({"peaks": "1,2", "ceilings": True}, Ceilings(1e9, 2e9, "given"), ["profiled"] * 2),
        ({"peaks": "", "ceilings": False}, None, ["profiled"] * 2),
    ],
)
def test_ceilings_are_measured_around_every_round_and_the_highest_ones_count(
    options: dict[str, Any],
    expected: Ceilings | None,
    steps: list[str],
    built: Built,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    found = iter(Ceilings(*each, "measured") for each in ((30.0, 4.0), (29.0, 8.0), (28.0, 5.0)))

    def ceilings(target: str, device: Any, *, half: bool, threads: int) -> Ceilings:
        assert (target, half, threads) == ("cpu", False, built().runtime.threads)
        done.append("ceilings")
        return next(found)

    def measure(deployment: Any, device: Any, engine: str, sizes: Any, runs: int, on_share: Any) -> Profile:
        for share in (0.0, 0.5):
            on_share(share)
            done.append("profiled")
        return Profile(engine, runs, (), Wall((1.0,)))

    monkeypatch.setattr(profile_cli, "measure_ceilings", ceilings)
    monkeypatch.setattr(profile_cli, "measure", measure)
    profile = profile_cli._profile(built(), "decoder", {}, 3, **options)
    assert (profile.ceilings, profile.runs, done) == (expected, 3, steps)


def test_a_busy_machine_is_said_in_place_of_rooflines(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    starved = Ceilings(69e9, 8e9, "measured", cpu_share=0.4)
    monkeypatch.setattr(profile_cli, "measure_ceilings", lambda *about, half, threads: starved)
    result = run(str(built().path), "--rows", "2", "--runs", "2", "--ceilings")
    assert result.exit_code == 0, result.stderr
    assert "machine busy: its threads had 40% of the cores' time" in " ".join(result.stdout.split())
    assert "of roof" not in result.stdout


def test_ceilings_are_those_of_the_engines_precision(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    precisions = iter(("fp32", "bf16", "fp16", "fp8"))
    monkeypatch.setattr(profile_cli, "_precision", lambda deployment, engine: next(precisions))
    monkeypatch.setattr(profile_cli, "measure_ceilings", lambda *about, half, threads: asked.append(half))
    for _ in range(4):
        profile_cli._ceilings(built(), "decoder", HostDevice())
    assert asked == [False, True, True, False]
