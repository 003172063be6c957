"""A bucket: its layout between two ticks, what a tick uploads, and what a joining or leaving slot changes."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Loops
from helpers.backends import CPU, SIMULATED, Backend
from helpers.generations import CONDITIONS, GUIDED, C, D, Inbox, X, make, rand
from simulator.fixture import Machine

from runtime.requests.request import Condition, StepParameters
from runtime.tick.clock import PhaseClock
from runtime.tick.denoise.bucket import DenoiseParts, LengthBucket
from runtime.tick.denoise.prepared import prepare, resolve
from runtime.tick.denoise.row_buffers import RowBuffers
from runtime.tick.denoise.row_layout import RowLayout
from runtime.tick.denoise.runner import DenoiseRunner
from runtime.tick.loop.tick_loop import TickLoop
from runtime.tick.runner import TickContext
from runtime.tick.scheduling.slot import Slot

FRAMES = 32


@pytest.fixture(params=[CPU, *SIMULATED[:2]], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted


on_captured = pytest.mark.parametrize("backend", SIMULATED[:1], ids=str, indirect=True)


def slot_of(name: str, index: int = 0, **changes: Any) -> Slot:
    request = make(name, FRAMES, **changes)
    work = prepare(request, resolve(request, StepParameters()), C)
    return Slot(name, None, work, FRAMES, request.steps, index=index)


@pytest.fixture
def bucket(loops: Loops) -> LengthBucket:
    loop = loops()
    context = TickContext(loop.device, loop.device.stream(), loop.engines, loop.bundle, loop.deployment)
    return DenoiseRunner(context, PhaseClock()).open(FRAMES)


def updated(slot: Slot, **parameters: Any) -> Slot:
    """The slot with new step parameters of its session."""
    work = slot.work
    slot.work = prepare(work.request, resolve(work.request, StepParameters(**parameters)), C)
    return slot


def test_a_layout_stays_the_same_object_until_rows_change(bucket: LengthBucket) -> None:
    one, two = slot_of("one", steps=9), slot_of("two", 1, negatives=(CONDITIONS[1],), steps=9)
    bucket.admit(one)
    layout = bucket.layout()
    assert bucket.layout() is layout
    bucket.admit(two)
    both = bucket.layout()
    assert (both is layout, both.num_rows) == (False, 2)
    bucket.update(updated(two, velocity_scale=0.5))
    assert bucket.layout() is both
    bucket.update(updated(two, guidance=2.0))
    assert bucket.layout().num_rows == 3
    bucket.vacate(two)
    assert bucket.layout().num_rows == 1
    assert len(bucket) == 1


def test_a_layout_ends_with_the_part_of_the_schedule_of_its_conditions(bucket: LengthBucket) -> None:
    halves = (Condition(CONDITIONS[0].tokens, end=0.5), Condition(CONDITIONS[1].tokens, start=0.5))
    slot = slot_of("a", conditions=halves)
    bucket.admit(slot)
    seen = []
    for _ in range(4):
        seen.append(bucket.layout().rows[0].condition)
        bucket.advance()
        slot.step += 1
    assert seen == [halves[0], halves[0], halves[1], halves[1]]


def test_initialize_executes_its_negative_in_the_first_step_alone(bucket: LengthBucket) -> None:
    slot = slot_of("a", guidance_mode="initialize", **GUIDED)
    bucket.admit(slot)
    seen = []
    for _ in range(3):
        seen.append((bucket.layout().num_rows, bucket.live(slot).has_cached_negative))
        bucket.advance()
        slot.step += 1
    assert seen == [(2, False), (1, True), (1, True)]


def test_initialize_executes_its_negative_in_the_first_step_that_is_guided(bucket: LengthBucket) -> None:
    slot = slot_of("a", guidance_mode="initialize", negatives=(CONDITIONS[1],))
    bucket.admit(slot)
    seen = []
    for guidance in (1.0, 1.0, 2.0, 2.0):
        bucket.update(updated(slot, guidance=guidance))
        seen.append((bucket.layout().num_rows, bucket.live(slot).has_cached_negative))
        bucket.advance()
        slot.step += 1
    assert seen == [(1, False), (1, False), (2, False), (1, True)]


def guided_generations(loop: TickLoop, inbox: Inbox, steps: tuple[int, ...]) -> None:
    """One guided generation for each number of steps, with tokens and contexts of their own."""
    for index, count in enumerate(steps):
        conditions = {
            "conditions": (Condition(rand(5, D)),),
            "negatives": (Condition(rand(5, D)),),
            "context": rand(FRAMES, X),
            "parameters": StepParameters(guidance=3.0),
        }
        loop.submit(make(f"{index}", FRAMES, steps=count, **conditions), inbox)


def bytes_of_a_join(loop: TickLoop, machine: Machine, others: int) -> int:
    """What the tick uploads in which a generation joins `others`, less what a steady tick uploads."""
    guided_generations(loop, Inbox(), (60,) * others)
    loop.tick()
    uploaded = []
    for joins in (False, True):
        if joins:
            loop.submit(make("new", FRAMES, steps=60, context=rand(FRAMES, X)), Inbox())
        before = machine.counters["uploaded_bytes"]
        loop.tick()
        uploaded.append(machine.counters["uploaded_bytes"] - before)
    return uploaded[1] - uploaded[0]


@on_captured
def test_what_a_join_uploads_does_not_depend_on_how_many_it_joins(loops: Loops, machine: Machine) -> None:
    one, three = (bytes_of_a_join(loops(), machine, others) for others in (1, 3))
    own = (FRAMES * C + FRAMES * X + 32 * (D + 1)) * 4  # latents, context, padded condition and its mask
    assert own <= one
    tables = three - one  # a slot per row
    assert 0 <= tables <= 2 * 2 * 8


class RewrittenAtJoins(RowBuffers):
    """Forgets at every new layout what lies in its rows."""

    def lay_out(self, layout: RowLayout) -> None:
        self._conditions, self._contexts = {}, {}
        super().lay_out(layout)


@on_captured
def test_where_all_rows_are_written_again_it_does(loops: Loops, machine: Machine) -> None:
    """What the test above would see."""
    parts = DenoiseParts(rows=RewrittenAtJoins)
    one, three = (bytes_of_a_join(loops(parts=parts), machine, others) for others in (1, 3))
    assert three - one >= 2 * (FRAMES * X + 2 * 32 * D) * 4
