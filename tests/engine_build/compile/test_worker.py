"""The worker process: results, logs, errors, crashes, cancellation; and the build log."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.factories import folder_of
from helpers.processes import is_running
from simulator.fixture import child_environment

from engine_build.compile import worker as watchdog
from engine_build.compile.builder import build_deployment
from engine_build.compile.worker import (
    CRASH_FIX,
    KEPT_LINES,
    LIBRARY_FIX,
    BuildLog,
    Watchdog,
    Worker,
    activity,
    available_bytes,
)
from runtime.base.errors import BuildError
from runtime.config.deployment import load_deployment

TASKS = """
import ctypes, os, subprocess, sys, threading, time
from runtime.base.errors import BuildError

def double(request, cancelled, on_log):
    on_log("INFO", "working")
    on_log("WARNING", "careful")
    return {"pid": os.getpid(), "double": 2 * request}

def noisy(request, cancelled, on_log):
    print("from Python")
    os.write(1, b"from a library\\n")
    return "done"

def fail(request, cancelled, on_log):
    on_log("ERROR", "node x has no kernel")
    raise BuildError("it failed", fix="try another")

def import_what_is_broken(request, cancelled, on_log):
    raise ImportError("libnvinfer.so.10: cannot open shared object file")

def crash(request, cancelled, on_log):
    os.write(2, b"one\\ntwo\\nthree\\nfour\\nfive\\nlast\\n")
    os.abort()

def leave(request, cancelled, on_log):
    sys.exit("no license")

def wait(request, cancelled, on_log):
    open(request, "w").close()
    cancelled.wait(60)
    os.rename(request, request + ".cancelled")

def hang(request, cancelled, on_log):
    open(request, "w").close()
    time.sleep(600)

def hang_with_a_child(request, cancelled, on_log):
    child = subprocess.Popen(["sleep", "600"])
    with open(request + ".partial", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(request + ".partial", request)
    time.sleep(600)

def leave_a_child(request, cancelled, on_log):
    return str(subprocess.Popen(["sleep", "600"]).pid)

def hang_on_a_lock(request, cancelled, on_log):
    on_log("INFO", "loading weights")
    subprocess.Popen(["sleep", "600"])
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def hang_in_native_code(request, cancelled, on_log):
    ctypes.PyDLL(None).pause()  # with the interpreter's lock

def hang_once(request, cancelled, on_log):
    if not os.path.exists(request):
        open(request, "w").close()
        hang_on_a_lock(request, cancelled, on_log)
    return "done"
"""


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of tasks that the worker can import."""
    (tmp_path / "worker_tasks.py").write_text(TASKS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("worker_tasks")
    sys.modules.pop("worker_tasks")


def test_one_process_runs_one_task_after_the_other(tasks: Any) -> None:
    log = BuildLog()
    with Worker() as worker:
        first, second = worker.run(tasks.double, 4, log), worker.run(tasks.double, np.arange(3), log)
    assert first["double"] == 8
    np.testing.assert_array_equal(second["double"], [0, 2, 4])
    assert first["pid"] == second["pid"] != os.getpid()
    assert log.summary() == ["careful (2 times)"]
    assert log.last_lines == "working; careful; working; careful"


def test_output_of_libraries_is_isolated(tasks: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with Worker() as worker:
        assert worker.run(tasks.noisy, None, BuildLog()) == "done"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("task", "says", "fix"),
    [
        ("fail", r"it failed \(node x has no kernel\)", "try another"),
        (
            "import_what_is_broken",
            r"^a library cannot be loaded: libnvinfer\.so\.10: cannot open",
            LIBRARY_FIX,
        ),
        ("crash", "signal SIGABRT; its last output: two; three; four; five; last", CRASH_FIX),
        ("leave", "status 1; .*no license", CRASH_FIX),
    ],
)
def test_a_task_that_fails_is_told_with_what_was_said_and_the_next_one_runs(
    tasks: Any, task: str, says: str, fix: str
) -> None:
    with Worker() as worker:
        with pytest.raises(BuildError, match=says) as caught:
            worker.run(getattr(tasks, task), None, BuildLog())
        assert caught.value.fix == fix
        assert worker.run(tasks.double, 1, BuildLog())["double"] == 2


@pytest.mark.parametrize("task", ["wait", "hang"])
def test_an_interrupted_task_is_cancelled_or_killed(tasks: Any, task: str, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def interrupt() -> None:
        while not started.exists():
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    others = children_of(os.getpid())
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt), Worker() as worker:
        worker.run(getattr(tasks, task), str(started), BuildLog())
    assert (tmp_path / "started.cancelled").exists() == (task == "wait")
    assert not [child for child in children_of(os.getpid()) - others if is_running(child)]


@pytest.mark.parametrize("task", ["hang_on_a_lock", "hang_in_native_code"])
def test_a_process_that_hangs_is_killed_with_its_children_tried_again_and_told(tasks: Any, task: str) -> None:
    others, log = children_of(os.getpid()), BuildLog()
    with Worker(watchdog_s=1.5) as worker:
        with pytest.raises(
            BuildError, match=r"no CPU for 1\.5 s, with [0-9.]+ GB of memory free.*second time"
        ) as caught:
            worker.run(getattr(tasks, task), None, log)
        assert "watchdog_s" in caught.value.fix
        assert not [child for child in children_of(os.getpid()) - others if is_running(child)]
        assert worker.run(tasks.double, 1, log)["double"] == 2
    (warning,) = [line for line in log.summary() if "hang" not in line and "careful" not in line]
    assert warning.endswith("it is tried once more")
    assert ("loading weights" in warning) == (task == "hang_on_a_lock")


def test_a_process_that_hangs_once_costs_a_warning(tasks: Any, tmp_path: Path) -> None:
    log = BuildLog()
    with Worker(watchdog_s=1.5) as worker:
        assert worker.run(tasks.hang_once, str(tmp_path / "before"), log) == "done"
    assert [line.endswith("it is tried once more") for line in log.summary()] == [True]


def children_of(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split())


@pytest.mark.shipped
@pytest.mark.parametrize("seconds", ["60", "4000"], ids=["at the next step", "no step comes"])
def test_ctrl_c_ends_a_build(path: Path, seconds: str) -> None:
    words = [sys.executable, "-m", "engine_build.cli", str(path), "--target", "tensorrt"]
    environment = child_environment(SIMULATED_BUILD_S=seconds)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, text=True, **pipes) as process:
        deadline = time.monotonic() + 60
        while not list(folder_of(path).glob("decoder*.partial/decoder.plan")) and time.monotonic() < deadline:
            time.sleep(0.05)
        children = children_of(process.pid)
        assert children
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=50)  # the build takes longer
    assert process.returncode == 130
    assert "interrupted" in stderr
    assert not [child for child in children if is_running(child)]
    assert list(folder_of(path).iterdir()) == []


