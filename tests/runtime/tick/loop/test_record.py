"""A tick's record: phases from marks, counts of launches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engines.launch_cache import LaunchCounts
from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord


def record(*marks: tuple[str, float]) -> TickRecord:
    return TickRecord(0, slots=1, rows=1, frames=(16,), executes=1, variants=("plain",), queue_depth=0, marks=marks)


def test_spans_begin_at_the_tick_and_have_no_gaps() -> None:
    found = record(("inbox", 1.0), ("launch", 1.25), ("inbox", 1.5), ("", 2.0))
    assert found.started_s == 1.0
    assert found.spans == (("inbox", 0.0, 250.0), ("launch", 250.0, 250.0), ("inbox", 500.0, 500.0))
    assert found.phases_ms == {**dict.fromkeys(PHASES, 0.0), "inbox": 750.0, "launch": 250.0}


def test_without_marks_there_are_no_spans() -> None:
    assert (record().started_s, record().spans) == (0.0, ())
    assert set(record().phases_ms.values()) == {0.0}


@given(st.lists(st.tuples(st.sampled_from(PHASES), st.floats(0, 10)), min_size=1, max_size=12))
def test_the_sum_of_the_phases_is_the_whole_tick(phases: list[tuple[str, float]]) -> None:
    marks, now_s = list[tuple[str, float]](), 3.0
    for phase, duration_s in phases:
        marks.append((phase, now_s))
        now_s += duration_s
    found = record(*marks, ("", now_s))
    assert sum(found.phases_ms.values()) == pytest.approx((now_s - 3.0) * 1e3, abs=1e-6)
    assert sum(span.ms for span in found.spans) == pytest.approx((now_s - 3.0) * 1e3, abs=1e-6)


def test_counts_of_launches_are_copied() -> None:
    found = record()
    found.count(LaunchCounts(bound=1, captured=2, replayed=3, plain=4, evicted=5))
    assert (found.bound, found.captured, found.replayed, found.evicted) == (1, 2, 3, 5)
