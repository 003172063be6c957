"""The worker process that builds and tries plans: its requests, its log, and how it is cancelled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter, deque
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from engine_build.graphs.tensor_roles import Port
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
            [sys.executable, "-m", "engine_build.build.worker_main"],
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


TENSORRT_OPTIONS = (
    "optimization_level", "workspace_mib", "refit", "verbosity", "max_aux_streams", "version_compatible",
    "hardware_compatibility", "tf32",
)  # fmt: skip


class PlanRequest(BaseModel):
    """One plan to build: the graph's file, where the plan goes, and everything that decides what it becomes.

    `options` are those of TENSORRT_OPTIONS; `profiles` map inputs to their smallest, usual and largest shapes, as text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    graph: Path
    plan: Path
    options: dict[str, Any]
    profiles: list[dict[str, str]]
    timing_cache: Path | None = None
    threads: int = 0


class SmokeRequest(BaseModel):
    """An engine to run once at every sample (sizes of the shape letters of `inputs`).

    Outputs of the first samples go into the files of `results` (numpy's .npz); all of them must be finite.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    folder: Path
    inputs: list[Port]
    samples: list[dict[str, int]]
    results: list[Path]


def parse_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """ "1x2 4x2 8x2" -> ((1, 2), (4, 2), (8, 2))."""
    return tuple(tuple(int(size) for size in shape.split("x")) for shape in text.split())


KEPT_LINES = 8


ERRORS = ("INTERNAL_ERROR", "ERROR")


SKIPPED_TACTIC = "skipping tactic"


class BuildLog:
    """Messages of one build, by severity ("ERROR", "WARNING", ...). One thread at a time."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)
        self.latest: deque[str] = deque(maxlen=KEPT_LINES)
        self.skipped_tactics = 0
        self._warnings: Counter[str] = Counter()

    def add(self, severity: str, text: str) -> None:
        """Take one message."""
        line = " ".join(text.split())
        if SKIPPED_TACTIC in line.lower():
            self.skipped_tactics += 1
            return
        self.latest.append(line)
        if severity in ERRORS:
            self.errors.append(line)
        elif severity == "WARNING":
            self._warnings[line] += 1

    @property
    def last_words(self) -> str:
        """The last errors, else the last lines of any kind; for a message."""
        return "; ".join(self.errors or self.latest)

    def summary(self) -> list[str]:
        """Every warning once with its count, and one line for all tactics that were skipped."""
        lines = [line if count == 1 else f"{line} ({count} times)" for line, count in self._warnings.items()]
        if self.skipped_tactics:
            lines.append(f"{self.skipped_tactics} tactics were skipped, mostly for want of memory: others are used")
        return lines
