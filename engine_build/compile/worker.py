"""A worker process for work that may crash the process: building a TensorRT plan, running a built engine.

The parent sends (task, request) over a pipe; the worker answers with log messages and then one result or one error.
When the pipe closes, also because the parent was killed, the worker cancels its task and ends; a task that goes on for
CANCEL_S is ended with the process and those that it started. A worker that hangs is killed, and its task given to
another one, once.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

from runtime.base.errors import BuildError, TickError
from runtime.base.threads import CANCEL_S, end_with_parent, start_python

STDERR_LINES = 5
CRASH_FIX = "run the command again; if it crashes again, set a lower optimization_level in [build]"
STALL_FIX = (
    "leave it more memory: end other programs, lower workspace_mib in [build] or the largest sizes in [[shapes]]; "
    "where it waits for something else, a larger watchdog_s in [build]"
)
LIBRARY_FIX = (
    "install the package again that needs it (tickrt-build --version lists those of engines), or what it names"
)
# Builds that work use CPU time every second, also where they swap.
WATCHDOG_S = 300.0
# How often a worker is looked at, at least ten times in its watchdog's time.
POLL_S = 1.0
KEPT_LINES = 8
ERRORS = ("INTERNAL_ERROR", "ERROR")
SKIPPED_TACTIC = "skipping tactic"

PROC = Path("/proc")
# Of the watchdog's time: what a process uses less CPU than, apart from its I/O, does not work. A sleeping thread that
# looks at a flag now and then uses less.
SHARE = 0.01

OnLog = Callable[[str, str], None]
Task = Callable[[Any, threading.Event, OnLog], Any]


@dataclass(frozen=True)
class CompileRequest:
    """One engine file to build: the graph's file, where the engine goes, and all options that affect it.

    `target`: whose builder it is. `options` are those of its identity; `profiles` map inputs to their min,
    opt and max shapes, as text.
    """

    target: str
    label: str
    graph: Path
    engine: Path
    options: Mapping[str, Any]
    profiles: Sequence[Mapping[str, str]]
    timing_cache: Path | None = None
    threads: int = 0


class CrashError(BuildError):
    """A task ended its process, or did not end."""


class BuildLog:
    """Messages of one build, by severity ("ERROR", "WARNING", ...). Not thread-safe."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=KEPT_LINES)
        self.latest: deque[str] = deque(maxlen=KEPT_LINES)
        self.skipped_tactics = 0
        self._warnings: Counter[str] = Counter()

    def add(self, severity: str, text: str) -> None:
        """Add one message."""
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
    def last_lines(self) -> str:
        """The last errors, or the last lines of any severity where there are no errors; for an error message."""
        return "; ".join(self.errors or self.latest)

    def summary(self) -> list[str]:
        """Every warning once with its count, and one line for all skipped tactics."""
        lines = [line if count == 1 else f"{line} ({count} times)" for line, count in self._warnings.items()]
        if self.skipped_tactics:
            lines.append(f"{self.skipped_tactics} tactics were skipped, most for lack of memory; others were used")
        return lines


class _StalledError(Exception):
    """A worker hung and was killed."""


class Worker:
    """One process that runs tasks one after the other; a context manager. It starts with the first task.

    watchdog_s: after so many seconds without a message, CPU time or I/O a process hangs; 0: it never does.
    On exit, also after Ctrl-C, the pipe is closed; a process that has not ended after CANCEL_S seconds is killed.
    """

    def __init__(self, watchdog_s: float = WATCHDOG_S) -> None:
        self._watchdog_s = watchdog_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection[Any, Any] | None = None
        # Open for as long as the process runs; __exit__ closes it.
        self._stderr = tempfile.TemporaryFile(mode="w+", encoding="utf-8", errors="replace")  # noqa: SIM115

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._end()
        finally:
            self._stderr.close()

    def run(self, task: Task, request: Any, log: BuildLog, limit_s: float = math.inf) -> Any:
        """Run `task(request, cancelled, on_log)`, a function of a module, in the worker; returns its result.

        A task whose process hangs is run a second time, with a warning in the log. Raises BuildError: the task's own
        error, or how the process ended, with the last lines of its log and stderr (CrashError); also where it hangs
        again, or takes longer than limit_s.
        """
        try:
            kind, *content = self._answer(task, request, log, limit_s)
        except _StalledError as stalled:
            log.add("WARNING", f"{stalled}; it is tried once more")
            try:
                kind, *content = self._answer(task, request, log, limit_s)
            except _StalledError as again:
                raise CrashError(f"{again}, for the second time", fix=STALL_FIX) from None
        if kind == "failed":
            what, fix = content
            words = f" ({log.last_lines})" if log.last_lines and log.last_lines not in what else ""
            raise BuildError(f"{what}{words}", fix=fix)
        return content[0]

    def _answer(self, task: Task, request: Any, log: BuildLog, limit_s: float) -> Any:
        """The worker's last message. Raises CrashError where it crashed, _StalledError where it hung."""
        connection = self._connection or self._start()
        assert self._process is not None
        watchdog, started = Watchdog(self._process.pid, self._watchdog_s), time.monotonic()
        try:
            connection.send((task, request))
            while True:
                if not connection.poll(min(POLL_S, self._watchdog_s / 10 or POLL_S)):
                    self._check(watchdog, log)
                    if time.monotonic() - started > limit_s:
                        self._kill()
                        raise CrashError(f"the process had not ended its task after {limit_s:g} s", fix=CRASH_FIX)
                elif (message := connection.recv())[0] != "log":
                    return message
                else:
                    log.add(*message[1:])
                    watchdog.progress()
        except (EOFError, OSError):
            raise CrashError(self._crash(log), fix=CRASH_FIX) from None

    def _check(self, watchdog: Watchdog, log: BuildLog) -> None:
        """Kill a process that hangs, with those that it started."""
        if not watchdog.is_stalled():
            return
        free_gb = available_bytes() / 1e9
        self._kill()
        last = f"; its last message: {log.last_lines}" if log.last_lines else ""
        raise _StalledError(
            f"the build process made no progress and used no CPU for {self._watchdog_s:g} s, with {free_gb:.1f} GB of "
            f"memory free, and was killed{last}"
        )

    def _kill(self) -> None:
        assert self._process is not None
        _kill_group(self._process.pid)
        self._end()

    def _start(self) -> Connection[Any, Any]:
        """In a session of its own: Ctrl-C reaches the parent only. What libraries print goes to the stderr file."""
        self._stderr.seek(0)
        self._stderr.truncate()
        self._connection, theirs = Pipe()
        with theirs:
            self._process = start_python(
                f"from {__name__} import run_worker; run_worker({theirs.fileno()})",
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return self._connection

    def _end(self) -> int:
        """Close the pipe, wait, kill if needed; returns the exit status."""
        process, connection = self._process, self._connection
        if process is None or connection is None:
            return 0
        self._process = self._connection = None
        connection.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                # Until it has seen the closed pipe and left its build; after CANCEL_S it is killed.
                process.wait(CANCEL_S)
        finally:
            _kill_group(process.pid)  # also what it has started, where it has ended
            status = process.wait()
        return status

    def _crash(self, log: BuildLog) -> str:
        status = self._end()
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.readlines()[-STDERR_LINES:]]
        output = "; ".join(line for line in (log.last_lines, *lines) if line)
        return f"the build process ended with {how}; its last output: {output or 'none'}"


