"""Data classes of the simulated machine: error codes, work, events, captures, graphs, streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

SUCCESS, INVALID_VALUE, MEMORY_ALLOCATION = 0, 1, 2
INSUFFICIENT_DRIVER, NO_DEVICE = 35, 100
INVALID_HANDLE, NOT_READY, ILLEGAL_ADDRESS = 400, 600, 700
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED = 900, 901, 903
CAPTURE_ISOLATION, CAPTURE_IMPLICIT, CAPTURED_EVENT, CAPTURE_WRONG_THREAD = 905, 906, 907, 908
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
LEGACY_STREAMS = (0, 1)
LEAST_PRIORITY, GREATEST_PRIORITY = 0, -5
# What takes long on a card of today, in ms: it is counted, not waited for. The bytes of a context are its own, beside
# its activation memory.
COSTS_MS = {
    "context": 60, "end of a context": 2, "end of an engine": 200, "kernels": 300, "capture": 4, "graph": 10,
    "end of a graph": 1,
}  # fmt: skip
CONTEXT_BYTES = 4096
OLDEST_DRIVER = 13000

Range = tuple[int, int]
Clock = dict[int, int]


class RefusedError(Exception):
    """A call that CUDA answers with an error; `code` is the cudaError_t."""

    def __init__(self, code: int, why: str = "") -> None:
        super().__init__(f"cudaError {code}: {why}")
        self.code = code


@dataclass(frozen=True, eq=False, slots=True)
class Work:
    """Work for a stream: what it does, and the bytes it reads and writes.

    `poison`: host memory that is not valid before the work ran. `sources`: host memory that must not change before.
    `check` runs at every launch, also as part of a graph.
    """

    run: Callable[[], None]
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    what: str
    poison: tuple[Range, ...] = ()
    sources: tuple[Range, ...] = ()
    check: Callable[[], None] | None = None


@dataclass(eq=False, slots=True)
class Record:
    """One recording of an event."""

    stream: int
    number: int
    clock: Clock
    capture: Capture | None = None
    at_s: float | None = None
    queries: int = 0


@dataclass(eq=False, slots=True)
class Event:
    """An event; without a record it counts as done."""

    is_timed: bool
    record: Record | None = None


@dataclass(eq=False, slots=True)
class Capture:
    """The work that a stream captured; `broken` is why the capture is invalid, "" while it is valid."""

    mode: int
    thread: int
    works: list[Work] = field(default_factory=list)
    broken: str = ""


@dataclass(eq=False, slots=True)
class Graph:
    """A captured sequence; `executable` once it is instantiated; `running` counts launches that are not done."""

    works: tuple[Work, ...]
    executable: bool = False
    running: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Pending:
    """Work in a stream's queue, by its number there. waits: how often the host had waited when it was put there. after:
    of another stream, the number that has to run before."""

    number: int
    run: Callable[[], object]
    waits: int
    after: tuple[Stream, int] | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for another stream."""
        if self.after is None:
            return False
        stream, number = self.after
        return bool(stream.queue) and stream.queue[0].number <= number


@dataclass(eq=False, slots=True)
class Stream:
    """A stream with its pending work. A lower number is a higher priority."""

    handle: int
    priority: int = LEAST_PRIORITY
    queue: deque[Pending] = field(default_factory=deque)
    number: int = 0
    clock: Clock = field(default_factory=dict)
    capture: Capture | None = None
    is_destroyed: bool = False


def merge(clock: Clock, other: Clock) -> None:
    """Order `clock` after everything that `other` is ordered after."""
    for stream, number in other.items():
        if clock.get(stream, 0) < number:
            clock[stream] = number
