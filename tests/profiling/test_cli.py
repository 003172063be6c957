"""tickrt-profile as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from conftest import Built


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "profiling.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_profile_prints_tables_and_writes_json(built: Built, tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    result = run(str(built().path), "--rows", "2", "--runs", "3", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert "gemm" in result.stdout
    assert "without the profiler" in result.stdout
    assert json.loads(path.read_text())[0] == {"count": 3}


def test_an_engine_that_is_not_built_names_the_command(built: Built) -> None:
    result = run(str(built().path), "--engine", "nope")
    assert result.returncode == 2
    assert "tickrt-build" in result.stderr
    assert "Traceback" not in result.stderr
