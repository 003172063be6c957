"""Slots: admission, indices, what finishes; without any engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runtime.tick.scheduling.scheduler import Scheduler
from runtime.tick.scheduling.slot import Slot, Submission


def submission(name: str, bucket: int = 16, steps: int = 4, **changes: object) -> Submission:
    return Submission(id=name, runner=None, work=name, bucket=bucket, steps=steps, **changes)  # type: ignore[arg-type]


def scheduler(*submissions: Submission, depth: int = 4) -> Scheduler:
    found = Scheduler(depth)
    for item in submissions:
        found.waiting.push(item)
    found.admit()
    return found


def test_depth_bounds_slots_and_the_rest_waits() -> None:
    found = scheduler(*(submission(str(index)) for index in range(6)))
    assert list(found.slots) == ["0", "1", "2", "3"]
    assert len(found.waiting) == 2
    assert list(found.admit()) == []


def test_a_freed_index_is_taken_again_first() -> None:
    found = scheduler(*(submission(str(index)) for index in range(3)))
    found.remove("1")
    found.waiting.push(submission("new"))
    assert [slot.index for slot in found.admit()] == [1]


def test_every_length_counts_its_own_indices() -> None:
    found = scheduler(submission("a", 16), submission("b", 32), submission("c", 16))
    assert [(slot.bucket, slot.index) for slot in found.slots.values()] == [(16, 0), (32, 0), (16, 1)]


def test_a_slot_has_the_values_of_its_submission() -> None:
    found = scheduler(submission("a", session="s", client="c", step=2))
    slot = found.slots["a"]
    assert (slot.work, slot.session, slot.client, slot.step, slot.steps) == ("a", "s", "c", 2, 4)


def test_slots_finish_by_their_schedules() -> None:
    found = scheduler(submission("short", steps=2), submission("long", steps=3))
    slots = list(found.slots.values())
    finished = [[slot.id for slot in found.commit(slots)] for _ in range(3)]
    assert finished == [[], ["short"], ["long"]]
    assert found.slots == {}


def test_a_slot_that_was_removed_since_it_was_planned_is_left_out() -> None:
    found = scheduler(submission("a", steps=1), submission("b", steps=1))
    slots = list(found.slots.values())
    assert found.remove("a") is slots[0]
    assert [slot.id for slot in found.commit(slots)] == ["b"]
    assert slots[0].step == 0
    assert found.remove("a") is None


def test_a_newer_slot_with_the_same_id_is_another_one() -> None:
    found = scheduler(submission("a", steps=1))
    old = list(found.slots.values())
    found.remove("a")
    found.waiting.push(submission("a", steps=5))
    found.admit()
    assert found.commit(old) == []
    assert found.slots["a"].step == 0


def test_waiting_submissions_and_slots_are_found_by_id() -> None:
    found = scheduler(submission("runs"), submission("waits"), depth=1)
    assert found.find("runs") is found.slots["runs"]
    assert found.find("waits") is found.waiting.get("waits")
    assert found.find("nothing") is None
    assert found.remove("waits") is not None
    assert found.find("waits") is None


def test_a_runner_with_slots_of_its_own_does_not_wait_for_others() -> None:
    found = Scheduler(1, {"own": 2})
    for name in "abc":
        found.push(submission(f"shared {name}", session="s"))
        found.push(replace(submission(f"own {name}"), runner="own", session="s" if name == "a" else ""))
    assert found.num_waiting == 4
    assert [slot.id for slot in found.admit()] == ["shared c", "own a", "own b"]
    assert (found.num_shared, found.num_waiting) == (1, 1)
    waiting = found.find("own c")
    assert waiting is not None
    assert found.remove("own b") is not None
    assert [slot.id for slot in found.admit()] == ["own c"]
    assert found.remove("own c") is not waiting
    assert found.find("own c") is None


def urgent(name: str, **changes: object) -> Submission:
    return submission(name, is_urgent=True, **changes)  # type: ignore[arg-type]


def tick(found: Scheduler) -> list[str]:
    """One pass without a device; the names of the new slots."""
    for slot in found.to_freeze():
        found.freeze(slot, f"state of {slot.id}")
    admitted = [slot.id for slot in found.admit()]
    found.commit(list(found.slots.values()))
    return admitted


def test_an_urgent_submission_takes_the_newest_slot_and_gives_it_back() -> None:
    found = scheduler(submission("a"), submission("b", steps=9), submission("c"), depth=2)
    found.commit(list(found.slots.values()))
    found.push(urgent("u", steps=1))
    assert [slot.id for slot in found.to_freeze()] == ["b"]
    assert tick(found) == ["u"]
    assert (list(found.slots), list(found.frozen), found.num_waiting) == (["a"], ["b"], 2)
    assert tick(found) == ["b"]
    assert (found.slots["b"].step, found.slots["b"].index, found.slots["b"].frozen) == (2, 1, "state of b")
    assert found.num_waiting == 1


def test_free_slots_are_taken_before_any_is_frozen() -> None:
    found = scheduler(submission("a"), submission("b"), submission("c"))
    found.push(urgent("u"))
    assert list(found.to_freeze()) == []
    found.push(urgent("v"))
    assert tick(found) == ["u", "v"]
    assert list(found.frozen) == ["c"]


def test_urgent_slots_and_those_of_other_runners_are_not_frozen() -> None:
    found = Scheduler(2, {"own": 2})
    found.push(replace(submission("own"), runner="own"))
    for name in ("u", "v", "w"):
        found.push(urgent(name))
    assert tick(found) == ["u", "v", "own"]
    assert list(found.to_freeze()) == []
    found.remove("v")
    found.waiting.remove("w")
    found.push(submission("a"))
    assert tick(found) == ["a"]
    found.push(urgent("x"))
    assert [slot.id for slot in found.to_freeze()] == ["a"]


def test_frozen_submissions_go_on_behind_urgent_ones_and_before_the_rest_oldest_first() -> None:
    found = scheduler(submission("a"), submission("b"), submission("waits"), depth=2)
    for name in ("u", "v"):
        found.push(urgent(name, steps=1))
    tick(found)
    assert list(found.frozen) == ["b", "a"]
    found.push(urgent("w", steps=1))
    assert tick(found) == ["w", "a"]
    assert tick(found) == ["b"]
    found.remove("b")
    assert tick(found) == ["waits"]


def test_a_submission_is_frozen_for_no_more_ticks_than_it_has_steps() -> None:
    """With one slot and urgent submissions all the time, it goes on at last, and is not frozen again."""
    found = scheduler(submission("a", steps=3), depth=1)
    found.commit(list(found.slots.values()))
    is_there = []
    for number in range(3 + 2):
        found.push(urgent(f"u{number}", steps=1))
        tick(found)
        is_there.append(found.find("a") is not None)
    assert is_there == [True, True, True, True, False]


def test_short_freezes_count_together() -> None:
    found = scheduler(submission("a", steps=4), depth=1)
    for number in range(4):
        found.push(urgent(f"u{number}", steps=1))
        tick(found)
        assert list(found.frozen) == ["a"]
        found.frozen["a"].step = 0
        assert tick(found) == ["a"]
    found.push(urgent("late"))
    assert list(found.to_freeze()) == []


def test_an_overdue_submission_takes_the_next_free_slot_and_no_other_one_is_frozen_for_it() -> None:
    found = scheduler(submission("a", steps=9), submission("b", steps=1), depth=2)
    found.push(urgent("u", steps=1))
    tick(found)
    assert (list(found.frozen), found.frozen["b"].may_freeze) == (["b"], False)
    found.push(urgent("v", steps=1))
    assert [slot.id for slot in found.to_freeze()] == ["a"]
    assert tick(found) == ["b", "v"]


def unshared(*submissions: Submission, depth: int = 4) -> Scheduler:
    """Where a tick takes as long as it has rows."""
    found = scheduler(*submissions, depth=depth)
    found.shares_ticks = False
    return found


def test_where_ticks_are_not_shared_all_others_are_frozen_until_no_urgent_one_is_in_flight() -> None:
    found = unshared(submission("a", steps=9), submission("b", steps=9))
    assert found.is_tick_urgent is False
    found.push(urgent("u", steps=2))
    assert found.is_tick_urgent is True
    assert tick(found) == ["u"]
    assert found.is_tick_urgent is True
    assert list(found.frozen) == ["b", "a"]
    found.push(submission("waits"))
    assert tick(found) == []
    assert not found.slots
    assert tick(found) == ["a", "b", "waits"]
    assert [found.slots[name].step for name in "ab"] == [1, 1]
    assert found.is_tick_urgent is False
    for name in ("a", "b", "waits"):
        found.remove(name)
    assert found.is_tick_urgent is None


def test_a_tick_that_is_shared_is_for_all() -> None:
    found = scheduler(submission("a"))
    found.push(urgent("u"))
    assert found.is_tick_urgent is None


def test_where_ticks_are_not_shared_others_go_on_beside_urgent_ones_after_as_many_ticks_as_they_have_steps() -> None:
    """With urgent ones all the time: what was in flight, then what waited, one by one."""
    found = unshared(submission("a", steps=3), depth=3)
    for name in ("b", "c"):
        found.push(submission(name, steps=3))
    begins = {}
    for number in range(20):
        found.push(urgent(f"u{number}", steps=1))
        begins |= dict.fromkeys((name for name in tick(found) if not name.startswith("u")), number)
    assert begins == {"a": 3, "b": 3, "c": 6}
    assert not found.frozen
    assert not found.waiting


def test_frozen_submissions_are_found_and_removed_by_id() -> None:
    found = scheduler(submission("a"), depth=1)
    found.push(urgent("u"))
    tick(found)
    frozen = found.find("a")
    assert frozen is found.frozen["a"]
    assert found.remove("a") is frozen
    assert found.find("a") is None
    assert found.num_waiting == 0


@pytest.mark.parametrize(("step", "expected"), [(0, False), (2, False), (3, True)])
def test_the_last_step_is_the_one_after_which_all_are_taken(step: int, expected: bool) -> None:
    assert Slot("a", None, None, bucket=16, steps=4, step=step).is_last_step is expected


def test_slots_of_equal_values_are_different_slots() -> None:
    one, other = (Slot("a", None, None, bucket=16, steps=4) for _ in range(2))
    assert one != other
