"""What the simulated library asks of the machine, and how broken rules come out.

A rule that is broken in a call raises there. One that shows when an object is destroyed (work pending, a result nobody
looked at) cannot raise: the machine keeps it, and raises it at the end.
"""

from __future__ import annotations

import sys

from simulated_machine import Machine, RuleBroken, machine

__all__ = ["Answer", "Machine", "RuleBroken", "machine", "need_driver", "remember"]


def remember(message: str, where: Machine | None = None) -> None:
    """Break a rule from a destructor. What happens while the interpreter ends does not count."""
    if not sys.is_finalizing():
        (where or machine()).broken.append(RuleBroken(message))


def need_driver(what: str) -> None:
    """The real library crashes the process without a driver: on the next use of the object, or at exit."""
    here = machine()
    if here.no_driver or here.devices == 0:
        here.break_rule(f"{what} constructed without a driver: the process would crash; probe the driver first")


class Answer(int):
    """A bool that knows whether somebody looked at it."""

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
            remember(f"an ignored {int(self) != 0}: nobody looked at what {self._what} returned")
