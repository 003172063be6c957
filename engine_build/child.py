"""Runs a build process: its events come in, its crash is an error message, Ctrl-C ends it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from pydantic import BaseModel

from engine_build.build_log import BuildLog
from runtime.errors import BuildError

CANCEL_S = 1.2
STDERR_LINES = 5
CRASH_FIX = "the same command again; where it crashes again, a lower optimization_level in [build]"


def run_child(work: str, request: BaseModel, log: BuildLog) -> dict[str, Any]:
    """Do `work` ("plan" or "smoke") in a process of its own; gives the facts that it found out.

    Raises BuildError: what the process said, or how it ended, with the last lines of its log. Interrupted, it is asked
    to end, and killed where it does not within CANCEL_S seconds.
    """
    command = [sys.executable, "-m", "engine_build.build_process", work]
    with tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )  # a session of its own: Ctrl-C goes to us alone
        try:
            last = _listen(process, request, log)
        finally:
            _end(process)
        if last is None:
            raise BuildError(_crash(process.returncode, log, errors), fix=CRASH_FIX)
    if last["event"] == "failed":
        words = f" ({log.last_words})" if log.last_words and log.last_words not in last["what"] else ""
        raise BuildError(f"{last['what']}{words}", fix=last["fix"])
    facts: dict[str, Any] = last["facts"]
    return facts


def _listen(process: subprocess.Popen[str], request: BaseModel, log: BuildLog) -> dict[str, Any] | None:
    """The last event, if it came to that."""
    assert process.stdin is not None
    last = None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(request.model_dump_json() + "\n")
        process.stdin.flush()
    for event in _events(process):
        if event["event"] == "log":
            log.add(event["severity"], event["text"])
        else:
            last = event
    return last


def _events(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


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


def _crash(status: int, log: BuildLog, errors: IO[str]) -> str:
    how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
    errors.seek(0)
    said = log.last_words or "; ".join(line.strip() for line in errors.readlines()[-STDERR_LINES:] if line.strip())
    return f"the build process ended with {how}; it last said: {said or 'nothing'}"
