"""The installed commands, interrupted while their modules are imported."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from helpers.paths import ROOT

from runtime.commands import startup

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]


def test_every_script_runs_the_module_of_its_command() -> None:
    names = {command: command.removeprefix("tickrt-") for command in startup.COMMANDS}
    assert {command: f"runtime.commands.startup:{name}" for command, name in names.items()} == SCRIPTS
    assert all(getattr(startup, name).args == (command,) for command, name in names.items())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_the_imports_ends_without_a_traceback(number: signal.Signals, tmp_path: Path) -> None:
    # In short sleeps: a signal that comes just before one is handled when it ends.
    waits = "for _ in range(600):\n    time.sleep(0.1)\n"
    (tmp_path / "slow_command.py").write_text(f"import time\nprint('importing', flush=True)\n{waits}")
    program = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
from runtime.commands import startup
startup.COMMANDS["tickrt"] = "slow_command"
startup.tickrt()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        assert process.communicate() == ("", "error: interrupted\n")
    assert process.returncode == 130


@pytest.mark.parametrize("module", ["runtime.commands.startup", "server.__main__"])
def test_an_interrupt_of_the_very_first_imports_ends_without_a_traceback(module: str) -> None:
    """The import of the module signal, one of the first, is interrupted; --help would end with 0."""
    program = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "runtime/api")!r}]
sys.modules.pop("signal", None)

class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "signal":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupted())
sys.argv[:] = ["tickrt", "--help"]
import {module}
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")


def test_another_error_keeps_its_traceback() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runtime.commands.startup; 1 / 0"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


def test_garbage_is_collected_again_when_the_imports_are_done(tmp_path: Path) -> None:
    (tmp_path / "command.py").write_text(
        "import gc\nat_import = gc.isenabled()\ndef main(): print(at_import, gc.isenabled())\n"
    )
    program = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
from runtime.commands import startup
startup.COMMANDS["tickrt"] = "command"
startup.tickrt()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "False True\n"), ended.stderr
