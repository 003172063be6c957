"""tickrt-bench: a card for people, one JSON line for machines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Built
from factories import tiny_deployment
from typer.testing import CliRunner

from profiling.bench import BUDGETS, app, budget_of
from profiling.stream import Workload


def test_the_last_line_is_one_json_object(built: Built) -> None:
    command = [str(built().path), "--depth", "2", "--guidance", "3", "--dcw", "--ticks", "4"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0
    card = json.loads(result.stdout.splitlines()[-1])
    assert {"p50", "p95", "p99"} <= card["tick_ms"].keys()
    assert card["tick_ms"]["p50"] > 0 < card["engine_ms"]["p50"]
    assert (card["depth"], card["rows"], card["frames"], card["steps"]) == (2, 4, 32, 4)
    assert (card["variant"], card["budget"], card["allocations_per_tick"]) == ("guidance+dcw", 1.12, 0)
    assert card["overhead_inside_tick"] > 1.0
    assert card["within_budget"] == (card["overhead_ratio"] <= 1.12)
    assert card["audio_s_per_s"] == pytest.approx(card["finished_per_s"] * 32 / 25, rel=1e-3)
    assert len(card["engine_sha256"]) == 64
    assert card["versions"].keys() == {"tickrt", "python", "numpy", "onnxruntime"}
    assert "tick / engine" in result.stdout


def test_over_budget_fails_only_when_asked(built: Built) -> None:
    # On a decoder of a few microseconds the loop itself is most of a tick.
    command = [str(built().path), "--depth", "1", "--ticks", "4"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--fail-over-budget"]).exit_code == 1


def test_two_passes_take_two_executes(built: Built) -> None:
    command = [str(built().path), "--depth", "2", "--guidance", "3", "--ticks", "4"]
    fused, apart = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--two-pass"]))
    assert json.loads(fused.stdout.splitlines()[-1])["executes"] == 1
    assert json.loads(apart.stdout.splitlines()[-1])["executes"] == 2


def test_budgets_by_variant(built: Built) -> None:
    cpu = built()
    assert budget_of(cpu, Workload(1, 32, 4)) == BUDGETS["plain"] == 1.04
    assert budget_of(cpu, Workload(1, 32, 4, guidance=3.0)) == 1.08
    assert budget_of(cpu, Workload(1, 32, 4, dcw=True)) is None
    assert budget_of(cpu.model_copy(update={"target": "tensorrt"}), Workload(1, 32, 4, guidance=3.0)) == 1.02


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["CONFIG", "--frames", "100000"], 2, "no shape range for 100000 frames"),
        (["absent.toml"], 2, "no configuration at absent.toml"),
        (["UNBUILT"], 3, "is not built"),
    ],
)
def test_mistakes_are_said_with_what_mends_them(
    built: Built, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    paths = {"CONFIG": str(built().path), "UNBUILT": str(tiny_deployment(tmp_path))}
    result = CliRunner().invoke(app, [paths.get(word, word) for word in arguments])
    assert (result.exit_code, result.stdout) == (status, "")
    assert message in result.stderr
    assert "fix: " in result.stderr
