"""A tick's phases have no gaps, and its record is shown when all of it is known."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from conftest import Built, Loops, resized
from helpers.backends import BACKENDS, Backend
from helpers.generations import GUIDED, Inbox, make

from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop


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
