"""Limits of a host, fairness of slots between sessions, and the projected time of a refresh."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import SessionsFullError
from runtime.live.hosting.slots import (
    Demand,
    HostLimits,
    TickTimes,
    live_capacity,
    next_session,
    projected_refresh_s,
)

DEMANDS = st.lists(st.tuples(st.integers(0, 4), st.none() | st.floats(0, 100)), max_size=12).map(
    lambda items: [Demand(f"session {i}", held, wanted_s) for i, (held, wanted_s) in enumerate(items)]
)


def grant_all(demands: list[Demand], capacity: int) -> list[Demand]:
    """Hand out slots, one to each session that wants one, until nothing is free or wanted."""
    while (name := next_session(demands, capacity)) is not None:
        demands = [replace(d, held=d.held + 1, wanted_s=None) if d.session == name else d for d in demands]
    return demands


def test_http_keeps_one_slot_where_there_are_two() -> None:
    assert [live_capacity(depth) for depth in (1, 2, 8)] == [1, 1, 7]


@given(DEMANDS, st.integers(1, 8))
def test_the_session_with_fewest_slots_that_waits_longest_is_next(demands: list[Demand], capacity: int) -> None:
    name = next_session(demands, capacity)
    waiting = {d.session: d for d in demands if d.wanted_s is not None}
    if sum(d.held for d in demands) >= capacity or not waiting:
        assert name is None
        return
    assert name is not None
    chosen = waiting[name]
    assert all(chosen.held <= d.held for d in waiting.values())
    assert all(chosen.wanted_s <= d.wanted_s for d in waiting.values() if d.held == chosen.held)  # type: ignore[operator]


def test_a_session_whose_audio_ends_comes_before_those_that_change_theirs() -> None:
    demands = [Demand("changing", 0, 1.0), Demand("ending", 0, 2.0, True), Demand("plays", 0, None, True)]
    assert next_session(demands, 2) == "ending"
    assert next_session([*demands[:1], replace(demands[1], held=1, wanted_s=None)], 2) == "changing"


@given(DEMANDS, st.integers(1, 8))
def test_slots_are_used_up_to_the_capacity_and_never_beyond(demands: list[Demand], capacity: int) -> None:
    before, after = sum(d.held for d in demands), grant_all(demands, capacity)
    held = sum(d.held for d in after)
    assert held <= max(before, capacity)
    assert held >= capacity or all(d.wanted_s is None for d in after)


@given(st.integers(1, 8), st.integers(2, 20), st.integers(2, 4))
def test_no_session_waits_for_its_first_slot_behind_a_second_one(capacity: int, sessions: int, slots: int) -> None:
    """All want as many slots as they may have, always: every one gets its share of what finishes, in turn."""
    held, finished, queue = [0] * sessions, [0] * sessions, list[int]()
    waits = [float(i) for i in range(sessions)]
    for now in range(20 * sessions):
        demands = [Demand(str(i), held[i], waits[i] if held[i] < slots else None) for i in range(sessions)]
        while (name := next_session(demands, capacity)) is not None:
            index = int(name)
            held[index] += 1
            waits[index] = float(sessions + now)
            queue.append(index)
            demands = [Demand(str(i), held[i], waits[i] if held[i] < slots else None) for i in range(sessions)]
        done = queue.pop(0)
        held[done] -= 1
        finished[done] += 1
    assert max(finished) - min(finished) <= slots + 1


def test_tick_times_are_means_per_number_of_slots() -> None:
    times = TickTimes()
    assert times.estimate_ms(4) == 0.0
    times.note(2, 10.0)
    assert times.estimate_ms(2) == 10.0
    assert times.estimate_ms(1) == 10.0
    assert times.estimate_ms(6) == 30.0
    for _ in range(100):
        times.note(2, 20.0)
        times.note(6, 40.0)
    assert times.estimate_ms(2) == pytest.approx(20.0, rel=0.01)
    assert times.estimate_ms(6) == pytest.approx(40.0)


def test_projected_refresh_counts_rounds_of_the_capacity() -> None:
    times = TickTimes()
    times.note(1, 5.0)
    times.note(4, 10.0)
    assert projected_refresh_s(1, 4, 16, times) == pytest.approx(0.08)
    assert projected_refresh_s(4, 4, 16, times) == pytest.approx(0.16)
    assert projected_refresh_s(9, 4, 16, times) == pytest.approx(0.48)


@pytest.mark.parametrize(
    ("limits", "clients", "refresh_s", "refused"),
    [
        (HostLimits(max_sessions=2), ["b"], 4.0, ""),
        (HostLimits(max_sessions=2), ["b", "c"], 0.0, "2 sessions are open"),
        (HostLimits(client_sessions=2), ["a", "b", "a"], 0.0, "this client has 2 sessions open"),
        (HostLimits(client_sessions=0), ["a"] * 9, 0.0, ""),
        (HostLimits(max_refresh_s=2.0), [], 2.5, "would take 2.5 s, the limit is 2 s"),
    ],
)
def test_one_more_session_of_a_client(limits: HostLimits, clients: list[str], refresh_s: float, refused: str) -> None:
    if not refused:
        limits.check("a", clients, refresh_s)
        return
    with pytest.raises(SessionsFullError, match=refused) as found:
        limits.check("a", clients, refresh_s)
    assert found.value.retry_after_s > 0
    assert found.value.is_of_client == refused.startswith("this client")


@pytest.mark.parametrize(
    ("limits", "playing", "kept", "ends"),
    [
        (HostLimits(max_sessions=4), "bc", "b", None),
        (HostLimits(max_sessions=3), "bc", "b", 0),
        (HostLimits(max_sessions=4), "b", "cdd", 1),
        (HostLimits(max_sessions=4), "b", "cda", 0),
        (HostLimits(max_sessions=9, client_sessions=2), "a", "bba", 2),
        (HostLimits(max_sessions=9, client_sessions=2), "aa", "b", None),
        (HostLimits(max_sessions=9, client_sessions=0), "aaa", "aaa", None),
    ],
)
def test_what_is_kept_without_a_client_makes_room(
    limits: HostLimits, playing: str, kept: str, ends: int | None
) -> None:
    assert limits.makes_room("a", list(playing), list(kept)) == ends
