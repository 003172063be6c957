"""How the time that work takes grows with its input, on a machine that does other things, too."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import suppress

# What takes less is not looked at again: the clock and the machine's other work are larger.
FLOOR_S = 0.0005
# For twice as much: linear work takes twice as long, quadratic work four times.
MOST_GROWTH = 3.0
TRIES = 4


def cpu_s(work: Callable[[], object], repeats: int = 1) -> float:
    """The least CPU time of this thread that the work takes; errors are part of it."""
    return min(_once(work) for _ in range(repeats))


def growth(
    work: Callable[[int], Callable[[], object]], size: int, *, times: int = 2, most: float = MOST_GROWTH
) -> float:
    """Time for `times` the size, relative to that for the size; 0 where that takes hardly any.

    Tried again where it is more than `most`.
    """
    small, large = work(size), work(times * size)
    small_s = large_s = found = float("inf")
    for _ in range(TRIES):
        small_s = min(small_s, cpu_s(small, 2))
        if small_s <= FLOOR_S:
            return 0.0
        large_s = min(large_s, cpu_s(large))
        found = large_s / small_s
        if found <= most:
            break
    return found


def _once(work: Callable[[], object]) -> float:
    """Without the collector: what it takes depends on everything that there is."""
    gc.disable()
    began_s = time.thread_time()
    try:
        with suppress(Exception):
            work()
        return time.thread_time() - began_s
    finally:
        gc.enable()
