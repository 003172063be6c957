"""What needs no GPU, before a check: bundles with random weights at published sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from profiling.gpu_check.running import ROOT
from runtime.config.bundle import BUNDLE_FILE
from runtime.errors import BuildError
from runtime.task_progress import waiting

EXPORT = "engine_build.export"
EXPORT_PACKAGES = ("torch", "diffusers", "transformers", "onnxscript")
SECONDS = "60"
# A decoder of nearly nothing, beside a part that is measured alone.
NO_DECODER = (
    "--layers", "1", "--hidden", "64", "--intermediate", "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "32",
    "--condition", "64",
)  # fmt: skip
# Bundle -> the exporter's words.
EXPORTS: Mapping[str, tuple[str, ...]] = {
    "codec": ("acestep", "--random", *NO_DECODER),
    "planner": ("acestep", "--random", "--planner", "0.6b", *NO_DECODER),
    "two-layers": ("acestep", "--random", "--layers", "2"),
    "full": ("acestep", "--random", "--layers", "24"),
}


def export_all(source: Path) -> None:
    """Export the bundles that `source` lacks; an export that was interrupted goes on. Raises BuildError, OSError."""
    source.mkdir(parents=True, exist_ok=True)
    for name, words in EXPORTS.items():
        if (source / name / BUNDLE_FILE).is_file() and (source / f"{name}.toml").is_file():
            continue
        where = ("--canvas-seconds", SECONDS, "--out", str(source / name), "--deployment", str(source / f"{name}.toml"))
        with waiting(f"exporting {name}"):
            call(f"the export of {name}", "-m", EXPORT, *words, *where)


def call(what: str, *words: str) -> None:
    """Run Python with `words`; what it prints is shown where it fails. Raises BuildError."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["it said nothing"]
        error = [line for line in lines if line.startswith("error: ")] or lines[-1:]
        raise BuildError(
            f"{what} failed: {error[-1].removeprefix('error: ')}",
            fix=next(
                (line.removeprefix("fix: ") for line in lines if line.startswith("fix: ")), "the same again goes on"
            ),
        )
