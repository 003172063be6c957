"""A background generation that gives its slot to an urgent one, and goes on later as if nothing had happened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.backends import CPU, REAL, SIMULATED, Backend
from helpers.faulty_engine import Faults, FaultyEngine
from helpers.generations import FEATURES, GUIDED, Inbox, make, rand, run_all

from runtime.base.errors import DrainingError, NonFiniteError
from runtime.engines.engine import EngineSet
from runtime.engines.loading import open_engines
from runtime.tick.loop.events import Cancelled, Failed, Finished, Progress, Started
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

STEPS = 6


@pytest.fixture(params=[CPU, SIMULATED[0], *REAL], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


def ticks(loop: TickLoop, count: int) -> list[TickRecord]:
    """Records of so many ticks, all with live slots."""
    records = [loop.tick() for _ in range(count)]
    assert all(records)
    return [record for record in records if record is not None]


def to_the_end(loop: TickLoop) -> None:
    while loop.tick() is not None:
        pass


def urgent(name: str = "urgent", **changes: Any) -> Any:
    return make(name, **{"steps": 2, "is_urgent": True, **changes})


def frozen(loops: Loops, inbox: Inbox, *, after: int = 2, **changes: Any) -> TickLoop:
    """A loop of one slot: generation `a` has lost it to an urgent one, whose first step is done."""
    loop = loops(depth=1)
    loop.submit(make("a", **{"steps": STEPS, **changes}), inbox)
    ticks(loop, after)
    loop.submit(urgent(), inbox)
    (record,) = ticks(loop, 1)
    assert record.frozen == ("a",)
    return loop


NAMES = (
    "plain", "guided_all", "rcfg_initialize", "rcfg_self", "sde", "mask", "everything", "two_conditions", "ab2_guided",
    "ab2_interval",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "after"),
    [*((name, 3) for name in NAMES), *((name, at) for name in ("plain", "guided_all") for at in (1, STEPS - 1))],
)
def test_a_frozen_generation_equals_one_that_was_not(name: str, after: int, loops: Loops) -> None:
    request = make("a", **{**FEATURES[name], "steps": STEPS})
    whole = run_all(loops(depth=1), request).latents("a")
    inbox = Inbox()
    loop = frozen(loops, inbox, after=after, **{**FEATURES[name], "steps": STEPS})
    to_the_end(loop)
    np.testing.assert_array_equal(inbox.latents("a"), whole)
    assert isinstance(inbox.terminal("urgent"), Finished)


@pytest.mark.parametrize("name", ["plain", "guided_all", "rcfg_initialize", "sde", "ab2_guided"])
def test_a_generation_that_is_frozen_again_and_again_equals_one_that_was_not(name: str, loops: Loops) -> None:
    """Other features run between its steps, so that other states lie in its rows meanwhile."""
    request = make("a", **{**FEATURES[name], "steps": STEPS})
    whole = run_all(loops(depth=1), request).latents("a")
    loop, inbox = loops(depth=1), Inbox()
    loop.submit(request, inbox)
    for number in range(STEPS - 1):
        ticks(loop, 1)
        loop.submit(
            urgent(f"u{number}", **{**FEATURES["everything" if number % 2 else "guided_all"], "steps": 1}), inbox
        )
        (record,) = ticks(loop, 1)
        assert (record.frozen, record.slots) == (("a",), 1)
    (record,) = ticks(loop, 1)
    assert record.resumed == ("a",)
    to_the_end(loop)
    np.testing.assert_array_equal(inbox.latents("a"), whole)


def test_an_urgent_generation_has_its_first_step_in_the_next_tick(loops: Loops, backend: Backend) -> None:
    loop, inbox = loops(depth=2), Inbox()
    for name in ("old", "new", "waits"):
        loop.submit(make(name, steps=STEPS), inbox)
    ticks(loop, 2)
    loop.submit(urgent(), inbox)
    (record,) = ticks(loop, 1)
    assert inbox.of("urgent", Started)[0].tick == record.tick
    shared = (("new",), 2, 2)
    # On the CPU an execute takes as long as it has rows: the urgent one has its ticks for itself.
    assert (record.frozen, record.slots, record.queue_depth) == ((("new", "old"), 1, 3) if backend is CPU else shared)
    to_the_end(loop)
    ends = [event.request_id for event in inbox.events if isinstance(event, Finished)]
    assert ends == ["urgent", "old", "new", "waits"]


def test_neighbours_of_a_frozen_generation_stay_as_they_are(loops: Loops) -> None:
    """Beside as many others in every tick, each is as if none had been frozen."""
    names = ("a", "b")
    whole = run_all(loops(depth=2), *(make(name, steps=8, **GUIDED) for name in names))
    loop, inbox = loops(depth=2), Inbox()
    for name in names:
        loop.submit(make(name, steps=8, **GUIDED), inbox)
    ticks(loop, 3)
    loop.submit(urgent(**GUIDED), inbox)
    ticks(loop, 2)
    for name in "cd":  # they take the place of whichever of the two is over first
        loop.submit(make(name, steps=8, **GUIDED), inbox)
    to_the_end(loop)
    for name in names:
        np.testing.assert_array_equal(inbox.latents(name), whole.latents(name))


def test_a_frozen_generation_has_one_start_and_every_step_once(loops: Loops) -> None:
    inbox = Inbox()
    to_the_end(frozen(loops, inbox))
    assert len(inbox.of("a", Started)) == 1
    assert [event.step for event in inbox.of("a", Progress)] == list(range(1, STEPS))


def test_a_generation_is_cancelled_while_it_is_frozen(loops: Loops) -> None:
    inbox = Inbox()
    loop = frozen(loops, inbox)
    loop.cancel("a")
    to_the_end(loop)
    assert isinstance(inbox.terminal("a"), Cancelled)
    assert isinstance(inbox.terminal("urgent"), Finished)
    assert {name: count for name, count in loop.stats().outcomes.items() if count} == {"ok": 1, "cancelled": 1}
    assert (loop.is_empty, loop.stats().slots_active, loop.stats().queue_depth) == (True, 0, 0)


def test_an_urgent_generation_that_is_cancelled_gives_the_slot_back(loops: Loops) -> None:
    inbox = Inbox()
    loop = frozen(loops, inbox)
    loop.cancel("urgent")
    (record,) = ticks(loop, 1)
    assert record.resumed == ("a",)
    to_the_end(loop)
    assert isinstance(inbox.terminal("a"), Finished)


def test_step_parameters_that_change_while_it_is_frozen_hold_from_its_next_step_on(loops: Loops) -> None:
    whole, loop = Inbox(), loops(depth=1)
    loop.submit(make("a", steps=STEPS, session="s"), whole)
    ticks(loop, 2)
    loop.update("s", {"velocity_scale": 1.5, "ode_noise": 0.1})
    to_the_end(loop)
    inbox = Inbox()
    loop = frozen(loops, inbox, session="s")
    assert loop.update("s", {"velocity_scale": 1.5, "ode_noise": 0.1}) == 1
    to_the_end(loop)
    np.testing.assert_array_equal(inbox.latents("a"), whole.latents("a"))


def test_a_newer_generation_of_its_session_does_not_replace_it(loops: Loops) -> None:
    inbox = Inbox()
    loop = frozen(loops, inbox, session="s")
    loop.submit(make("newer", session="s"), inbox)
    to_the_end(loop)
    assert isinstance(inbox.terminal("a"), Finished)
    assert isinstance(inbox.terminal("newer"), Finished)


@pytest.mark.parametrize("name", ["plain", "rcfg_initialize"])
def test_a_snapshot_of_a_frozen_generation_has_the_states_of_its_last_step(name: str, loops: Loops) -> None:
    changes = {**FEATURES[name], "steps": STEPS}
    running = loops(depth=1)
    running.submit(make("a", **changes), Inbox())
    ticks(running, 3)
    expected = running.snapshot("a")
    ticks(running, 1)
    loop = frozen(loops, Inbox(), after=3, **changes)
    reply = loop.snapshot("a")
    ticks(loop, 1)
    for state, values in expected.result(0).items():
        np.testing.assert_array_equal(reply.result(0)[state], values)


def test_engines_that_are_swapped_while_it_is_frozen_continue_it(loops: Loops) -> None:
    whole = run_all(loops(depth=1), make("a", steps=STEPS)).latents("a")
    inbox = Inbox()
    loop = frozen(loops, inbox)
    reply = loop.swap(open_engines(loop.deployment, loop.device))
    to_the_end(loop)
    reply.result(0)
    np.testing.assert_array_equal(inbox.latents("a"), whole)


def test_other_lengths_may_take_its_bucket_while_it_is_frozen(loops: Loops) -> None:
    """More lengths than idle buckets are kept: the memory that it had is given back meanwhile."""
    whole = run_all(loops(depth=1), make("a", steps=60)).latents("a")
    inbox = Inbox()
    loop = frozen(loops, inbox, steps=60)
    for frames in (2, 4, 6, 8, 10, 12, 14):
        loop.submit(make(str(frames), frames, context=rand(frames, 16), steps=2, is_urgent=True), inbox)
    ticks(loop, 14)
    to_the_end(loop)
    np.testing.assert_array_equal(inbox.latents("a"), whole)


def test_draining_waits_for_a_frozen_generation(loops: Loops) -> None:
    inbox = Inbox()
    loop = frozen(loops, inbox)
    loop.start()
    assert loop.drain(60.0)
    assert isinstance(inbox.terminal("a"), Finished)


def test_closing_ends_a_frozen_generation_as_drained(loops: Loops) -> None:
    inbox = Inbox()
    loop = frozen(loops, inbox)
    loop.close()
    assert isinstance(inbox.terminal("a").error, DrainingError)
    assert loop.stats().outcomes["drained"] == 2


def test_a_step_that_was_not_finite_is_found_after_its_generation_was_frozen(loops: Loops) -> None:
    base = loops(depth=1)
    engines = open_engines(base.deployment, base.device)
    faulty = EngineSet(
        FaultyEngine(engines.decoder, Faults(nan_at={1: (0,)}), base.device), engines.rows, engines.steps
    )
    runtime = base.deployment.runtime.model_copy(update={"ticks_in_flight": 2, "capture": False})
    loop = TickLoop(faulty, base.bundle, base.deployment.model_copy(update={"runtime": runtime}), base.device)
    inbox = Inbox()
    loop.submit(make("a", steps=STEPS), inbox)
    ticks(loop, 2)
    loop.submit(urgent(), inbox)
    to_the_end(loop)
    failed = inbox.terminal("a")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NonFiniteError)
    assert np.isfinite(inbox.latents("urgent")).all()
    loop.close()


def test_random_urgent_work_loses_nothing(loops: Loops, backend: Backend) -> None:
    """Generations of both kinds come and are cancelled at random: each ends once, each that finishes is right."""
    random = np.random.default_rng(5)
    features = list(FEATURES.values())
    known: dict[int, Any] = {}
    variants = {"more": ""} if backend.target == "cpu" else {}
    loop, alone, inbox, asked = loops(depth=2, **variants), loops(depth=2, **variants), Inbox(), dict[str, int]()
    num_frozen = 0
    for number in range(150):
        kind, is_urgent = int(random.integers(len(features))), bool(random.random() < 0.1)
        if is_urgent or len(asked) - sum(loop.stats().outcomes.values()) < 8:
            request = make(f"r{number}", seed=kind, is_urgent=is_urgent, **features[kind])
            asked[loop.submit(request, inbox)] = kind
        if random.random() < 0.1:
            loop.cancel(str(random.choice(list(asked))))
        record = loop.tick()
        num_frozen += len(record.frozen) if record is not None else 0
    to_the_end(loop)
    assert num_frozen > 5
    for name, kind in asked.items():
        if isinstance(inbox.terminal(name), Finished):
            if kind not in known:
                known[kind] = run_all(alone, make(f"alone{kind}", seed=kind, **features[kind])).latents(f"alone{kind}")
            np.testing.assert_allclose(inbox.latents(name), known[kind], atol=1e-4, rtol=1e-4)
    assert sum(loop.stats().outcomes.values()) == len(asked)
    assert (loop.is_empty, loop.stats().slots_active) == (True, 0)
