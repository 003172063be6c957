"""Rules of the simulated library that show without an exception.

A rule that a call breaks raises there. A rule that a destructor finds broken (pending work, an unchecked result) cannot
raise: the machine records it, and raises it at the end.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable

from simulated_machine import Machine, RuleBroken, machine

__all__ = ["Answer", "Machine", "RuleBroken", "from_library_thread", "machine", "need_driver", "remember"]


def remember(message: str, where: Machine | None = None) -> None:
    """Record a broken rule from a destructor; ignored while the interpreter ends."""
    if not sys.is_finalizing():
        (where or machine()).broken.append(RuleBroken(message))


def from_library_thread(call: Callable[[], None]) -> None:
    """What the library does in a thread of its own, which Python has not started; the caller waits for it.

    Only with the fault "library_threads": it does most of it in the caller's.
    """
    if not machine().faults.get("library_threads"):
        call()
        return
    done = threading.Event()

    def work() -> None:
        try:
            call()
        finally:
            done.set()

    _thread.start_new_thread(work, ())
    done.wait()


def need_driver(what: str) -> None:
    """Without a driver the real library crashes the process, on the next use of the object or at exit."""
    here = machine()
    if here.no_driver or here.devices == 0:
        here.break_rule(f"{what} constructed without a driver, which crashes the process; probe the driver first")


class Answer(int):
    """A bool that records whether it was checked."""

    _what: str
    _seen: bool

    def __new__(cls, value: bool, what: str) -> Answer:
        self = super().__new__(cls, bool(value))
        self._what, self._seen = what, False
        return self

    def __bool__(self) -> bool:
        self._seen = True
        return int(self) != 0

    def __repr__(self) -> str:
        return repr(bool(self))

    __str__ = __repr__

    def __del__(self) -> None:
        if not self._seen:
            remember(f"an ignored {int(self) != 0}: the result of {self._what} was not checked")
