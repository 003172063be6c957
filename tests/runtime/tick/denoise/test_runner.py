"""The runner keeps a bucket per length while it has slots, and a few empty ones; finished latents leave it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.generations import C, make

from runtime.base.errors import EngineNotBuiltError
from runtime.requests.request import StepParameters
from runtime.tick.clock import PhaseClock
from runtime.tick.denoise.prepared import prepare, resolve
from runtime.tick.denoise.runner import MAX_IDLE_BUCKETS, DenoiseRunner
from runtime.tick.loop.tick_loop import TickLoop
from runtime.tick.runner import TickContext
from runtime.tick.scheduling.slot import Slot


def context_of(loop: TickLoop) -> TickContext:
    """A stream of its own on a loop's device, with the loop's engines."""
    return TickContext(loop.device, loop.device.stream(), loop.engines, loop.bundle, loop.deployment)


@pytest.fixture
def runner(loops: Loops) -> DenoiseRunner:
    return DenoiseRunner(context_of(loops()), PhaseClock())


def slot_of(name: str, frames: int = 32, index: int = 0, **changes: Any) -> Slot:
    request = make(name, frames, **changes)
    work = prepare(request, resolve(request, StepParameters()), C)
    return Slot(id=name, runner=None, work=work, bucket=frames, steps=request.steps, index=index)


def test_engines_of_a_version_with_fewer_features_are_refused_before_anything_runs(loops: Loops) -> None:
    context = context_of(loops())
    older = {variant: engine for variant, engine in context.engines.steps.items() if "ab2" not in variant}
    with pytest.raises(EngineNotBuiltError, match="built by an earlier version") as caught:
        DenoiseRunner(replace(context, engines=replace(context.engines, steps=older)), PhaseClock())
    assert caught.value.fix == f"tickrt-build {context.deployment.path}"


def test_step_engines_that_do_not_read_an_input_are_refused(loops: Loops) -> None:
    """They ran, and a generation that needs it was wrong."""
    context = context_of(loops())
    features, engine = max(context.engines.steps.items(), key=lambda item: len(item[0]))
    older: Any = SimpleNamespace(inputs={name: info for name, info in engine.inputs.items() if "keeps" not in name})
    steps = {**context.engines.steps, features: older}
    with pytest.raises(EngineNotBuiltError, match="do not read keeps_difference: they were built by an earlier"):
        DenoiseRunner(replace(context, engines=replace(context.engines, steps=steps)), PhaseClock())


def test_a_bucket_is_opened_once(runner: DenoiseRunner) -> None:
    bucket = runner.open(16)
    assert bucket.frames == 16
    assert runner.open(16) is bucket


def test_empty_buckets_make_room_and_live_ones_stay(runner: DenoiseRunner) -> None:
    runner.admit(slot_of("live", 16))
    live, first = runner.open(16), runner.open(2)
    for index in range(2, MAX_IDLE_BUCKETS + 2):
        runner.open(2 * index)
    assert runner.open(16) is live
    assert runner.open(2) is not first


def test_a_plan_is_the_same_object_until_a_slot_changes(runner: DenoiseRunner) -> None:
    assert runner.plan() is None
    one, two = slot_of("one"), slot_of("two", index=1)
    runner.admit(one)
    plan = runner.plan()
    assert plan is not None
    assert (plan.slots, plan.num_rows, plan.num_executes, plan.frames) == ((one,), 1, 1, (32,))
    assert runner.plan() is plan
    runner.admit(two)
    assert runner.plan() is not plan
    runner.vacate(one)
    runner.vacate(two)
    assert runner.plan() is None


def test_lengths_are_launched_together_shortest_first(runner: DenoiseRunner) -> None:
    for name, frames in (("a", 32), ("b", 16)):
        runner.admit(slot_of(name, frames))
    plan = runner.plan()
    assert plan is not None
    launched = runner.launch(plan)
    assert launched.failed == []
    assert [bucket.layout.frames for bucket in launched.buckets] == [16, 32]
    assert list(launched.non_finite()) == []


def test_latents_that_are_not_finite_are_reported_by_slot_and_step(runner: DenoiseRunner) -> None:
    good, bad = slot_of("good"), slot_of("bad", index=1, noise=np.full((32, C), 3e38, np.float32))
    for slot in (good, bad):
        runner.admit(slot)
    plan = runner.plan()
    assert plan is not None
    assert list(runner.launch(plan).non_finite()) == [(bad, 0)]


def test_a_snapshot_has_every_state(runner: DenoiseRunner) -> None:
    slot = slot_of("a", 16, guidance_mode="self", parameters=StepParameters(guidance=2.0))
    runner.admit(slot)
    states = runner.snapshot(slot)
    assert {"latents", "cached_negative_velocity"} <= states.keys()
    np.testing.assert_array_equal(states["latents"], states["cached_negative_velocity"])
