"""tickrt-profile: reports, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from conftest import Built
from typer.testing import CliRunner

from profiling.layers.timings import Profile, Wall
from profiling.layers.work import Ceilings
from profiling.profile_cli import app, is_half, profile_with_ceilings
from runtime.engines.manifest import manifest_path, read_manifest, write_manifest


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


@pytest.mark.parametrize(
    ("options", "says"), [(("--engine", "nope", "--ceilings"), "tickrt-build"), (("--target", "cuda"), "fix:")]
)
def test_an_engine_or_a_target_that_is_not_built_names_the_command(
    built: Built, options: tuple[str, ...], says: str
) -> None:
    result = run(str(built().path), *options)
    assert result.exit_code == 3
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_diff_compares_two_profiles(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    assert run(str(built().path), "--runs", "2", "--json", str(path)).exit_code == 0
    result = run("diff", str(path), str(path), "--fail-over", "1")
    assert result.exit_code == 0, result.stderr
    assert "sum of layers" in result.stdout
    assert run("diff", str(path), str(tmp_path / "nowhere.json")).exit_code == 2


QUIET = [(30e9, 4e9, 1.0), (29e9, 8e9, 1.0), (28e9, 5e9, 1.0)]
BUSY = "machine busy: its threads had 40% of the cores' time"
ROUNDS, BETWEEN = ["profiled"] * 2, ["ceilings", "profiled"] * 2 + ["ceilings"]


@pytest.mark.parametrize(
    ("options", "found", "expected", "note", "steps"),
    [
        ({"peaks": "", "ceilings": True}, QUIET, Ceilings(30e9, 8e9, "measured"), "", BETWEEN),
        ({"peaks": "", "ceilings": True}, [(69e9, 8e9, 0.4)] * 3, None, BUSY, BETWEEN),
        ({"peaks": "1,2", "ceilings": True}, [], Ceilings(1e9, 2e9, "given"), "", ROUNDS),
        ({"peaks": "", "ceilings": False}, [], None, "", ROUNDS),
    ],
)
def test_ceilings_are_measured_around_every_round_and_the_highest_ones_count(
    options: dict[str, Any],
    found: list[tuple[float, float, float]],
    expected: Ceilings | None,
    note: str,
    steps: list[str],
    built: Built,
) -> None:
    done: list[str] = []
    measured = (Ceilings(flops, size_bytes, "measured", share) for flops, size_bytes, share in found)

    def measure_ceilings(target: str, device: Any, *, half: bool, threads: int) -> Ceilings:
        assert (target, half, threads) == ("cpu", False, built().runtime.threads)
        done.append("ceilings")
        return next(measured)

    def measure_profile(deployment: Any, device: Any, engine: str, sizes: Any, runs: int, on_share: Any) -> Profile:
        for share in (0.0, 0.5):
            on_share(share)
            done.append("profiled")
        return Profile(engine, runs, (), Wall((1.0,)))

    given: dict[str, Any] = {**options, "measure_profile": measure_profile, "measure_ceilings": measure_ceilings}
    profile = profile_with_ceilings(built(), "decoder", {}, 3, **given)
    assert (profile.ceilings, profile.runs, done) == (expected, 3, steps)
    assert [text[: len(note)] for text in profile.notes] == ([note] if note else [])


def test_ceilings_are_those_of_the_engines_precision(built: Built, tmp_path: Path) -> None:
    deployment = built()
    manifest = read_manifest(manifest_path(deployment.engine_folder(), "decoder"))
    other = deployment.model_copy(update={"engines": tmp_path})
    other.engine_folder().mkdir(parents=True)
    for precision, is_it in (("fp32", False), ("bf16", True), ("fp16", True), ("fp8", False)):
        changed = manifest.model_copy(update={"build": {"precision": precision}})
        write_manifest(manifest_path(other.engine_folder(), "decoder"), changed)
        assert is_half(other, "decoder") is is_it
