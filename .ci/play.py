"""Install a package in an empty environment and use it as its user would: python .ci/play.py PACKAGE

It installs PACKAGE[cpu], builds the demo's engines, generates a file, serves the demo and looks at what comes. It needs
nothing but the standard library, on Linux, macOS and Windows, and tries the Python that runs it.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

# Of full scale; silence has less, and music of the demo far more.
LEAST_PEAK = 0.05
START_S, STOP_S, ANSWER_S = 300, 60, 120
BODY = {"prompt": "dark bass and drums", "seconds": 2, "seed": 1, "response_format": "wav", "stream": False}


class Installed:
    """An environment in `folder` with a package, and the variables of a user who has set nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.work = folder, folder / "work"
        self.bin = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
        self.work.mkdir(parents=True)
        foreign = ("PYTHON", "TICKRT_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(foreign)}
        self.variables = {**kept, "TICKRT_CACHE": str(folder / "cache"), "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}

    def install(self, requirement: str) -> None:
        """Make the environment and install a requirement with what it needs."""
        venv.create(self.folder / "environment", with_pip=True)
        pip = ("python", "-m", "pip", "--disable-pip-version-check", "--quiet")
        self.run(*pip, "install", requirement)
        self.run(*pip, "check")

    def path_of(self, command: str) -> str:
        """The path of an installed command."""
        found = shutil.which(command, path=str(self.bin))
        if found is None:
            raise SystemExit(f"error: {command} is not installed in {self.bin}")
        return found

    def run(self, command: str, *arguments: str, status: int = 0) -> str:
        """All that a command prints. Ends the program where it has another exit status."""
        done = subprocess.run(
            [self.path_of(command), *arguments],
            cwd=self.work, env=self.variables, text=True, encoding="utf-8", stdout=-1, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode != status:
            raise SystemExit(f"error: {command} {' '.join(arguments)}: status {done.returncode}\n{done.stdout}")
        return done.stdout

    @contextmanager
    def serving(self) -> Iterator[str]:
        """The address of `tickrt demo` until the end of the block; it ends with status 0 after Ctrl-C."""
        command = [self.path_of("tickrt"), "demo", "--no-browser", "--port", "0"]
        process = subprocess.Popen(command, cwd=self.work, env=self.variables, text=True, encoding="utf-8", stdout=-1)
        assert process.stdout is not None
        late = threading.Timer(START_S, process.kill)
        late.start()
        try:
            words = (line.split() for line in process.stdout)
            ready = next((found[2] for found in words if found[:2] == ["ready", "on"]), None)
            if ready is None:
                raise SystemExit(f"error: tickrt demo ends before it is ready, with status {process.wait()}")
            late.cancel()
            yield ready
            if os.name == "nt":
                return  # Ctrl-C would reach this program, too
            process.send_signal(signal.SIGINT)
            if status := process.wait(STOP_S):
                raise SystemExit(f"error: tickrt demo ends with status {status} after Ctrl-C")
        finally:
            late.cancel()
            process.kill()
            process.wait()
            process.stdout.close()


def check_sound(file: Path, seconds: float) -> None:
    """Ends the program where a WAV file is shorter than so many seconds, or silent."""
    with wave.open(str(file)) as audio:
        length_s, samples = audio.getnframes() / audio.getframerate(), array.array("h")
        samples.frombytes(audio.readframes(audio.getnframes()))
    peak = max(map(abs, samples), default=0) / 32768
    if length_s < seconds or peak < LEAST_PEAK:
        raise SystemExit(f"error: {file.name} has {length_s:.2f} s with a peak of {peak:.3f}")


def play(requirement: str, folder: Path) -> None:
    """All steps, each with its time. Ends the program with a message where one fails."""
    installed, began_s = Installed(folder), time.monotonic()

    def done(step: str) -> None:
        nonlocal began_s
        print(f"  {step}: {time.monotonic() - began_s:.1f} s", flush=True)
        began_s = time.monotonic()

    print(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}", flush=True)
    installed.install(requirement)
    done("installed")
    if "tickrt demo" not in installed.run("tickrt", status=2):
        raise SystemExit("error: tickrt without arguments does not say what to do next")
    said = installed.run("tickrt", "--version").split()
    installed.run("tickrt", "build", "demo")
    done(f"{' '.join(said[:2])}: engines built")
    made = installed.work / "calm.wav"
    installed.run("tickrt", "generate", "demo", "--prompt", "calm piano in D minor", "--seconds", "3", "-o", str(made))
    check_sound(made, 3)
    done("generated")
    with installed.serving() as url:
        done("ready to play")
        with urlopen(url, timeout=ANSWER_S) as page:
            if b"<title>TickRT" not in page.read():
                raise SystemExit("error: the page is not there")
        headers = {"content-type": "application/json"}
        request = Request(f"{url}/v1/audio/generations", json.dumps(BODY).encode(), headers)
        with urlopen(request, timeout=ANSWER_S) as answer:
            (installed.work / "bass.wav").write_bytes(answer.read())
        check_sound(installed.work / "bass.wav", 2)
    done("served")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", help="a wheel, a source distribution, or a requirement such as tickrt==0.1.0")
    package = parser.parse_args().package
    name, equal, version = package.partition("==")
    requirement = f"{Path(package).resolve()}[cpu]" if Path(package).is_file() else f"{name}[cpu]{equal}{version}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        play(requirement, Path(folder).resolve())
    print(f"{sys.executable}: {package} installs, builds, generates and serves", flush=True)


if __name__ == "__main__":
    main()
