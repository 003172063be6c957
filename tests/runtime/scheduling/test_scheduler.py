"""Admission, row layout, features and commits, without any engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.config.deployment import Deployment, RuntimeConfig, ShapeRange, ShapeRanges
from runtime.requests.curves import resample
from runtime.requests.request import Condition, Dcw, GenerationRequest, StepParameters, Target
from runtime.scheduling.scheduler import Scheduler, WaitingLine


def deployment(depth: int = 4, max_rows: int = 8, fused: bool = True) -> Deployment:
    shape = ShapeRanges(
        rows=ShapeRange(min=1, opt=1, max=max_rows),
        frames=ShapeRange(min=2, opt=16, max=64),
        tokens=ShapeRange(min=1, opt=8, max=32),
    )
    config = RuntimeConfig(depth=depth, fused_guidance=fused)
    return Deployment(path=Path("x.toml"), bundle=Path("b"), engines=Path("e"), shapes=(shape,), runtime=config)


def condition(tokens: int = 3, **changes: Any) -> Condition:
    return Condition(np.ones((tokens, 2), np.float32), **changes)


def request(name: str, frames: int = 16, **changes: Any) -> GenerationRequest:
    changes.setdefault("conditions", (condition(),))
    changes.setdefault("steps", 4)
    return GenerationRequest(frames=frames, id=name, **changes)


def scheduler(*requests: GenerationRequest, fold: bool = True, **config: Any) -> Scheduler:
    result = Scheduler(deployment(**config), fold_tokens=fold)
    for item in requests:
        result.waiting.push(item)
    result.admit()
    return result


def test_clients_take_turns() -> None:
    line = WaitingLine()
    for name, client in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")):
        line.push(request(name, client=client))
    assert [line.pop().id for _ in range(5)] == ["a1", "b1", "c1", "a2", "a3"]


def test_leaving_the_line() -> None:
    line = WaitingLine()
    for name in ("a", "b"):
        line.push(request(name))
    assert line.remove("a") is not None
    assert line.remove("a") is None
    assert len(line) == 1
    assert line.pop().id == "b"


def test_depth_bounds_slots_and_the_rest_waits() -> None:
    plan = scheduler(*(request(str(i)) for i in range(6)), depth=4)
    assert len(plan.slots) == 4
    assert len(plan.waiting) == 2


def test_a_freed_slot_index_is_taken_again_first() -> None:
    plan = scheduler(*(request(str(i)) for i in range(3)))
    plan.remove("1")
    plan.waiting.push(request("new"))
    assert plan.admit()[0].slot_index == 1


def test_rows_are_positives_in_slot_order_then_negatives() -> None:
    negative = (condition(5),)
    guided = {"negatives": negative, "parameters": StepParameters(guidance=3.0)}
    plan = scheduler(request("a", **guided), request("b"), request("c", **guided))
    bucket = plan.schedule().buckets[0]
    assert [row.slot_index for row in bucket.rows] == [0, 1, 2, 0, 2]
    assert [step.positives for step in bucket.slots] == [(0,), (1,), (2,)]
    assert [step.negatives for step in bucket.slots] == [(3,), (), (4,)]
    assert bucket.executes == ((0, 5, 8),)
    assert bucket.features == {"guidance"}


def test_guidance_one_costs_no_rows() -> None:
    plan = scheduler(request("a", negatives=(condition(),), parameters=StepParameters(guidance=1.0)))
    bucket = plan.schedule().buckets[0]
    assert len(bucket.rows) == 1
    assert bucket.features == set()


def test_two_pass_guidance_executes_positives_and_negatives_apart() -> None:
    guided = {"negatives": (condition(),), "parameters": StepParameters(guidance=3.0)}
    plan = scheduler(request("a", **guided), request("b", **guided), fused=False)
    assert plan.schedule().buckets[0].executes == ((0, 2, 8), (2, 4, 8))


def test_more_rows_than_an_execute_takes_are_split_in_order() -> None:
    conditions = tuple(condition() for _ in range(3))
    plan = scheduler(*(request(str(i), conditions=conditions) for i in range(4)), max_rows=5)
    bucket = plan.schedule().buckets[0]
    assert [execute[:2] for execute in bucket.executes] == [(0, 5), (5, 10), (10, 12)]
    assert sorted(row for step in bucket.slots for row in step.positives) == list(range(12))


def test_unequal_tokens_share_an_execute_only_with_a_mask() -> None:
    requests = [request(str(i), conditions=(condition(tokens),)) for i, tokens in enumerate((3, 9, 3))]
    assert scheduler(*requests).schedule().buckets[0].executes == ((0, 3, 16),)
    apart = scheduler(*requests, fold=False).schedule().buckets[0]
    assert apart.executes == ((0, 2, 3), (2, 3, 9))
    assert [step.positives for step in apart.slots] == [(0,), (2,), (1,)]


def test_lengths_go_into_lanes_of_their_own_in_one_tick() -> None:
    batch = scheduler(request("a", 16), request("b", 32), request("c", 16)).schedule()
    assert [(bucket.frames, len(bucket.slots)) for bucket in batch.buckets] == [(16, 2), (32, 1)]
    assert [slot.slot_index for bucket in batch.buckets for slot in bucket.slots] == [0, 1, 0]


def test_conditions_are_active_in_their_part_of_the_schedule() -> None:
    early, late = condition(end=0.5), condition(start=0.5)
    plan = scheduler(request("a", conditions=(early, late)))
    seen = []
    for _ in range(4):
        batch = plan.schedule()
        seen.append(batch.buckets[0].rows[0].condition)
        plan.commit(batch)
    assert seen == [early, early, late, late]


def test_the_first_condition_stands_in_where_none_is_active() -> None:
    late = condition(start=0.5)
    assert scheduler(request("a", conditions=(late,))).schedule().buckets[0].rows[0].condition is late


def test_commit_finishes_slots_by_their_schedules() -> None:
    plan = scheduler(request("short", steps=2), request("long", steps=3))
    finished = [[slot.request.id for slot in plan.commit(plan.schedule())] for _ in range(3)]
    assert finished == [[], ["short"], ["long"]]
    assert plan.slots == {}
    assert plan.schedule().buckets == ()


def test_commit_after_a_cancel_ignores_the_cancelled_slot() -> None:
    plan = scheduler(request("a", steps=1), request("b", steps=1))
    batch = plan.schedule()
    assert plan.remove("a")
    assert [slot.request.id for slot in plan.commit(batch)] == ["b"]
    assert not plan.remove("a")


def test_initialize_keeps_the_negative_of_its_first_guided_step() -> None:
    guided = {"negatives": (condition(),), "guidance_mode": "initialize", "parameters": StepParameters(guidance=2.0)}
    plan = scheduler(request("a", **guided))
    counts = []
    for _ in range(3):
        batch = plan.schedule()
        counts.append((len(batch.buckets[0].rows), batch.buckets[0].slots[0].use_cached_negative))
        plan.commit(batch)
    assert counts == [(2, False), (1, True), (1, True)]


def test_self_guidance_never_has_negative_rows() -> None:
    plan = scheduler(request("a", guidance_mode="self", parameters=StepParameters(guidance=2.0)))
    bucket = plan.schedule().buckets[0]
    assert len(bucket.rows) == 1
    assert bucket.slots[0].use_cached_negative
    assert bucket.features == {"guidance", "rcfg"}


def test_overrides_win_and_are_taken_away() -> None:
    plan = scheduler(request("a", session="s", parameters=StepParameters(velocity_scale=0.5)), request("b"))
    assert [slot.request.id for slot in plan.override("s", StepParameters(velocity_scale=2.0))] == ["a"]
    assert plan.slots["a"].parameters.velocity_scale == 2.0
    assert plan.slots["b"].parameters.velocity_scale == 1.0
    plan.override("s", None)
    assert plan.slots["a"].parameters.velocity_scale == 0.5


def test_override_curves_are_fitted_to_each_slots_length() -> None:
    plan = scheduler(request("a", 16, session="s"), request("b", 32, session="s"))
    plan.override("s", StepParameters(ode_noise=np.linspace(0, 1, 8)))
    assert [np.shape(plan.slots[name].parameters.ode_noise) for name in "ab"] == [(16,), (32,)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"solver": "sde"}, {"sde"}),
        ({"parameters": StepParameters(ode_noise=0.1)}, {"ode_noise"}),
        ({"parameters": StepParameters(ode_noise=0.1), "solver": "sde"}, {"sde"}),
        ({"parameters": StepParameters(dcw=Dcw("low", 0.1))}, {"dcw"}),
        ({"parameters": StepParameters(dcw=Dcw("low", 0.0, 0.5))}, set()),
        ({"parameters": StepParameters(dcw=Dcw("double", 0.0, 0.5))}, {"dcw"}),
        ({"target": Target(np.zeros((16, 2)))}, set()),
        ({"target": Target(np.zeros((16, 2))), "parameters": StepParameters(x0_strength=0.5)}, {"target"}),
        ({"target": Target(np.zeros((16, 2)), curve=1.0)}, {"target"}),
        ({"source": np.zeros((16, 2)), "parameters": StepParameters(sde_curve=0.5)}, {"sde"}),
        ({"parameters": StepParameters(guidance=3.0)}, set()),
    ],
)
def test_features_follow_from_parameters(changes: dict[str, Any], expected: set[str]) -> None:
    assert scheduler(request("a", **changes)).slots["a"].features == expected


def test_resampling_matches_half_pixel_interpolation() -> None:
    np.testing.assert_allclose(resample(np.array([0.0, 1.0], np.float32), 4), [0.0, 0.25, 0.75, 1.0])
    np.testing.assert_allclose(resample(np.array([0, 1, 2, 3], np.float32), 2), [0.5, 2.5])
    np.testing.assert_allclose(resample(np.array([7.0], np.float32), 3), [7.0, 7.0, 7.0])
