"""A process that hangs is told from one that works, by what the kernel counts; time is the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from engine_build.compile import worker as watchdog
from engine_build.compile.worker import Watchdog, activity, available_bytes

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


@contextmanager
def running(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            family = [int(pid) for pid, _ in watchdog._family(process.pid)]
            process.kill()
            for pid in family:
                with suppress(ProcessLookupError):  # one child after the other ends by itself
                    os.kill(pid, signal.SIGKILL)


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
        until(lambda: activity(process.pid) == activity(process.pid))
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
