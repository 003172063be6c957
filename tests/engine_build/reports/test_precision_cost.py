"""The command precision_cost: rules, errors, messages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

DEMO = ROOT / "configs/demo.toml"


def test_the_command_prints_rules_and_errors() -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost"]
    command += [str(DEMO), "--recipe", "bf16", "--target", "cuda"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    for wanted in ("bf16 on cuda", "time embedding and AdaLN tables", "no kernel", "0.900", "of the work in bf16"):
        assert wanted in result.stdout


def test_a_missing_deployment_is_an_error_message(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine_build.reports.precision_cost", str(tmp_path / "none.toml")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 2
    assert "none.toml" in result.stderr
    assert "Traceback" not in result.stderr
