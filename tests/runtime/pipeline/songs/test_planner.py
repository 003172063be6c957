"""Who waits for sequences, and their seeds; how their tokens come is tested with the plans."""

from __future__ import annotations

from helpers.lock_check import lock_checked

from runtime.pipeline.songs.planner import Caller, plan_seed


def test_a_caller_that_leaves_ends_what_it_waits_for_once() -> None:
    calls = list[str]()
    caller = lock_checked(Caller, "_on_leave")("someone")
    caller.on_leave(lambda: calls.append("earlier"))
    caller.on_leave(lambda: calls.append("newest"))
    assert not caller.has_left
    caller.leave()
    caller.leave()
    assert (calls, caller.has_left) == (["newest"], True)
    caller.on_leave(lambda: calls.append("late"))
    assert calls == ["newest", "late"]


def test_every_sequence_of_a_plan_has_a_seed_of_its_own() -> None:
    seeds = {plan_seed(seed, *numbers) for seed in (1, 2) for numbers in ((0,), (1,), (0, 1), (-1, 0))}
    assert len(seeds) == 8
    assert plan_seed(1, 0) == plan_seed(1, 0)
