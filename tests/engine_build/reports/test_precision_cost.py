"""The command precision_cost: rules, errors, messages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from typer.testing import CliRunner

from engine_build.reports import precision_cost
from engine_build.reports.end_to_end import EndToEndComparison
from runtime.config.deployment import Deployment

DEMO = ROOT / "configs/demo.toml"


@pytest.mark.shipped
def test_the_command_prints_rules_and_errors() -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost"]
    command += [str(DEMO), "--recipe", "bf16", "--target", "cuda"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    for wanted in ("bf16 on cuda", "time embedding and AdaLN tables", "no kernel", "0.900", "of the work in bf16"):
        assert wanted in result.stdout


def test_whole_generations_are_compared_prompt_by_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def compare(deployment: Deployment, recipe: str, prompts: Sequence[str], **how: Any) -> EndToEndComparison:
        asked.append((f"{recipe} on {how['target']}", len(prompts)))
        exact = np.resize(np.array([1, -1], np.float32), (3, 4, 2))
        silence = np.zeros((4096, 2), np.float32)
        audio = [(silence, silence)] * 3 if recipe == "int8" else []  # of a bundle with a codec
        return EndToEndComparison(exact, exact + np.array([0.25, 0.125, 0.5], np.float32)[:, None, None], audio)

    monkeypatch.setattr(precision_cost, "compare_end_to_end", compare)
    monkeypatch.setattr(precision_cost, "_measure", lambda *arguments: [])
    monkeypatch.setattr(precision_cost, "quantization_for", lambda *arguments: None)
    words = [str(DEMO), "--recipe", "bf16", "--recipe", "int8", "--target", "cpu", "--end-to-end", "3"]
    result = CliRunner().invoke(precision_cost.app, words)
    assert result.exit_code == 0, result.output
    assert asked == [("bf16 on cpu", 3), ("int8 on cpu", 3)]
    errors = [line.split()[-1] for line in result.stdout.splitlines() if "e-01" in line]
    assert errors == ["2.50e-01", "1.25e-01", "5.00e-01"] * 2
    assert result.stdout.count("0.00 dB") == 3


@pytest.mark.shipped
def test_a_missing_deployment_is_an_error_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost", str(tmp_path / "none.toml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert "none.toml" in result.stderr
    assert "Traceback" not in result.stderr
