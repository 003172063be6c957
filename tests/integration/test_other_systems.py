"""Build, generate and serve where what only Linux, or only POSIX, has is missing, as on macOS and Windows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from helpers.factories import tiny_deployment
from helpers.http_harness import GENERATIONS
from helpers.paths import ROOT

pytestmark = pytest.mark.shipped

# What the standard library and other packages need here is imported before; ours are imported after.
PREPARE = """
import asyncio, multiprocessing, os, signal, socket, subprocess, sys, tempfile
import av, fastapi_offline, filelock, onnx, onnxruntime, platformdirs, polygraphy, rich.console, typer, uvicorn
for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for owner, names in (
    (os, "sched_getaffinity sched_setaffinity O_DIRECTORY O_CLOEXEC fork getuid geteuid posix_fadvise setpriority"),
    (signal, "SIGHUP SIGUSR1 SIGUSR2 SIGPIPE pthread_kill pthread_sigmask"),
    (socket, "SO_REUSEPORT TCP_USER_TIMEOUT TCP_KEEPIDLE"),
):
    for name in names.split():
        if hasattr(owner, name):
            delattr(owner, name)
multiprocessing.set_start_method("spawn", force=True)
open_any = os.open

def open_file(path, *args, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "a folder cannot be opened", str(path))
    return open_any(path, *args, **options)

def no_handler(*args):
    raise NotImplementedError

os.open = open_file
asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = no_handler
"""


def command(module: str, *arguments: str) -> list[str]:
    """The command of a module with a `main`, in an interpreter without what is missing elsewhere."""
    program = f"{PREPARE}\nfrom {module} import main\nsys.argv = {[module, *arguments]!r}\nmain()"
    return [sys.executable, "-c", program]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tiny_deployment(tmp_path)


def run(module: str, *arguments: str) -> str:
    done = subprocess.run(command(module, *arguments), capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_build_generate_and_clean(config: Path, tmp_path: Path) -> None:
    assert "built" in run("engine_build.cli", str(config))
    run("runtime.commands.generate", str(config), "--prompt", "a", "--out", str(tmp_path / "a.flac"))
    assert (tmp_path / "a.flac").stat().st_size > 100
    assert "removed" in run("engine_build.cli", "clean", str(config), "--yes")


def test_serve_with_a_store(config: Path, tmp_path: Path) -> None:
    run("engine_build.cli", str(config))
    environment = {**os.environ, "TICKRT_STATE": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1"}
    serve = command("server.cli", str(config), "--port", "0")
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        assert process.stdout is not None
        found = (re.search(r"ready on (http://\S+)", line) for line in process.stdout)
        url = next(match.group(1) for match in found if match)
        answer = httpx.post(f"{url}{GENERATIONS}", json={"prompt": "a"}, timeout=60)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    assert answer.is_success
    assert (tmp_path / "state" / "sessions.sqlite").is_file()
