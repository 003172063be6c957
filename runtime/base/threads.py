"""Threads that serve many: each shows whether it still does, so that a process whose thread has ended ends, too.

Processes that one starts for its own work end with it, however it ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Thread, current_thread, get_ident
from typing import Any, ParamSpec, TypeVar

from runtime.base.errors import ForkedError

P = ParamSpec("P")
T = TypeVar("T")

# What a process that was told to end may take for it.
CANCEL_S = 1.0


class Process:
    """The process that made this. A fork of it has all objects, but no thread that would do what they wait for."""

    def __init__(self) -> None:
        self._id = os.getpid()

    def check(self) -> None:
        """Raises ForkedError in a fork."""
        if os.getpid() != self._id:
            raise ForkedError

    def call(self, work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do something, in a fork nothing."""
        if os.getpid() == self._id:
            work(*args, **kwargs)


def start_python(code: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
    """Run Python code with modules from where this process has them, and not from the working directory.

    options: Popen's. Where stdin is a pipe, and the code calls end_with_parent, it ends with this process.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    return subprocess.Popen([sys.executable, "-P", "-c", code, *arguments], env=environment, **options)


def _read_input() -> None:
    while os.read(0, 4096):
        pass


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def end_with_parent(
    closed: Callable[[], object] = _read_input,
    cancel: Callable[[], object] = _interrupt,
    *,
    grace_s: float = 2 * CANCEL_S,
) -> None:
    """End this process soon after the process that started it has closed its pipe, also because it was killed.

    closed: returns then; by default when stdin ends. cancel: asks what runs to end, by default as Ctrl-C does. What
    goes on for grace_s is ended with this process and, where it leads their group, with those that it started.
    """

    def watch() -> None:
        closed()
        cancel()
        time.sleep(grace_s)
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    Thread(target=watch, name="parent", daemon=True).start()


class Heartbeat:
    """When a thread was last seen at work. Its own thread calls `beat` and `rest`; any thread may ask.

    usual_s: the longest that a piece of its work took lately; with each newer one an older one counts a tenth less.
    """

    def __init__(self) -> None:
        self._last_s: float | None = None
        self.usual_s = 0.0

    def beat(self) -> None:
        """It has work, and has done some just now."""
        self.usual_s = max(self.silent_s, 0.9 * self.usual_s)
        self._last_s = time.monotonic()

    def rest(self) -> None:
        """It has no work."""
        self._last_s = None

    @property
    def is_resting(self) -> bool:
        """Whether it has no work."""
        return self._last_s is None

    @property
    def silent_s(self) -> float:
        """For how long it has had work and done none."""
        last_s = self._last_s
        return 0.0 if last_s is None else time.monotonic() - last_s


class ServingThread(Thread):
    """A thread that runs `serve`, which returns only where it is to end, and calls `heartbeat`.

    is_prompt: it plays; its silence counts within seconds.
    """

    def __init__(
        self, name: str, serve: Callable[[], None], heartbeat: Heartbeat | None = None, *, is_prompt: bool = True
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.heartbeat, self.is_prompt = heartbeat or Heartbeat(), is_prompt
        self._serve, self._has_returned = serve, False

    def run(self) -> None:
        """As long as it serves."""
        self._serve()
        self._has_returned = True

    @property
    def has_died(self) -> bool:
        """Whether an error has ended it."""
        return self.ident is not None and not self.is_alive() and not self._has_returned

    @property
    def silent_s(self) -> float:
        """As Heartbeat has it."""
        return self.heartbeat.silent_s


class Workers(ThreadPoolExecutor):
    """A pool of threads for units of work of many, or of one who waits for them.

    waits: the units wait for other threads, whose silence is seen there.
    """

    is_prompt = False

    def __init__(self, size: int, name: str, *, waits: bool = False) -> None:
        self.name, self._waits, self._is_shut_down = name, waits, False
        self.process = Process()
        # Of each unit that runs, by its thread: when it began. No reference to the pool, which may be forgotten.
        self._begun_s: dict[int, float] = {}
        self._entered: list[Thread] = []
        entered = self._entered
        super().__init__(size, name, initializer=lambda: entered.append(current_thread()))

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As ThreadPoolExecutor does. Raises ForkedError."""
        self.process.check()
        return super().submit(_noted, self._begun_s, partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As ThreadPoolExecutor does."""
        self._is_shut_down = True
        super().shutdown(wait, cancel_futures=cancel_futures)

    @property
    def has_died(self) -> bool:
        """Whether an error has ended one of its threads: what waits for it is never done."""
        return not self._is_shut_down and not all(thread.is_alive() for thread in list(self._entered))

    @property
    def silent_s(self) -> float:
        """For how long the oldest unit has run."""
        begun_s = [] if self._waits else list(self._begun_s.values())
        return time.monotonic() - min(begun_s) if begun_s else 0.0


Watched = ServingThread | Workers


def _noted(begun_s: dict[int, float], work: Callable[[], T]) -> T:
    begun_s[get_ident()] = time.monotonic()
    try:
        return work()
    finally:
        del begun_s[get_ident()]
