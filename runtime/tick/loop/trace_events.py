"""Chrome traces, for Perfetto (ui.perfetto.dev) and chrome://tracing: the "Trace Event Format", of one process.

Complete events (ph X), counters (C) and names (M); times are given in milliseconds, and microseconds in the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
