"""tickrt-bench: a card for people, one JSON line for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiling.bench import BUDGETS, app, budget_of, main
from profiling.stream import Workload
from runtime.config import Deployment


def test_the_last_line_is_one_json_object(built: Callable[..., Deployment]) -> None:
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


def test_over_budget_fails_only_when_asked(built: Callable[..., Deployment]) -> None:
    # On a decoder of a few microseconds the loop itself is most of a tick.
    command = [str(built().path), "--depth", "1", "--ticks", "4"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert CliRunner().invoke(app, [*command, "--fail-over-budget"]).exit_code == 1


def test_two_passes_take_two_executes(built: Callable[..., Deployment]) -> None:
    command = [str(built().path), "--depth", "2", "--guidance", "3", "--ticks", "4"]
    fused, apart = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--two-pass"]))
    assert json.loads(fused.stdout.splitlines()[-1])["executes"] == 1
    assert json.loads(apart.stdout.splitlines()[-1])["executes"] == 2


def test_budgets_by_variant(built: Callable[..., Deployment]) -> None:
    cpu = built()
    assert budget_of(cpu, Workload(1, 32, 4)) == BUDGETS["plain"] == 1.04
    assert budget_of(cpu, Workload(1, 32, 4, guidance=3.0)) == 1.08
    assert budget_of(cpu, Workload(1, 32, 4, dcw=True)) is None
    assert budget_of(cpu.model_copy(update={"target": "tensorrt"}), Workload(1, 32, 4, guidance=3.0)) == 1.02


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--frames", "100000"], "no shape range for 100000 frames"), ([], "no configuration at")],
)
def test_mistakes_are_said_in_one_line(
    built: Callable[..., Deployment],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    path = built().path if arguments else tmp_path / "absent.toml"
    monkeypatch.setattr(sys, "argv", ["tickrt-bench", str(path), *arguments])
    with pytest.raises(SystemExit) as error:
        main()
    assert error.value.code == 1
    assert message in " ".join(capsys.readouterr().err.split())