@pytest.mark.usefixtures("gpu")
def test_all_engines_of_a_build_share_a_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[Worker]()

    def start(worker: Worker) -> Any:
        started.append(worker)
        return start_one(worker)

    start_one = Worker._start
    monkeypatch.setattr(Worker, "_start", start)
    assert len(build_deployment(load_deployment(path), target="tensorrt")) > 3
    assert len(started) == 1


def test_what_ignores_that_it_is_cancelled_ends_soon_after_its_parent(tasks: Any, tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import worker_tasks; "
        "from engine_build.compile.worker import *; "
        f"Worker().run(worker_tasks.hang_with_a_child, {str(started)!r}, BuildLog())"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        wait_until(started.exists, 60)
        pids = started.read_text(encoding="utf-8").split()
        assert [is_running(pid) for pid in pids] == [True, True]
        parent.kill()
    wait_until(lambda: not any(map(is_running, pids)), 3)
    assert not any(map(is_running, pids))


def test_what_a_task_has_started_ends_with_its_process(tasks: Any) -> None:
    with Worker() as worker:
        pid = worker.run(tasks.leave_a_child, None, BuildLog())
        assert is_running(pid)
    wait_until(lambda: not is_running(pid), 3)
    assert not is_running(pid)


def wait_until(is_met: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not is_met() and time.monotonic() < deadline:
        time.sleep(0.02)


def test_errors_are_the_last_lines() -> None:
    log = BuildLog()
    log.add("INFO", "one thing")
    assert log.last_lines == "one thing"
    log.add("ERROR", "it\n  broke")
    log.add("INFO", "another thing")
    log.add("INTERNAL_ERROR", "badly")
    assert log.last_lines == "it broke; badly"


def test_only_the_last_lines_are_kept() -> None:
    log = BuildLog()
    for number in range(100):
        log.add("ERROR", f"error {number}")
        log.add("INFO", f"info {number}")
    assert len(log.errors) == len(log.latest) == KEPT_LINES
    assert log.last_lines.endswith("error 99")


def test_warnings_are_listed_once_and_skipped_tactics_are_counted() -> None:
    log = BuildLog()
    for number in range(30):
        log.add("WARNING", f"Skipping tactic {number} due to insufficient memory")
        log.add("WARNING", "weights are not finite")
    log.add("WARNING", "once")
    log.add("INFO", "no warning")
    assert log.summary() == [
        "weights are not finite (30 times)",
        "once",
        "30 tactics were skipped, most for lack of memory; others were used",
    ]
    assert "Skipping" not in log.last_lines


STALL_S = 10.0
BUSY = "for _ in iter(int, 1): pass"
WORKING = {
    "computing": BUSY,
    "a child that computes": f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])",
    "a grandchild in a session of its own": (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', "
        f'\'import subprocess, sys; subprocess.run([sys.executable, "-c", "{BUSY}"], start_new_session=True)\'])'
    ),
    "reading": "import time\nwhile True: open('/dev/zero', 'rb').read(1); time.sleep(0.05)",
    "one child after the other": "import os\nwhile True: os.system('head -c 100M /dev/zero >/dev/null')",
}
HANGING = {
    "on a lock": "import threading; lock = threading.Lock(); lock.acquire(); print(flush=True); lock.acquire()",
    "with the interpreter's lock": "import ctypes; print(flush=True); ctypes.PyDLL(None).pause()",
    "a child that hangs": "import subprocess; print(flush=True); subprocess.run(['sleep', '600'])",
    "after much work": "sum(range(3_000_000)); print(flush=True); import signal; signal.pause()",
}


