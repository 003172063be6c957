"""The peak memory of an export in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.paths import ROOT

EXPORT = """
import atexit
from pathlib import Path
from engine_build.export.__main__ import main

atexit.register(lambda: print(Path("/proc/self/status").read_text()))
main()
"""


def peak_bytes(family: str, checkpoint: Path, out: Path, *more: str) -> int:
    """Peak resident memory, pages of files that it maps included. more: options."""
    options = [family, "--canvas-seconds", "2", "--checkpoint", str(checkpoint), "--out", str(out), *more]
    done = subprocess.run(
        [sys.executable, "-c", EXPORT, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return 1024 * int(done.stdout.split("VmHWM:")[1].split()[0])
