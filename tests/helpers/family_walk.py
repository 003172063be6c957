"""The walk of engine_build/README.md, "A family of your own": its files and commands, in their order."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.paths import ROOT

SECTION = "### A family of your own\n"
ADDRESS = "localhost:8000"


def blocks() -> list[tuple[str, str]]:
    """(language, text) of the section's code blocks."""
    text = (ROOT / "engine_build" / "README.md").read_text(encoding="utf-8")
    section = text.partition(SECTION)[2].partition("\n#### ")[0]
    return re.findall(r"^```(py|sh)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)


def with_the_wheel_alone(folder: Path) -> str:
    """The interpreter of a new environment with our wheel; all else is that of this one, which it does not copy."""
    source, new = folder / "source", folder / "venv"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "tests", "build", "dist", "*.egg-info"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", new], check=True)
    python = str(new / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    (wheel,) = folder.glob("tickrt-*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", "--no-index", wheel], check=True)
    (packages,) = new.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    shutil.rmtree(source)
    return python


class Walk:
    """The walk in a folder, with the commands that are installed beside an interpreter."""

    def __init__(self, folder: Path, executable: str = sys.executable) -> None:
        self.folder = folder
        self._executable = executable
        path = os.pathsep.join([str(Path(executable).parent), os.environ["PATH"]])
        self._environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
        (_, family), *self._blocks = blocks()
        (folder / "ltx.py").write_text(family, encoding="utf-8")

    def export(self) -> Path:
        """The first command. Returns the deployment."""
        self._run(["sh", "-c", self._blocks[0][1].splitlines()[0]])
        return self.folder / "ltx.toml"

    @contextmanager
    def complete(self) -> Iterator[str]:
        """All of it; the server that it starts goes on, at this address."""
        server: subprocess.Popen[str] | None = None
        address = ADDRESS  # of the shown requests
        try:
            for language, text in self._blocks:
                if language == "py":
                    self._run([self._executable, "-c", text])
                    continue
                for line in text.splitlines():
                    if line.startswith("tickrt-serve"):
                        server = self._start(line)
                        address = self._ready(server)
                    else:
                        self._run(["sh", "-c", line.replace(ADDRESS, address)])
            yield address
        finally:
            if server is not None:
                server.send_signal(signal.SIGTERM)
                server.communicate(timeout=60)

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command[-1][:200]}\n{done.stdout}{done.stderr}"

    def _start(self, line: str) -> subprocess.Popen[str]:
        command = ["sh", "-c", f"exec {line} --port 0"]
        return subprocess.Popen(command, cwd=self.folder, env=self._environment, stdout=subprocess.PIPE, text=True)

    def _ready(self, server: subprocess.Popen[str]) -> str:
        assert server.stdout is not None
        said = ""
        for line in server.stdout:
            said += line
            if found := re.search(r"ready on http://(\S+:\d+)", line):
                return found[1]
        raise AssertionError(said)
