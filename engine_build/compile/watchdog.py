"""Tells a process that hangs, as on a lock, from one that works slowly. Only on Linux; elsewhere none hangs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
# Builds that work use CPU time every second, also where they swap.
WATCHDOG_S = 300.0
# Of the watchdog's time: what a process uses less CPU than, apart from its I/O, does not work. A sleeping thread that
# looks at a flag now and then uses less.
SHARE = 0.01


class Activity(NamedTuple):
    """Of a process and its descendants: CPU time, ended children's included; bytes read and written, and page faults
    that wait for a disk."""

    cpu_s: float
    waits: int


class Watchdog:
    """Watches a process: it hangs where for stall_s seconds it neither used CPU nor read, wrote or loaded anything.

    stall_s 0: it never hangs. clock: seconds.
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
