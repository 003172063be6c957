"""Install the real bindings that the contract tests read, each into a folder of its own: `install.py FOLDER`.

They are for looking at only: nothing of them is importable by the tests' own environment. Where no wheel exists for
this interpreter or system, the folder holds NO_WHEEL.txt with the reason instead.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

NO_WHEEL = "NO_WHEEL.txt"
RELEASES = {
    "trt-10.16": (["tensorrt-cu13-bindings==10.16.1.11"], (3, 13)),
    "trt-11.4": (["tensorrt-cu13-bindings==11.4.0.106"], (3, 14)),
    "rtx-1.7": (["tensorrt-rtx-cu13-bindings==1.7.1.116"], (3, 14)),
    "nvtx": (["nvtx==0.2.17"], (3, 14)),
    "cuda": (["cuda-core==1.2.2", "cuda-bindings==13.5.0", "cuda-pathfinder==1.9.0"], (3, 14)),
}


def why_not(newest: tuple[int, int]) -> str:
    """Why there is no wheel for this interpreter and system, "" where there is one."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return f"no wheels for {sys.platform} on {platform.machine()}"
    if sys.version_info[:2] > newest:
        return f"no wheel for Python {platform.python_version()}, the newest is for {newest[0]}.{newest[1]}"
    return ""


def main(folder: Path) -> int:
    """Install what is missing; the first failure's exit status, else 0."""
    for name, (requirements, newest) in RELEASES.items():
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        if reason := why_not(newest):
            target.mkdir(parents=True)
            (target / NO_WHEEL).write_text(f"{' '.join(requirements)}: {reason}\n", encoding="utf-8")
            continue
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run([*pip, "--target", str(target), *requirements], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