class Clock:
    """Seconds, as the test says."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def states_of(pid: int) -> dict[str, str]:
    """A process and its descendants, with their states as proc(5) has them."""
    return {each: fields[0] for each, fields in watchdog._family(pid)}


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            family: list[int] = []
            while new := {process.pid, *map(int, states_of(process.pid))}.difference(family):
                _send(signal.SIGSTOP, new)  # so that none begins another unseen
                family += new
            _send(signal.SIGKILL, family)


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # one child after the other ends by itself
            os.kill(pid, number)


def until(is_true: Callable[[], bool]) -> None:
    """No deadline: a loaded machine takes longer, and one that never gets there is stopped by the test run's limit."""
    while not is_true():
        time.sleep(0.01)


@pytest.mark.parametrize("kind", WORKING)
def test_what_works_does_not_hang_however_slowly(kind: str) -> None:
    clock = Clock()
    with running(WORKING[kind]) as process:
        found = Watchdog(process.pid, STALL_S, clock)
        for _ in range(3):
            before = activity(process.pid)
            until(lambda before=before: _has_worked(process.pid, before))  # type: ignore[misc]
            clock.now_s += 10 * STALL_S
            assert not found.is_stalled()


def _has_worked(pid: int, before: watchdog.Activity) -> bool:
    found = activity(pid)
    return found.waits != before.waits or abs(found.cpu_s - before.cpu_s) > watchdog.SHARE * STALL_S


@pytest.mark.parametrize("kind", HANGING)
def test_what_waits_hangs_after_its_time(kind: str) -> None:
    clock = Clock()
    with running(HANGING[kind]) as process:
        assert process.stdout is not None
        process.stdout.readline()
        processes = 2 if "child" in kind else 1
        until(lambda: [*states_of(process.pid).values()] == ["S"] * processes)
        found, never = Watchdog(process.pid, STALL_S, clock), Watchdog(process.pid, 0, clock)
        found.is_stalled()  # what it did until then counts
        clock.now_s += STALL_S - 0.1
        assert not found.is_stalled()
        clock.now_s += 0.2
        assert found.is_stalled()
        found.progress()
        assert not found.is_stalled()
        clock.now_s += 1e6
        assert not never.is_stalled()


def test_a_process_that_has_ended_has_done_nothing() -> None:
    with running("pass") as process:
        process.wait()
        assert activity(process.pid) == (0.0, 0)
    assert available_bytes() > 1 << 20


def test_without_proc_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "PROC", watchdog.Path("/no/such/folder"))
    clock = Clock()
    found = Watchdog(os.getpid(), STALL_S, clock)
    clock.now_s += 1e6
    assert not found.is_stalled()
    assert available_bytes() == 0
