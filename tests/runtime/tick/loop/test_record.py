"""A tick's record: its phases have no gaps, and it is shown when all of it is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from conftest import Built, Loops, resized
from helpers.backends import BACKENDS, Backend
from helpers.generations import GUIDED, Inbox, make
from hypothesis import given
from hypothesis import strategies as st

from runtime.engines.launch_cache import LaunchCounts
from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop


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


@pytest.fixture(params=BACKENDS, ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


def play(loop: TickLoop) -> list[TickRecord]:
    """Records of generations of two lengths that come and go, in the order in which they are shown."""
    shown: list[TickRecord] = []
    loop.observers.append(shown.append)
    ticked: list[TickRecord] = []
    for index in range(3):
        loop.submit(make(f"{index}", (32, 16, 32)[index], steps=5 + index, **GUIDED), Inbox())
    while (record := loop.tick()) is not None:
        ticked.append(record)
    assert [id(record) for record in shown] == [id(record) for record in ticked]
    return shown


def test_phases_follow_each_other_and_their_sum_is_the_tick(loops: Loops) -> None:
    for record in play(loops()):
        ends = [span.begin_ms + span.ms for span in record.spans]
        assert [span.begin_ms for span in record.spans[1:]] == pytest.approx(ends[:-1], abs=1e-6)
        assert record.tick_ms == pytest.approx(ends[-1], rel=1e-9)
        assert sum(record.phases_ms.values()) == pytest.approx(record.tick_ms, rel=1e-9)
        assert {"inbox", "schedule", "upload", "launch", "commit", "deliver"} <= {span.phase for span in record.spans}
        assert tuple(record.phases_ms) == PHASES
        assert all(before.phase != after.phase for before, after in pairwise(record.spans))


def test_a_record_has_slots_rows_and_times_of_each_bucket(loops: Loops) -> None:
    records = play(loops())
    both = [record for record in records if len(record.frames) == 2]
    assert len(both) == 6
    for record in both:
        assert [(bucket.frames, bucket.slots, bucket.rows) for bucket in record.buckets] == [
            (16, 1, 2),
            (32, 2, 4),
        ] or [bucket.slots for bucket in record.buckets] == [1, 1]
        first, second = record.buckets
        assert first.begin_ms == 0.0
        assert second.begin_ms >= first.ms
        assert record.engine_ms == pytest.approx(first.ms + second.ms)
        assert sum(bucket.executes for bucket in record.buckets) == record.executes


def test_the_device_begins_each_tick_after_the_one_before(loops: Loops) -> None:
    first, *others = play(loops())
    assert first.device_gap_ms == 0.0
    for before, record in zip([first, *others], others, strict=False):
        assert record.device_gap_ms >= before.buckets[-1].begin_ms + before.buckets[-1].ms > 0.0


def test_a_record_is_shown_when_the_device_is_done_with_its_tick(loops: Loops, built: Built, backend: Backend) -> None:
    loop = loops(resized(built(max_rows=16, backend=backend), 4, 8))
    unfinished: list[Any] = []
    loop.observers.append(lambda record: unfinished.append(record) if not record.buckets else None)
    inbox = Inbox()
    loop.submit(make("a", steps=5), inbox)
    for _ in range(3):
        loop.tick()
    loop.cancel("a")
    assert loop.tick() is None
    assert unfinished == []