def run_worker(descriptor: int) -> None:
    """The worker process, which leads its own process group: run tasks from the pipe until it closes."""
    connection: Connection[Any, Any] = Connection(descriptor)
    requests: Queue[tuple[Task, Any] | None] = Queue()
    # `lock` keeps messages whole: the builder's own threads log at the same time.
    cancelled, lock = threading.Event(), threading.Lock()

    def cancel() -> None:
        cancelled.set()
        requests.put(None)

    # It reads ahead while a task runs, and so sees at once that the parent has closed the pipe.
    end_with_parent(partial(_receive, connection, requests), cancel, grace_s=CANCEL_S)

    def send(*message: Any) -> None:
        """Also called by TensorRT's threads, through which no exception may pass: a closed pipe is no error."""
        with lock, contextlib.suppress(OSError):
            connection.send(message)

    # Until the parent sends a task; None follows its closed pipe.
    while (received := requests.get()) is not None:
        task, request = received
        try:
            result = task(request, cancelled, lambda severity, text: send("log", severity, text))
        except TickError as error:
            send("failed", error.what, error.fix)
        except ImportError as error:  # no crash: another level would change nothing
            send("failed", f"a library cannot be loaded: {error}", LIBRARY_FIX)
        else:
            send("done", result)


def _receive(connection: Connection[Any, Any], requests: Queue[tuple[Task, Any] | None]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            requests.put(connection.recv())


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class Activity(NamedTuple):
    """Of a process and its descendants: CPU time, ended children's included; bytes read and written, and page faults
    that wait for a disk."""

    cpu_s: float
    waits: int


class Watchdog:
    """Watches a process: it hangs where for stall_s seconds it neither used CPU nor read, wrote or loaded anything.

    So one that hangs, as on a lock, is told from one that works slowly; on Linux, elsewhere none hangs. stall_s 0: it
    never hangs. clock: seconds.
    """

    def __init__(self, pid: int, stall_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._stall_s, self._clock = pid, stall_s, clock
        self._since, self._last = clock(), activity(pid)

    def is_stalled(self) -> bool:
        """Whether it hangs. Called often, at least ten times in stall_s."""
        found, last = activity(self._pid), self._last
        if found.waits == last.waits and 0 <= found.cpu_s - last.cpu_s < SHARE * self._stall_s:
            return 0 < self._stall_s <= self._clock() - self._since
        self._since, self._last = self._clock(), found
        return False

    def progress(self) -> None:
        """It has shown that it works."""
        self._since = self._clock()


def activity(pid: int) -> Activity:
    """What a process and its descendants have done so far. Elsewhere than on Linux never the same."""
    if not PROC.is_dir():
        return Activity(0.0, time.monotonic_ns())
    ticks, waits = 0, 0
    for each, fields in _family(pid):
        # Of proc(5), from the state on: 9 major faults and 10 those of ended children, 11 to 14 CPU time likewise.
        ticks += sum(map(int, fields[11:15]))
        waits += sum(map(int, fields[9:11])) + _bytes_moved(each)
    return Activity(ticks / os.sysconf("SC_CLK_TCK"), waits)


def available_bytes() -> int:
    """Memory that programs can still have; 0 where it is not told."""
    with suppress(OSError):
        for line in (PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def _family(pid: int) -> Iterator[tuple[str, list[str]]]:
    """A process and its descendants, each with the fields of its stat from the state on."""
    stats: dict[str, list[str]] = {}
    for entry in os.listdir(PROC):
        with suppress(OSError):
            if entry.isdecimal():
                stats[entry] = (
                    (PROC / entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                )
    found, new = set[str](), {str(pid)} & stats.keys()
    while new:
        found |= new
        new = {each for each, fields in stats.items() if fields[1] in new}
    return ((each, stats[each]) for each in found)


def _bytes_moved(pid: str) -> int:
    """Read and written, also from pipes and caches."""
    with suppress(OSError):
        lines = (PROC / pid / "io").read_text(encoding="utf-8").splitlines()
        return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar")))
    return 0
