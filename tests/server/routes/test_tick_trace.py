"""Chrome traces of ticks: times of phases and executes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from conftest import Loops
from helpers.backends import BACKENDS, Backend
from helpers.generations import GUIDED, Inbox, make

from runtime.tick.loop import TickLoop
from runtime.tick.record import BucketSpan, TickRecord
from server.routes.tick_trace import device_begins, tick_trace


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


def record(tick: int, started_s: float, gap_ms: float, buckets: tuple[BucketSpan, ...] = ()) -> TickRecord:
    times_s = (("inbox", 0.0), ("launch", 0.001), ("wait", 0.003), ("", 0.01))
    marks = tuple((phase, started_s + time_s) for phase, time_s in times_s)
    return TickRecord(
        tick, 2, 4, (16, 32), 2, ("plain", "dcw"), 3, tick_ms=10.0, marks=marks, buckets=buckets, device_gap_ms=gap_ms
    )


LANES = (BucketSpan(16, 1, 2, 1, 0.0, 3.0), BucketSpan(32, 1, 2, 1, 4.0, 5.0))


def slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_the_trace_of_two_ticks() -> None:
    trace = tick_trace([record(7, 100.0, 99.0, LANES), record(8, 100.01, 12.0, LANES)])
    found = [(event["name"], event["tid"], event["ts"], event["dur"]) for event in slices(trace)]
    assert found == [
        ("tick 7", 1, 0.0, 10000.0), ("inbox", 1, 0.0, 1000.0), ("launch", 1, 1000.0, 2000.0),
        ("wait", 1, 3000.0, 7000.0), ("2 rows", 2, 1000.0, 3000.0), ("2 rows", 3, 5000.0, 5000.0),
        ("tick 8", 1, 10000.0, 10000.0), ("inbox", 1, 10000.0, 1000.0), ("launch", 1, 11000.0, 2000.0),
        ("wait", 1, 13000.0, 7000.0), ("2 rows", 2, 13000.0, 3000.0), ("2 rows", 3, 17000.0, 5000.0),
    ]  # fmt: skip
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert names == ["tickrt", "tick thread", "decoder, 16 frames", "decoder, 32 frames"]
    counters = [event["args"] for event in trace["traceEvents"] if event["ph"] == "C"]
    assert counters == [{"slots": 2, "waiting": 3}] * 2
    assert json.loads(json.dumps(trace)) == trace


def test_a_tick_says_how_many_were_frozen_before_it_and_how_many_went_on() -> None:
    found = record(7, 100.0, 0.0)
    found.frozen, found.resumed = ("a", "b"), ("c",)
    (tick, *_) = slices(tick_trace([found]))
    assert (tick["args"]["frozen"], tick["args"]["resumed"]) == (2, 1)


def test_no_execute_is_placed_before_its_launch() -> None:
    """On the device's clock the second tick began 4 ms after the first; the host launched it 10 ms after."""
    assert device_begins([record(1, 0.0, 0.0), record(2, 0.01, 4.0)], [0.0, 10.0]) == pytest.approx([7.0, 11.0])


def test_the_trace_of_no_ticks_is_empty() -> None:
    trace = tick_trace([])
    assert (slices(trace), trace["otherData"]) == ([], {"ticks": 0})


def play(loop: TickLoop) -> list[TickRecord]:
    shown: list[TickRecord] = []
    loop.observers.append(shown.append)
    for index in range(3):
        loop.submit(make(f"{index}", (32, 16, 32)[index], steps=6, **GUIDED), Inbox())
    while loop.tick() is not None:
        pass
    return shown


def ends(events: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(event["ts"], event["ts"] + event["dur"]) for event in events]


def test_phases_lie_in_their_ticks_and_executes_do_not_overlap(loops: Loops) -> None:
    events = slices(tick_trace(play(loops())))
    ticks = [event for event in events if event["name"].startswith("tick ")]
    phases = [event for event in events if event["tid"] == 1 and event not in ticks]
    assert len(ticks) == 6
    for begin, end in ends(phases):
        assert any(low - 0.01 <= begin and end <= high + 0.01 for low, high in ends(ticks))
    for tid in (2, 3):
        bucket = ends(event for event in events if event["tid"] == tid)
        assert len(bucket) == 6
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(bucket))
    launches = {event["ts"] for event in phases if event["name"] == "launch"}
    assert min(event["ts"] for event in events if event["tid"] > 1) >= min(launches)
