"""A build process, from outside: its events come in, its crash is an error message, Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

from pydantic import BaseModel

from engine_build.build_log import BuildLog
from runtime.errors import BuildError

CANCEL_S = 1.0
STDERR_LINES = 5
CRASH_FIX = "the same command again; where it crashes again, a lower optimization_level in [build]"


class BuildProcess:
    """One process, asked for one piece of work after the other; a context. It begins when it is first asked.

    Interrupted, it is told to end by the end of its input, and killed where it does not within CANCEL_S seconds.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        # Open for as long as the process lives; __exit__ closes it.
        self._errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115

    def __enter__(self) -> BuildProcess:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            if self._process is not None:
                _end(self._process)
        finally:
            self._errors.close()

    def ask(self, work: str, request: BaseModel, log: BuildLog) -> dict[str, Any]:
        """Do `work` ("plan" or "smoke"); gives the facts that it found out.

        Raises BuildError: what the process said, or how it ended, with the last lines of its log.
        """
        process = self._process = self._process or self._start()
        last = _listen(process, work, request, log)
        if last is None:
            _end(process)
            raise BuildError(self._crash(process.returncode, log), fix=CRASH_FIX)
        if last["event"] == "failed":
            words = f" ({log.last_words})" if log.last_words and log.last_words not in last["what"] else ""
            raise BuildError(f"{last['what']}{words}", fix=last["fix"])
        facts: dict[str, Any] = last["facts"]
        return facts

    def _start(self) -> subprocess.Popen[str]:
        """In a session of its own: Ctrl-C goes to us alone. It imports from where we do."""
        return subprocess.Popen(
            [sys.executable, "-m", "engine_build.build_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )

    def _crash(self, status: int, log: BuildLog) -> str:
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.readlines()[-STDERR_LINES:]]
        said = "; ".join(line for line in (log.last_words, *lines) if line)
        return f"the build process ended with {how}; it last said: {said or 'nothing'}"


def _listen(process: subprocess.Popen[str], work: str, request: BaseModel, log: BuildLog) -> dict[str, Any] | None:
    """The event that ends the work; None where the process ended before."""
    assert process.stdin is not None
    assert process.stdout is not None
    line = json.dumps({"work": work, "request": request.model_dump(mode="json")})
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(f"{line}\n")
        process.stdin.flush()
    for text in process.stdout:
        event: dict[str, Any] = json.loads(text)
        if event["event"] != "log":
            return event
        log.add(event["severity"], event["text"])
    return None


def _end(process: subprocess.Popen[str]) -> None:
    """Ask it to end, by the end of its input; kill it where it does not."""
    try:
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(CANCEL_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
