"""Threads that serve many: whether an error has ended them, and for how long they are silent."""

import ctypes
import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from queue import SimpleQueue

import pytest
from helpers.http_harness import eventually
from helpers.panics import Panic, panic
from helpers.paths import ROOT
from helpers.processes import is_running

from runtime.base.threads import Heartbeat, ServingThread, Workers


def test_a_heartbeat_is_silent_while_it_has_work() -> None:
    heartbeat = Heartbeat()
    assert heartbeat.is_resting
    assert heartbeat.silent_s == 0.0
    heartbeat.beat()
    time.sleep(0.01)
    assert heartbeat.silent_s >= 0.01
    heartbeat.rest()
    assert heartbeat.silent_s == 0.0


def test_a_heartbeat_knows_how_long_its_work_takes() -> None:
    heartbeat = Heartbeat()
    heartbeat.beat()
    assert heartbeat.usual_s == 0.0
    time.sleep(0.02)
    heartbeat.beat()
    assert (before_s := heartbeat.usual_s) >= 0.02
    heartbeat.rest()
    time.sleep(0.05)
    heartbeat.beat()  # idle time is no work
    assert heartbeat.usual_s == 0.9 * before_s


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_has_died_only_where_an_error_has_ended_it() -> None:
    ended, died = ServingThread("a", lambda: None), ServingThread("b", panic)
    assert not died.has_died, "it has not begun"
    for thread in (ended, died):
        thread.start()
        thread.join()
    assert (ended.has_died, died.has_died) == (False, True)


class TestWorkers:
    def test_a_unit_that_fails_is_its_own_error(self) -> None:
        with Workers(1, "a") as workers:
            assert isinstance(workers.submit(panic).exception(), Panic)
            assert workers.submit(int, "7").result() == 7
            assert not workers.has_died

    def test_a_thread_that_ends_by_an_error_has_died_and_one_that_is_shut_down_has_not(self) -> None:
        workers = Workers(2, "a")
        ident = workers.submit(threading.get_ident).result()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(Panic))
        workers.submit(int)  # it takes that, and dies of it
        eventually(lambda: workers.has_died)
        workers.shutdown(wait=False)
        assert not workers.has_died

    def test_the_oldest_unit_that_runs_is_silent_unless_it_waits_for_others(self) -> None:
        for waits in (False, True):
            gates = [SimpleQueue[None](), SimpleQueue[None]()]
            with Workers(2, "a", waits=waits) as workers:
                units = [workers.submit(gate.get) for gate in gates]
                gates[1].put(None)
                units[1].result()
                time.sleep(0.01)
                assert (workers.silent_s >= 0.01) is not waits
                gates[0].put(None)
                units[0].result()
                eventually(lambda: workers.silent_s == 0.0)

    def test_a_pool_that_is_forgotten_ends_its_threads(self) -> None:
        workers = Workers(1, "a")
        thread = workers.submit(threading.current_thread).result()
        forgotten = weakref.ref(workers)
        del workers
        gc.collect()
        assert forgotten() is None
        thread.join(10)
        assert not thread.is_alive()


# Modules with threads that are not watched: whom these serve.
OTHERS = {
    "runtime/engines/onnxruntime.py": "parts of one execute, which waits for them",
    "runtime/engines/tensorrt/rtx/specializer.py": "kernels, without which ticks go on",
    "runtime/tick/denoise/runner.py": "noise of a step, for which the tick thread waits",
    "runtime/audio/playback.py": "a client's loudspeakers",
    "runtime/api/tickrt/model.py": "one call, which waits for them",
    "runtime/api/tickrt/midi.py": "a client's clock",
    "runtime/api/tickrt/remote.py": "a client's connection",
    "runtime/api/tickrt/connections.py": "a client's connections",
    "server/demo.py": "the browser that is opened once",
    "server/cluster/replica.py": "the server of a replica, which Ray checks",
    "runtime/commands/progress.py": "says what a command is at, and ends with it",
}


STUBBORN = "signal.signal(signal.SIGINT, signal.SIG_IGN); "


@pytest.mark.parametrize("obeys", [True, False])
@pytest.mark.parametrize("way", ["killed", "ends", "closes"])
def test_a_process_ends_with_the_one_that_started_it(way: str, obeys: bool, tmp_path: Path) -> None:
    """It is told as by Ctrl-C, and ended where it goes on."""
    told = tmp_path / "told"
    child = (
        "import pathlib, signal, time; from runtime.base.threads import end_with_parent\n"
        f"{'' if obeys else STUBBORN}end_with_parent()\n"
        "try:\n    print(flush=True)\n    time.sleep(600)\n"
        f"except KeyboardInterrupt:\n    pathlib.Path({str(told)!r}).touch()"
    )
    after = {"killed": "time.sleep(600)", "ends": "", "closes": "started.stdin.close(); time.sleep(600)"}[way]
    parent = (
        "import subprocess, time; from runtime.base.threads import start_python; PIPE = subprocess.PIPE; "
        f"started = start_python({child!r}, stdin=PIPE, stdout=PIPE); "
        f"started.stdout.readline(); print(started.pid, flush=True); {after}"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = process.stdout.readline().strip()
        assert pid
        if way == "killed":
            process.kill()
        eventually(lambda: not is_running(pid), 3)
        process.kill()
    assert told.exists() == obeys


def test_what_starts_python_for_its_own_work_ends_with_it() -> None:
    """A cluster's processes have their own supervision."""
    made = {
        str(path.relative_to(ROOT))
        for package in ("runtime", "server", "engine_build")
        for path in (ROOT / package).rglob("*.py")
        if "sys.executable" in path.read_text(encoding="utf-8")
    }
    assert made == {"runtime/base/threads.py", "server/cluster/ray_cluster.py", "server/cluster/local_cluster.py"}


def test_threads_that_serve_many_are_made_of_these_classes() -> None:
    """Their end would not show: where a server has the thread, it is in Service.threads."""
    made = {
        str(path.relative_to(ROOT))
        for package in ("runtime", "server")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\b(?:Thread|ThreadPoolExecutor)\(", path.read_text(encoding="utf-8"))
    }
    assert made - {"runtime/base/threads.py"} == OTHERS.keys()
