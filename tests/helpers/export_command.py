"""python -m engine_build.export, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT


def export(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder; its output is text."""
    return subprocess.run(
        [sys.executable, "-m", "engine_build.export", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
    )
