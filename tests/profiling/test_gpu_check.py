"""Steps of the check on a GPU: each ends for itself; on the simulated GPU they give figures against their budgets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Built
from helpers.backends import SIMULATED
from simulator.fixture import child_environment, simulated
from typer.main import get_command
from typer.testing import CliRunner

from profiling import gpu_check
from profiling.bench_cli import app as bench_app
from profiling.gpu_check import (
    BENCH,
    CheckStep,
    Figure,
    app,
    check_steps,
    figures,
    has_rtx_card,
    published_deployment,
    run_steps,
)
from runtime.config.deployment import load_deployment

WELL = ("timeit", "-n", "1", "-r", "1", "pass")
SLEEP = ("timeit", "-n", "1", "-r", "1", "import time; time.sleep(600)")


def test_a_step_that_fails_ends_only_those_that_need_it(tmp_path: Path) -> None:
    steps = [
        CheckStep("first", ("json.tool", str(tmp_path / "missing.json")), 60),
        CheckStep("after", WELL, 60, needs=("first",)),
        CheckStep("slow", SLEEP, 0.05),
        CheckStep("last", WELL, 60, needs=("elsewhere",)),
    ]
    outcomes = list(run_steps(steps, tmp_path, 10.0))
    assert [outcome.status for outcome in outcomes] == ["failed", "left out", "out of time", "done"]
    assert "missing.json" in outcomes[0].note
    assert outcomes[1].note == "first is not done"
    assert "best of 1" in (tmp_path / "last.log").read_text()


def test_nothing_begins_after_the_time(tmp_path: Path) -> None:
    (outcome,) = run_steps([CheckStep("last", WELL, 60)], tmp_path, 0.0)
    assert (outcome.status, list(tmp_path.iterdir())) == ("out of time", [])


def test_the_steps_fit_into_their_time_and_into_the_commands(tmp_path: Path) -> None:
    steps = check_steps(tmp_path, tmp_path / "demo.toml")
    names = [step.name for step in steps]
    assert len(set(names)) == len(names)
    assert all(names.index(need) < names.index(step.name) for step in steps for need in step.needs)
    for step in steps:
        if step.words[0] == BENCH:
            get_command(bench_app).make_context("tickrt-bench", list(step.words[1:]))


@pytest.mark.parametrize(("cc", "is_rtx"), [("8.9", True), ("9.0", False), ("10.3", False), ("12.0", True)])
def test_engines_of_tensorrt_rtx_are_measured_on_rtx_cards(tmp_path: Path, cc: str, is_rtx: bool) -> None:
    with simulated(cc=cc):
        assert has_rtx_card() == is_rtx
    names = {step.name for step in check_steps(tmp_path, tmp_path / "demo.toml", is_rtx=is_rtx)}
    assert "rtx-build" in names
    assert ("rtx-bench" in names) == is_rtx


def test_the_published_deployment_is_measured_with_detailed_layers(tmp_path: Path) -> None:
    published_deployment(tmp_path, "two-layers")
    deployment = load_deployment(tmp_path / "two-layers.toml")
    assert deployment.bundle == tmp_path / "two-layers"
    assert deployment.tables["build"]["verbosity"] == "detailed"
    assert deployment.tables["build"]["precision"] == "bf16"
    assert {shape.frames.max for shape in deployment.shapes} == {1500, 3000, 6000}


def test_figures_are_those_with_a_budget_and_the_competitors() -> None:
    result = {
        "points": [
            {"depth": 4, "variant": "plain", "overhead_ratio": 1.03, "budget": {"overhead_ratio": 1.02}},
            {"load": 0.6, "not_replayed": 0.01, "budget": {"not_replayed": 0.05}},
            {"depth": 8, "budget": {}, "competitors": {"torch": {"p50": 3.0, "over_tick": 1.9}}},
        ]
    }
    assert list(figures(CheckStep("s", (), 1.0), result)) == [
        Figure("s", "4, plain overhead_ratio", 1.03, 1.02, is_kept=False),
        Figure("s", "0.6 not_replayed", 0.01, 0.05),
        Figure("s", "8 torch over the tick", 1.9),
    ]


@pytest.mark.shipped
def test_on_the_simulated_gpu(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finds a tiny model built, and measures it; a step that fails, and what needs it, do not end the others."""
    demo = built(max_rows=16, backend=SIMULATED[0]).path
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)

    def few(folder: Path, demo: Path, layers: int, *, is_rtx: bool) -> list[CheckStep]:
        steps = {step.name: step for step in check_steps(folder, demo, layers)}
        bench = gpu_check._bench("demo-bench", demo, folder, 120, "--depth", "1", "--ticks", "2")
        broken = replace(steps["two-layers-export"], words=("engine_build.export", "acestep", "--layers", "none"))
        return [steps["demo-build"], bench, broken, steps["two-layers-build"]]

    monkeypatch.setattr(gpu_check, "check_steps", few)
    out = tmp_path / "results"
    done = CliRunner().invoke(app, ["--out", str(out), "--demo", str(demo)])
    assert done.exit_code == 1, done.output
    summary = json.loads((out / "summary.json").read_text())
    assert [step["status"] for step in summary["steps"]] == ["done", "done", "failed", "left out"], done.output
    assert [figure["what"] for figure in summary["figures"]] == ["1, plain overhead_ratio"]
    text = (out / "summary.txt").read_text()
    assert "two-layers-export is not done" in text
    assert "1.02" in text
