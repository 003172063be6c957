"""A build, a generation and a served request connect to nothing else and write nothing outside of their folders."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.factories import tiny_deployment
from helpers.paths import ROOT

pytestmark = pytest.mark.shipped

# In one process each, as a user would; the server answers one request and ends.
SERVE = """
import os, signal, sys, threading, urllib.request
from server.app import create_app
from server.cli import serve_deployment
import server.cli

def request(url, settings, bundle):
    def post():
        body = b'{"prompt": "a", "seconds": 0.4, "steps": 2}'
        request = urllib.request.Request(url + "/v1/audio/generations", body, {"content-type": "application/json"})
        assert len(urllib.request.urlopen(request, timeout=60).read()) > 1000
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=post).start()

server.cli.print_ready = request
sys.exit(serve_deployment(server.cli.Path(sys.argv[1]), port=0))
"""
BUILD = "import sys; from engine_build.cli import main; main()"
GENERATE = "import sys; from runtime.commands.generate import main; main()"
IMPORT = "import tickrt, runtime.engines.onnxruntime"
SPAWN = """
import multiprocessing
from runtime.base.errors import TickError
if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=__import__, args=("onnxruntime",))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
"""
# Loopback is what the server and its client use; a socket of the netlink family asks the kernel, not the network.
REMOTE = re.compile(r"(?:connect|sendto|sendmsg|sendmmsg)\(.*sa_family=AF_INET6?,.*")
LOOPBACK = re.compile(r'inet_addr\("127\.0\.0\.1"\)|inet_pton\(AF_INET6, "::1"')

Run = Callable[..., None]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def run(home: Path, tmp_path: Path) -> Run:
    """`run(code, *arguments, before=(...))`: Python code in a process of its own, with that home folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "ORT_"))}
    places = {"HOME": str(home), "PYTHONPATH": f"{ROOT}:{ROOT / 'runtime/api'}"}

    def start(code: str, *arguments: object, before: tuple[str, ...] = ()) -> None:
        script = tmp_path / "script.py"
        script.write_text(code, encoding="utf-8")
        done = subprocess.run(
            [*before, sys.executable, str(script), *map(str, arguments)],
            env={**environment, **places},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    return start


def test_nothing_is_written_to_the_home_folder(run: Run, home: Path, tmp_path: Path) -> None:
    config = tiny_deployment(tmp_path)
    run(BUILD, config)
    run(GENERATE, config, "--prompt", "a", "--steps", 2, "--seconds", 0.4, "--out", tmp_path / "a.wav")
    run(SERVE, config)
    run(IMPORT)
    run(SPAWN)
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_process_connects_to_another_machine(run: Run, tmp_path: Path) -> None:
    config = tiny_deployment(tmp_path)
    trace = tmp_path / "trace.txt"
    strace = ("strace", "--follow-forks", "--quiet=all", "--trace=%network", f"--output={trace}")
    calls: list[str] = []
    for code, arguments in ((BUILD, [config]), (SERVE, [config])):
        run(code, *arguments, before=strace)
        calls += trace.read_text(encoding="utf-8", errors="replace").splitlines()
    assert any("sin_port" in call for call in calls), "the request itself was not seen"
    assert [call for call in calls if REMOTE.search(call) and not LOOPBACK.search(call)] == []
