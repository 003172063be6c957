"""Runs steps one after the other: each a process with a log and a limit, whose end is that of all it has started."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from uuid import uuid4

from profiling.gpu_check.child import MARK, end_all
from runtime.base.untrusted import one_line
from runtime.commands.progress import waiting

ROOT = Path(__file__).resolve().parents[2]
CHILD = "profiling.gpu_check.child"
ERROR = "error: "
NOTE_CHARACTERS = 200
LAST_LINES = 40
FULL_BYTES = 1 << 20


@dataclass(frozen=True)
class CheckStep:
    """`python -m words`, in at most `limit_s` and what the steps before have left of theirs.

    needs: steps without which it is left out. kind, result: what it measures, as of figures.READERS, and where that is
    written. missing: why it cannot run here; "" where it can.
    """

    name: str
    words: tuple[str, ...]
    limit_s: float
    needs: tuple[str, ...] = ()
    kind: str = ""
    result: Path = Path()
    missing: str = ""


@dataclass(frozen=True)
class CheckOutcome:
    """How a step ended: done, failed, "out of time" or "left out", with its error, or else its log's last line."""

    name: str
    status: str
    seconds: float
    note: str = ""


def run_steps(steps: Sequence[CheckStep], folder: Path, minutes: float) -> Iterator[CheckOutcome]:
    """Run the steps, until `minutes` are over. A step that needs one that is not done is left out."""
    now = time.monotonic()
    end_s, limit_s, undone = now + 60 * minutes, now, {step.name for step in steps}
    for step in steps:
        limit_s += step.limit_s
        left_s = min(limit_s, end_s) - time.monotonic()
        missing = [f"{need} is not done" for need in step.needs if need in undone]
        if step.missing or missing:
            outcome = CheckOutcome(step.name, "left out", 0.0, step.missing or missing[0])
        elif end_s <= time.monotonic():
            outcome = CheckOutcome(step.name, "out of time", 0.0, f"{minutes:g} minutes were over before it began")
        else:
            with waiting(step.name):
                outcome = _run(step, folder, left_s)
        if outcome.status == "done":
            undone.remove(step.name)
        yield outcome


def _run(step: CheckStep, folder: Path, limit_s: float) -> CheckOutcome:
    started, mark = time.monotonic(), uuid4().hex
    lines = deque[str](maxlen=LAST_LINES)
    command = [sys.executable, "-m", CHILD, *step.words]
    environment = {**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    copying = threading.Thread(target=_copy, args=(process.stdout, folder / f"{step.name}.log", lines))
    copying.start()
    code = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        end_all(mark)
        process.wait()
        copying.join()
        process.stdin.close()
        process.stdout.close()
    seconds = round(time.monotonic() - started, 1)
    if code is None:
        return CheckOutcome(step.name, "out of time", seconds, f"it was ended after {limit_s:.0f} s")
    return CheckOutcome(step.name, "failed" if code else "done", seconds, _note(lines, folder, code))


def _copy(stream: IO[str], log: Path, lines: deque[str]) -> None:
    """Copy what a step prints into its log, and keep the last lines also where the log cannot be written."""
    try:
        with log.open("w", encoding="utf-8") as file:
            for line in stream:
                lines.append(line.strip())
                file.write(line)
                file.flush()
    except OSError as error:
        lines.append(f"{ERROR}{log}: {error.strerror}")
        lines.extend(line.strip() for line in stream)


def _note(lines: deque[str], folder: Path, code: int) -> str:
    """The last error of a step that failed, also where it had no room to tell it; else its last line."""
    said = [line for line in lines if line]
    errors = [line.removeprefix(ERROR) for line in said if line.startswith(ERROR)]
    if code and not errors and shutil.disk_usage(folder).free < FULL_BYTES:
        return f"no space left on the disk of {folder}"
    if code < 0 and not errors:
        return f"it was ended by {signal.Signals(-code).name}"
    last = (errors if code and errors else said)[-1:] or [f"status {code}"]
    return one_line(last[0], NOTE_CHARACTERS)
