"""What one tick measured, and the counts of the loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from runtime.engines.launch_cache import LaunchCounts
from runtime.tick.clock import PHASES
from runtime.tick.runner import BucketSpan


@dataclass(frozen=True, slots=True)
class LoopStats:
    """A snapshot of the loop's counts: `outcomes` counts every terminal event since the start."""

    slots_active: int
    slots_capacity: int
    queue_depth: int
    ticks: int
    outcomes: dict[str, int]
    is_alive: bool
    is_idle: bool
    is_draining: bool


class PhaseSpan(NamedTuple):
    """One phase of a tick: when it began after the tick did, and how long it took. A phase may have several."""

    phase: str
    begin_ms: float
    ms: float


@dataclass(slots=True)
class TickRecord:
    """What one tick measured. Times in milliseconds; `allocations` are the device's, zero in steady state.

    marks: when (perf_counter, in seconds) each phase began, and, named "", when the tick ended.
    buckets, engine_ms: the decoder's executes on the device; of buckets that replayed a graph, the whole graph.
    device_gap_ms: from when the device began the tick before to when it began this one, 0 for the first. Times on the
    device are taken where the loop has observers.
    frozen, resumed: background generations that lost their slot to an urgent one before this tick, or have one again.
    bound, captured, replayed, evicted: what happened to launches (see LaunchCache); `generation` counts engine swaps.
    """

    tick: int
    slots: int
    rows: int
    frames: tuple[int, ...]
    executes: int
    variants: tuple[str, ...]
    queue_depth: int
    tick_ms: float = 0.0
    marks: tuple[tuple[str, float], ...] = ()
    engine_ms: float = 0.0
    buckets: tuple[BucketSpan, ...] = ()
    device_gap_ms: float = 0.0
    allocations: int = 0
    bound: int = 0
    captured: int = 0
    replayed: int = 0
    evicted: int = 0
    generation: int = 0
    finished: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()

    @property
    def started_s(self) -> float:
        """When the tick began, of perf_counter."""
        return self.marks[0][1] if self.marks else 0.0

    @property
    def spans(self) -> tuple[PhaseSpan, ...]:
        """The tick from its begin to its end, without gaps; the sum of the spans is tick_ms."""
        return tuple(
            PhaseSpan(phase, (begin_s - self.started_s) * 1e3, (end_s - begin_s) * 1e3)
            for (phase, begin_s), (_, end_s) in pairwise(self.marks)
        )

    @property
    def phases_ms(self) -> dict[str, float]:
        """Time in each of PHASES; the sum is tick_ms."""
        times = dict.fromkeys(PHASES, 0.0)
        for (phase, begin_s), (_, end_s) in pairwise(self.marks):
            times[phase] += (end_s - begin_s) * 1e3
        return times

    def count(self, counts: LaunchCounts) -> None:
        """Note what happened to launches in this tick."""
        self.bound, self.captured = counts.bound, counts.captured
        self.replayed, self.evicted = counts.replayed, counts.evicted


Event = dict[str, Any]
PROCESS = 1


def trace_document(name: str, threads: Mapping[int, str], events: Iterable[Event], about: Event) -> Event:
    """The trace as a JSON object. name: of the process; threads: names by their ids."""
    names = [_name("process_name", 0, name), *(_name("thread_name", tid, text) for tid, text in threads.items())]
    return {"traceEvents": [*names, *events], "displayTimeUnit": "ms", "otherData": about}


def slice_event(name: str, thread: int, begin_ms: float, ms: float, facts: Event, **more: Any) -> Event:
    """What takes a time on a thread."""
    event = {"ph": "X", "name": name, "pid": PROCESS, "tid": thread, "ts": _us(begin_ms), "dur": _us(ms), "args": facts}
    return {**event, **more}


def counter_event(name: str, begin_ms: float, counts: Event) -> Event:
    """Numbers from a time on."""
    return {"ph": "C", "name": name, "pid": PROCESS, "ts": _us(begin_ms), "args": counts}


def _name(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _us(ms: float) -> float:
    return round(ms * 1e3, 3)
