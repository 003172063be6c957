"""Steps of a run at full size: times and peaks are measured, a step that fails ends those that need it alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiling import full_size
from profiling.full_size import app, run_step
from runtime.commands.terminal import EXIT_OVER_LIMIT


def test_a_step_has_its_time_its_peak_and_its_log(tmp_path: Path) -> None:
    work = "held = bytearray(300_000_000); import time; time.sleep(0.4)"
    result = run_step("model", "step", ("timeit", "-n", "1", "-r", "1", work), tmp_path / "log")
    assert result.status == "done"
    assert 0.3 < result.peak_gb < 0.6
    assert result.seconds >= 0.4
    assert "best of 1" in (tmp_path / "log").read_text()


def test_what_needs_a_failed_step_is_left_out_and_the_next_model_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_size, "MODELS", {"one": ("acestep", "--nonsense"), "two": ("acestep", "--nonsense")})
    ended = CliRunner().invoke(app, ["--out", str(tmp_path)])
    assert ended.exit_code == EXIT_OVER_LIMIT, ended.output
    steps = json.loads((tmp_path / "summary.json").read_text())
    assert [step["model"] for step in steps] == ["one"] * 5 + ["two"] * 5
    assert [step["status"].partition(":")[0] for step in steps[:5]] == ["failed", *["left out"] * 4]
    assert "--nonsense" in (tmp_path / "one-export.log").read_text()
