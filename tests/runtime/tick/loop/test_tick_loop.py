"""The tick loop on a tiny bundle with real engines: results, control, faults, accounting."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import Loops, captured
from helpers.backends import CPU, REAL, SIMULATED, Backend
from helpers.faulty_engine import Faults, FaultyEngine
from helpers.generations import CONDITIONS, FEATURES, GUIDED, C, D, Inbox, expected_latents, make, rand, run_all
from helpers.panics import panic

from profiling.bench.allocation_probe import AllocationProbe
from runtime.base.errors import (
    DrainingError,
    EngineDeadError,
    EngineError,
    EngineMismatchError,
    InternalError,
    NonFiniteError,
    OutOfMemoryError,
    QueueFullError,
    RequestError,
    ShapeError,
)
from runtime.devices.memory import ArrayPool
from runtime.engines.engine import EngineSet
from runtime.engines.loading import open_engines
from runtime.requests.request import DENOISE_MIN, Condition, Dcw, StepParameters
from runtime.tick.denoise.bucket import LengthBucket
from runtime.tick.denoise.runner import DenoiseRunner
from runtime.tick.loop.events import Cancelled, Failed, Finished, Progress, Started, Updated
from runtime.tick.loop.tick_loop import TickLoop


@pytest.fixture(params=[CPU, SIMULATED[0], *REAL], ids=str)
def backend(request: pytest.FixtureRequest) -> Backend:
    wanted: Backend = request.param
    return wanted.skip_where_it_is_missing()


def faulty(loop: TickLoop, faults: Faults, role: str = "decoder") -> TickLoop:
    """The same deployment with engines of a role that have faults (without capture: a replayed graph has none)."""
    device = loop.device
    deployment = captured(loop.deployment, False)
    engines = open_engines(deployment, device)
    found: Any = getattr(engines, role)
    if role == "decoder":
        spoiled: Any = FaultyEngine(found, faults, device)
    else:
        spoiled = {features: FaultyEngine(engine, faults, device) for features, engine in found.items()}
    return TickLoop(replace(engines, **{role: spoiled}), loop.bundle, loop.deployment, device)


EVERY_VARIANT = {"more": ""}
# A simulated GPU runs the same graphs: test_on_gpu compares it with the CPU.
ORACLE_BACKENDS = pytest.mark.parametrize(
    "backend", [CPU, pytest.param(SIMULATED[0], marks=pytest.mark.slow), *REAL], indirect=True, ids=str
)


@ORACLE_BACKENDS
@pytest.mark.parametrize("name", sorted(FEATURES))
def test_every_feature_agrees_with_the_oracle(name: str, loops: Loops, backend: Backend) -> None:
    loop = loops(**EVERY_VARIANT if backend.target == "cpu" else {})
    request = make(name, **FEATURES[name])
    np.testing.assert_allclose(
        run_all(loop, request).latents(name), expected_latents(loop, request), atol=1e-4, rtol=1e-4
    )


@ORACLE_BACKENDS
@pytest.mark.parametrize("name", ["two_conditions", "interval_blend", "two_negatives", "guided"])
def test_blends_that_keep_their_level_agree_with_the_oracle(name: str, loops: Loops, backend: Backend) -> None:
    loop, request = (
        loops(**EVERY_VARIANT if backend.target == "cpu" else {}, blend_power=8, blend_energy_below=0.6),
        make(name, **FEATURES[name]),
    )
    np.testing.assert_allclose(
        run_all(loop, request).latents(name), expected_latents(loop, request), atol=1e-4, rtol=1e-4
    )


RULES = {
    "plain": 'rule = "plain"\nrescale = 0.3',
    "apg": 'rule = "apg"\nnorms = "all"\nmomentum = 0.4\nnorm_limit = 1.0\nparallel = 0.25',
}


@ORACLE_BACKENDS
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_of_guidance_agrees_with_the_oracle_with_all_of_a_tick_in_one_execute(
    rule: str, loops: Loops
) -> None:
    loop = loops(depth=8, max_rows=16, rule=rule)
    names = [name for name in FEATURES if any(part in name for part in ("guided", "rcfg", "interval", "negatives"))]
    requests = [make(name, **FEATURES[name]) for name in (*names, "plain", "everything")]
    inbox = run_all(loop, *requests)
    for request in requests:
        expected = expected_latents(loop, request)
        np.testing.assert_allclose(inbox.latents(request.id), expected, atol=1e-4, rtol=1e-4, err_msg=request.id)


@ORACLE_BACKENDS
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_by_every_rule_guidance_changes_in_flight(rule: str, loops: Loops) -> None:
    loop, inbox = loops(depth=8, max_rows=16, rule=rule), Inbox()
    request = make("a", **{**GUIDED, "parameters": StepParameters(), "steps": 6, "session": "s"})
    loop.submit(request, inbox)
    changes: dict[int, dict[str, Any]] = {0: {"guidance": 4.0}, 2: {"rescale": 0.9}, 3: {"guidance": 0.0}}
    changes |= {4: {"guidance": np.linspace(0.0, 9.0, 32, dtype=np.float32)}}
    held: dict[str, Any] = {}
    seen: dict[int, StepParameters] = {}
    for step in range(6):
        loop.update("s", changes.get(step, {}))
        held |= changes.get(step, {})
        seen[step] = StepParameters(**held)
        loop.tick()
    while loop.tick() is not None:
        pass
    np.testing.assert_allclose(inbox.latents("a"), expected_latents(loop, request, seen), atol=1e-4, rtol=1e-4)


def test_a_result_does_not_depend_on_which_generations_share_its_ticks(loops: Loops) -> None:
    requests = [make(name, **changes) for name, changes in list(FEATURES.items())[:14]]
    alone = {r.id: run_all(loops(), r).latents(r.id) for r in requests}
    together = run_all(loops(depth=8, max_rows=16), *requests)
    for request in requests:
        np.testing.assert_allclose(together.latents(request.id), alone[request.id], 1e-4, 1e-4, err_msg=request.id)


def test_a_result_does_not_depend_on_the_neighbours_values(loops: Loops) -> None:
    louder = {**GUIDED, "parameters": StepParameters(guidance=7.0)}
    one = run_all(loops(), make("a", **GUIDED), make("b", seed=1, **GUIDED))
    other = run_all(loops(), make("a", **GUIDED), make("b", seed=2, **louder))
    np.testing.assert_array_equal(one.latents("a"), other.latents("a"))


def test_outside_of_its_guidance_interval_a_slot_keeps_its_momentum_while_others_are_guided(loops: Loops) -> None:
    names = [name for name in FEATURES if name.startswith("interval_")]
    others = {"guided": {**GUIDED, "steps": 6}, "rcfg": {**FEATURES["rcfg_initialize"], "steps": 6}}
    requests = [make(name, **changes) for name, changes in ({name: FEATURES[name] for name in names} | others).items()]
    loop = loops(depth=8, max_rows=16)
    inbox = run_all(loop, *requests)
    for request in requests:
        expected = expected_latents(loop, request)
        np.testing.assert_allclose(inbox.latents(request.id), expected, atol=1e-4, rtol=1e-4)


def test_a_guidance_interval_has_no_negative_rows_outside_and_may_change_in_flight(loops: Loops) -> None:
    loop = loops()
    request = make("a", **GUIDED, steps=8, session="s")
    loop.submit(request, Inbox())
    rows = []
    for tick in range(8):
        if tick == 2:
            loop.update("s", {"cfg_interval_end": 0.5})
        record = loop.tick()
        assert record is not None
        rows.append(record.rows)
    assert rows == [2, 2, 2, 2, 2, 1, 1, 1]


def test_fused_and_two_pass_guidance_agree(loops: Loops) -> None:
    fused = loops()
    apart = loops(
        fused.deployment.model_copy(
            update={"runtime": fused.deployment.runtime.model_copy(update={"fused_guidance": False})}
        )
    )
    requests = [make("a", **GUIDED), make("b", **FEATURES["guided_all"])]
    one, other = run_all(fused, *requests), run_all(apart, *requests)
    for name in "ab":
        np.testing.assert_allclose(one.latents(name), other.latents(name), atol=1e-5)


def test_rows_beyond_the_largest_range_take_more_executes(loops: Loops) -> None:
    loop, inbox = loops(max_rows=3), Inbox()
    for name in "abcd":
        loop.submit(make(name, **GUIDED), inbox)
    record = loop.tick()
    assert record is not None
    assert (record.rows, record.executes) == (8, 3)


def test_unequal_tokens_share_one_execute_and_change_nothing(loops: Loops) -> None:
    loop = loops()
    requests = [make(str(len(c.tokens)), conditions=(c,)) for c in CONDITIONS]
    inbox = Inbox()
    for request in requests:
        loop.submit(request, inbox)
    record = loop.tick()
    assert record is not None
    assert record.executes == 1
    while loop.tick() is not None:
        pass
    for request in requests:
        np.testing.assert_allclose(inbox.latents(request.id), expected_latents(loop, request), atol=1e-4)


@pytest.mark.parametrize("backend", [CPU, *REAL], indirect=True, ids=str)
def test_a_decoder_without_mask_runs_unequal_tokens_apart(loops: Loops) -> None:
    loop, inbox = loops(mask=False), Inbox()
    for condition in (CONDITIONS[0], CONDITIONS[1], CONDITIONS[0]):
        loop.submit(
            make(f"{len(inbox.events)}{len(condition.tokens)}{time.perf_counter()}", conditions=(condition,)), inbox
        )
    record = loop.tick()
    assert record is not None
    assert (record.rows, record.executes) == (3, 2)


def test_slots_of_different_length_advance_in_the_same_tick(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    for frames in (16, 32, 64):
        loop.submit(make(str(frames), frames), inbox)
    record = loop.tick()
    assert record is not None
    assert record.frames == (16, 32, 64)
    ticks = [record.tick] + [r.tick for r in iter(loop.tick, None)]
    assert {inbox.terminal(str(frames)).tick for frames in (16, 32, 64)} == {ticks[-1]}
    for frames in (16, 32, 64):
        request = make(str(frames), frames)
        np.testing.assert_allclose(inbox.latents(str(frames)), expected_latents(loop, request), atol=1e-4)


def test_events_come_in_order_and_delivery_is_in_the_tick_of_the_last_step(loops: Loops) -> None:
    inbox = run_all(loops(), make("a", steps=3))
    assert [type(event) for event in inbox.events] == [Started, Progress, Progress, Finished]
    assert inbox.terminal("a").tick == inbox.of("a", Started)[0].tick + 2


def test_a_generation_of_no_steps_returns_its_source(loops: Loops) -> None:
    source = rand(32, C)
    inbox = run_all(loops(), *(make(f"{value}", source=source, denoise=value) for value in (0.0, DENOISE_MIN)))
    for name in ("0.0", f"{DENOISE_MIN}"):
        np.testing.assert_array_equal(inbox.latents(name), source)
        assert not np.shares_memory(inbox.latents(name), source)
        assert inbox.terminal(name).steps == 0


def test_finished_latents_belong_to_the_receiver(loops: Loops) -> None:
    loop = loops()
    first = run_all(loop, make("a")).latents("a")
    before = first.copy()
    for seed in range(40):
        run_all(loop, make(str(seed), seed=seed))
    np.testing.assert_array_equal(first, before)
    first[...] = 0.0


def test_an_override_takes_effect_on_the_next_tick_until_it_is_removed(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    request, louder = make("a", session="s"), StepParameters(velocity_scale=1.7)
    loop.submit(request, inbox)
    loop.tick()
    assert loop.update("s", {"velocity_scale": 1.7}) == 1
    loop.tick()
    loop.update("s", {"velocity_scale": None})
    while loop.tick() is not None:
        pass
    np.testing.assert_allclose(inbox.latents("a"), expected_latents(loop, request, {1: louder}), atol=1e-4)


def test_ab2_takes_eulers_step_after_one_that_added_noise(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    request = make("a", solver="ab2", steps=7, session="s")
    loop.submit(request, inbox)
    loop.submit(make("other", solver="ab2", steps=9), inbox)
    for changes in ({}, {}, {"ode_noise": 0.2}, {}, {"ode_noise": None}):
        loop.update("s", changes)
        loop.tick()
    while loop.tick() is not None:
        pass
    noisy = dict.fromkeys((2, 3), StepParameters(ode_noise=0.2))
    np.testing.assert_allclose(inbox.latents("a"), expected_latents(loop, request, noisy), atol=1e-4)


def test_ab2_begins_anew_after_steps_of_the_sde(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    request = make("a", solver="ab2", steps=7, session="s", source=rand(32, C))
    loop.submit(request, inbox)
    loop.submit(make("other", solver="ab2", steps=9), inbox)
    for changes in ({}, {}, {"sde_curve": 0.7}, {}, {"sde_curve": None}):
        loop.update("s", changes)
        loop.tick()
    while loop.tick() is not None:
        pass
    mixed = dict.fromkeys((2, 3), StepParameters(sde_curve=0.7))
    np.testing.assert_allclose(inbox.latents("a"), expected_latents(loop, request, mixed), atol=1e-4)


@pytest.mark.parametrize("name", ["plain", "guided", "mask", "ab2_guided"])
def test_a_generation_is_the_same_beside_one_of_the_solver_ab2(name: str, loops: Loops) -> None:
    """Its slot is the one that such a generation had before."""
    changes = {**FEATURES[name], "steps": 5}
    alone = run_all(loops(), make("a", **changes), make("b", steps=5, **GUIDED)).latents("a")
    loop = loops()
    run_all(loop, *(make(f"earlier{index}", solver="ab2", steps=3) for index in range(3)))
    beside = run_all(loop, make("a", **changes), make("b", solver="ab2", steps=5, **GUIDED)).latents("a")
    np.testing.assert_allclose(beside, alone, atol=1e-5)


def test_an_update_is_published_with_the_first_tick_that_it_reaches(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    loop.submit(make("a", session="s", steps=3), inbox)
    loop.update("s", {"velocity_scale": 1.2})
    loop.tick()
    loop.tick()
    loop.update("s", {"velocity_scale": 1.7})
    loop.tick()
    started = inbox.of("a", Started)[0].tick
    assert [event.tick for event in inbox.of("a", Updated)] == [started, started + 2]


def test_an_update_after_the_last_step_is_not_published(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    loop.submit(make("a", session="s", steps=1), inbox)
    loop.submit(make("b", steps=3), inbox)
    loop.tick()
    loop.update("s", {"velocity_scale": 1.7})
    while loop.tick() is not None:
        pass
    assert not inbox.of("a", Updated)


def test_an_override_may_need_a_variant_with_more_features_than_are_used(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    request = make("a", session="s")
    noisy = StepParameters(ode_noise=0.2, dcw=Dcw("double", 0.1, 0.05))
    loop.submit(request, inbox)
    loop.tick()
    loop.update("s", {"ode_noise": 0.2, "dcw": Dcw("double", 0.1, 0.05)})
    while loop.tick() is not None:
        pass
    overrides = dict.fromkeys(range(1, request.steps), noisy)
    np.testing.assert_allclose(inbox.latents("a"), expected_latents(loop, request, overrides), atol=1e-4)


def test_an_override_leaves_other_sessions_alone(loops: Loops) -> None:
    alone = run_all(loops(), make("a", session="s"), make("b", session="t")).latents("a")
    loop = loops()
    inbox = Inbox()
    for name, session in (("a", "s"), ("b", "t")):
        loop.submit(make(name, session=session), inbox)
    loop.update("t", {"velocity_scale": 0.2, "ode_noise": 0.0})
    while loop.tick() is not None:
        pass
    np.testing.assert_array_equal(inbox.latents("a"), alone)


def test_guidance_can_be_switched_on_in_flight(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    request = make("a", negatives=(CONDITIONS[1],), session="s")
    loop.submit(request, inbox)
    record = loop.tick()
    assert record is not None
    assert record.rows == 1
    loop.update("s", {"guidance": 3.0})
    record = loop.tick()
    assert record is not None
    assert record.rows == 2


def test_cancel_ends_waiting_and_running_generations_once(loops: Loops) -> None:
    loop, inbox = loops(depth=1), Inbox()
    loop.submit(make("running"), inbox)
    loop.submit(make("waiting"), inbox)
    loop.tick()
    for name in ("waiting", "running", "running", "unknown"):
        loop.cancel(name)
    assert loop.tick() is None
    assert isinstance(inbox.terminal("running"), Cancelled)
    assert isinstance(inbox.terminal("waiting"), Cancelled)
    assert loop.stats().outcomes["cancelled"] == 2
    assert loop.stats().slots_active == 0


def test_cancel_during_the_execute_takes_effect_before_the_commit(loops: Loops) -> None:
    base, inbox = loops(), Inbox()
    faults = Faults(hang_at=0)
    loop = faulty(base, faults)
    loop.submit(make("a", steps=1), inbox)
    thread = threading.Thread(target=loop.tick)
    thread.start()
    wait_until(lambda: faults.executes > 0)
    loop.cancel("a")
    faults.release.set()
    thread.join(5)
    assert isinstance(inbox.terminal("a"), Cancelled)
    loop.close()


def test_a_snapshot_during_the_execute_has_a_whole_step(loops: Loops) -> None:
    base = loops()
    base.submit(make("a", **GUIDED), Inbox())
    for _ in range(2):
        base.tick()
    expected = base.snapshot("a")
    base.tick()
    faults = Faults(hang_at=1)
    loop = faulty(base, faults)
    loop.submit(make("a", **GUIDED), Inbox())
    loop.tick()
    thread = threading.Thread(target=loop.tick)
    thread.start()
    wait_until(lambda: faults.executes > 1)
    reply = loop.snapshot("a")
    faults.release.set()
    thread.join(5)
    states = reply.result(5)
    assert states.keys() == expected.result(0).keys() > {"latents"}
    for name, values in expected.result(0).items():
        np.testing.assert_array_equal(states[name], values)
    loop.close()


def test_places_are_bounded_and_free_after_generations_end(loops: Loops) -> None:
    loop, inbox = loops(depth=2), Inbox()
    places = 2 + loop.deployment.runtime.queue
    for index in range(places):
        loop.submit(make(str(index)), inbox)
    with pytest.raises(QueueFullError, match="2 slots and 8 waiting places"):
        loop.submit(make("one too many"), inbox)
    while loop.tick() is not None:
        pass
    assert loop.stats().outcomes["ok"] == places
    loop.submit(make("fits again"), inbox)


def test_urgent_generations_take_no_place_and_go_first(loops: Loops) -> None:
    loop, inbox = loops(depth=1), Inbox()
    for index in range(1 + loop.deployment.runtime.queue):
        loop.submit(make(str(index)), inbox)
    loop.submit(make("urgent", is_urgent=True), inbox)
    loop.tick()
    assert [event.request_id for event in inbox.events if isinstance(event, Started)] == ["urgent"]
    with pytest.raises(QueueFullError):
        loop.submit(make("one too many"), inbox)


@pytest.mark.parametrize("step", [0, 2, 3])
def test_a_non_finite_slot_ends_alone_and_its_neighbours_stay_bit_identical(step: int, loops: Loops) -> None:
    base = loops()
    names = ["a", "b", "c"]
    clean = run_all(base, *(make(name) for name in names))
    loop = faulty(base, Faults(nan_at={step: (1,)}))
    inbox = run_all(loop, *(make(name) for name in names))
    failed = inbox.terminal("b")
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, NonFiniteError)
    for name in ("a", "c"):
        np.testing.assert_array_equal(inbox.latents(name), clean.latents(name))
    assert {name: count for name, count in loop.stats().outcomes.items() if count} == {"ok": 2, "nonfinite": 1}
    assert np.isfinite(run_all(loop, make("next")).latents("next")).all()
    loop.close()


def test_a_recoverable_failure_ends_the_batch_and_not_the_loop(loops: Loops) -> None:
    loop = faulty(loops(), Faults(fail_at=frozenset({1})))
    inbox = run_all(loop, make("a"), make("b"))
    for name in "ab":
        assert isinstance(inbox.terminal(name), Failed)
        assert isinstance(inbox.terminal(name).error, EngineError)
    assert run_all(loop, make("c")).latents("c").shape == (32, C)
    assert loop.stats().is_alive
    loop.close()


@pytest.mark.parametrize("role", ["decoder", "rows", "steps"])
def test_an_execute_that_fails_for_one_shape_ends_its_generations_alone(
    role: str, loops: Loops, caplog: pytest.LogCaptureFixture
) -> None:
    base = loops()
    clean = run_all(base, make("a", **GUIDED), make("b", 16)).latents("a")
    faults = Faults(refuses=lambda shapes: any(shape[1:2] == (64,) for shape in shapes.values()))
    loop = faulty(base, faults, role)
    inbox = run_all(loop, make("a", **GUIDED), make("bad", 64, **GUIDED), make("b", 16), make("worse", 64, **GUIDED))
    for name in ("bad", "worse"):
        assert type(inbox.terminal(name).error) is EngineError
    np.testing.assert_array_equal(inbox.latents("a"), clean)
    inbox.latents("b")
    assert caplog.text.count("2 generations end") == 1
    later = run_all(loop, make("a", **GUIDED), make("bad", 64, **GUIDED))
    np.testing.assert_array_equal(later.latents("a"), clean)
    assert isinstance(later.terminal("bad"), Failed)
    assert loop.stats().is_alive
    assert {name: count for name, count in loop.stats().outcomes.items() if count} == {"ok": 3, "engine_error": 3}
    loop.close()


def test_results_that_cannot_be_copied_out_end_their_generations_alone(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, inbox = loops(), Inbox()
    for name, steps in (("a", 2), ("b", 4)):
        loop.submit(make(name, steps=steps), inbox)
    loop.tick()
    with monkeypatch.context() as patched:
        patched.setattr(ArrayPool, "lend", lambda self: refuse_memory((), None))
        loop.tick()
    assert isinstance(inbox.terminal("a").error, OutOfMemoryError)
    while loop.tick() is not None:
        pass
    inbox.latents("b")
    run_all(loop, make("a")).latents("a")
    loop.close()


@pytest.mark.parametrize("step", ["admit", "update", "launch", "snapshot"])
def test_an_unknown_error_of_one_step_ends_what_it_is_of_alone(
    step: str, loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, inbox = loops(), Inbox()
    owner, name = (LengthBucket, "prepare") if step == "launch" else (DenoiseRunner, step)
    panics, carry_out = [panic], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, given: panics.pop()() if panics else carry_out(self, given))
    loop.submit(make("a", session="s"), inbox)
    if step != "admit":
        panics.clear()
        loop.tick()
        loop.update("s", {"guidance": 2.0})
        panics.append(panic)
    snapshot = loop.snapshot("a")
    while loop.tick() is not None:
        pass
    if step == "snapshot":
        assert isinstance(snapshot.exception(), InternalError)
        assert isinstance(inbox.terminal("a"), Finished)
    else:
        assert isinstance(inbox.terminal("a").error, InternalError)
    assert run_all(loop, make("b")).latents("b").shape == (32, C)
    loop.close()


def test_a_listener_that_fails_leaves_the_others_their_events(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    loop.submit(make("a"), panic)
    loop.submit(make("b"), inbox)
    while loop.tick() is not None:
        pass
    assert isinstance(inbox.terminal("b"), Finished)
    assert loop.is_empty
    loop.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_engine_fails_every_generation_and_later_ones_are_refused(loops: Loops) -> None:
    loop, inbox = faulty(loops(depth=1), Faults(die_at=1)), Inbox()
    loop.submit(make("running"), inbox)
    loop.submit(make("waiting"), inbox)
    loop.start()
    wait_until(lambda: not loop.stats().is_alive)
    for name in ("running", "waiting"):
        assert isinstance(inbox.terminal(name).error, EngineDeadError)
    with pytest.raises(EngineDeadError, match="died at execute 1"):
        loop.submit(make("late"), inbox)
    loop.close()


def wait_until(condition: Any, timeout_s: float = 5.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "timed out"
        time.sleep(0.005)


def test_the_thread_blocks_while_nothing_is_live(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    loop.start()
    loop.submit(make("a"), inbox)
    wait_until(lambda: loop.stats().is_idle and inbox.events and isinstance(inbox.events[-1], Finished))
    ticks, spent = loop.stats().ticks, time.thread_time()
    time.sleep(0.05)
    assert loop.stats().ticks == ticks == 4
    assert time.thread_time() - spent < 0.04


def test_starting_twice_starts_one_thread(loops: Loops) -> None:
    loop = loops()
    loop.start()
    thread = loop.thread
    loop.start()
    assert loop.thread is thread


def test_an_id_in_use_is_refused(loops: Loops) -> None:
    loop = loops()
    loop.submit(make("a"), Inbox())
    with pytest.raises(RequestError, match="running already"):
        loop.submit(make("a"), Inbox())


def test_drain_lets_generations_finish_and_refuses_new_ones(loops: Loops) -> None:
    loop, inbox = loops(), Inbox()
    loop.start()
    loop.submit(make("a", steps=50), inbox)
    assert loop.drain(10.0)
    assert isinstance(inbox.terminal("a"), Finished)
    with pytest.raises(DrainingError):
        loop.submit(make("late"), inbox)


def test_close_ends_unfinished_generations_as_drained(loops: Loops) -> None:
    loop, inbox = faulty(loops(), Faults(delay_s=0.02)), Inbox()
    loop.start()
    loop.submit(make("a", steps=200), inbox)
    wait_until(lambda: bool(inbox.of("a", Started)))
    assert not loop.drain(0.05)
    loop.close()
    assert isinstance(inbox.terminal("a").error, DrainingError)
    assert loop.stats().outcomes["drained"] == 1


def test_a_snapshot_of_an_unknown_generation_is_an_error(loops: Loops) -> None:
    loop = loops()
    reply = loop.snapshot("unknown")
    loop.tick()
    with pytest.raises(RequestError, match="unknown"):
        reply.result(0)


@pytest.mark.parametrize(
    ("changes", "error"), [({"context": None}, RequestError), ({"conditions": (Condition(rand(40, D)),)}, ShapeError)]
)
def test_a_request_that_does_not_fit_takes_no_place(
    changes: dict[str, Any], error: type[Exception], loops: Loops
) -> None:
    loop = loops()
    with pytest.raises(error):
        loop.submit(make("a", **changes), Inbox())
    assert len(loop.registry) == 0
    assert loop.tick() is None


@pytest.mark.parametrize("name", ["plain", "guided_all", "dcw_double", "mask", "sde_curve", "ab2_guided"])
def test_a_tick_in_steady_state_allocates_nothing(name: str, loops: Loops) -> None:
    """Submits are made between ticks: drawing noise for them is the caller's work, not the tick's."""
    loop, inbox = loops(), Inbox()
    waiting = [make(f"{name}{index}", **{"steps": 8, **FEATURES[name]}) for index in range(12)]
    probe, records = AllocationProbe(trace=True), []
    for tick in range(34):
        free = 2 - loop.stats().slots_active if tick else 1
        for request in [waiting.pop() for _ in range(free)]:
            loop.submit(request, inbox)
        with probe if tick >= 18 else nullcontext():
            records.append(loop.tick())
    assert probe.sites() == []
    assert [record.allocations for record in records[18:] if record is not None] == [0] * 16
    assert sum(isinstance(event, Started) for event in inbox.events) > 6


def test_random_work_is_accounted_for_exactly(loops: Loops) -> None:
    """Submits, cancels, overrides and faults in random order: one terminal event each, and the counts agree."""
    random = np.random.default_rng(11)
    loop, inbox = faulty(loops(depth=3), Faults(nan_at={7: (0,), 19: (1,)}, fail_at=frozenset({12}))), Inbox()
    names: list[str] = []
    features = list(FEATURES.values())
    for index in range(60):
        if len(names) - sum(loop.stats().outcomes.values()) < 10:
            names.append(
                loop.submit(make(f"r{index}", session=str(index % 3), **features[index % len(features)]), inbox)
            )
        if random.random() < 0.2:
            loop.cancel(str(random.choice(names)))
        if random.random() < 0.2:
            loop.update(str(random.integers(3)), {"velocity_scale": float(random.random() + 0.5)})
        loop.tick()
    while loop.tick() is not None:
        pass
    kinds = [type(inbox.terminal(name)) for name in names]
    outcomes = loop.stats().outcomes
    assert sum(outcomes.values()) == len(names)
    assert outcomes["ok"] == kinds.count(Finished)
    assert outcomes["cancelled"] + outcomes["replaced"] == kinds.count(Cancelled)
    assert outcomes["nonfinite"] + outcomes["engine_error"] == kinds.count(Failed) > 0
    assert loop.stats().slots_active == loop.stats().queue_depth == 0
    loop.close()


def refuse_memory(shape: tuple[int, ...], dtype: Any) -> Any:
    raise OutOfMemoryError("no memory")


def test_a_generation_whose_buffers_find_no_memory_fails_alone(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, inbox = loops(), Inbox()
    loop.submit(make("a", 16), inbox)
    loop.tick()
    loop.submit(make("b", 64), inbox)
    with monkeypatch.context() as patched:
        patched.setattr(loop.device, "zeros", refuse_memory)
        loop.tick()
    assert isinstance(inbox.terminal("b").error, OutOfMemoryError)
    run_all(loop, make("c", 64)).latents("c")
    inbox.latents("a")


def test_an_update_that_finds_no_memory_ends_its_generation_alone(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, inbox = loops(), Inbox()
    for name in "ab":
        loop.submit(make(name, session=name), inbox)
    loop.tick()
    loop.update("a", {"ode_noise": 0.1})
    with monkeypatch.context() as patched:
        patched.setattr(loop.device, "zeros", refuse_memory)
        loop.tick()
    assert isinstance(inbox.terminal("a").error, OutOfMemoryError)
    while loop.tick() is not None:
        pass
    inbox.latents("b")


def same_engines(loop: TickLoop) -> EngineSet:
    """The loop's engines, opened a second time."""
    return open_engines(loop.deployment, loop.device)


def test_engines_swapped_between_two_ticks_leave_latents_as_they_are(loops: Loops) -> None:
    loop = loops()
    alone = run_all(loop, make("a", **GUIDED)).latents("a")
    inbox = Inbox()
    loop.submit(make("a", **GUIDED), inbox)
    loop.tick()
    new = same_engines(loop)
    reply = loop.swap(new)
    record = loop.tick()
    reply.result(0)
    assert record is not None
    assert (record.generation, record.bound) == (1, 1)
    assert loop.engines is new
    while loop.tick() is not None:
        pass
    np.testing.assert_array_equal(inbox.latents("a"), alone)


def test_a_swap_while_the_loop_idles_is_carried_out(loops: Loops) -> None:
    loop = loops()
    loop.start()
    loop.swap(same_engines(loop)).result(20)
    inbox = Inbox()
    loop.submit(make("a"), inbox)
    assert loop.drain(20)
    assert inbox.latents("a").shape == (32, C)


@pytest.mark.parametrize("backend", [CPU], indirect=True, ids=str)
def test_engines_of_the_same_graph_with_other_names_of_its_axes_are_taken(loops: Loops) -> None:
    loop = loops()
    expected = run_all(loop, make("a")).latents("a")
    reply = loop.swap(same_engines(loops(axes=("{}_n", "", "l"))))
    np.testing.assert_array_equal(run_all(loop, make("a")).latents("a"), expected)
    assert reply.result(0) is None


@pytest.mark.parametrize("backend", [CPU, *REAL], indirect=True, ids=str)
def test_engines_of_another_model_are_refused_and_the_old_ones_stay(loops: Loops) -> None:
    loop, other = loops(), loops(channels=4)
    before = loop.engines
    inbox = Inbox()
    loop.submit(make("a"), inbox)
    reply = loop.swap(other.engines)
    while loop.tick() is not None:
        pass
    with pytest.raises(EngineMismatchError, match="expected"):
        reply.result(0)
    assert loop.engines is before
    assert np.isfinite(inbox.latents("a")).all()


def test_engines_that_lack_a_variant_are_refused(loops: Loops) -> None:
    loop = loops()
    full = same_engines(loop)
    poor = EngineSet(full.decoder, full.rows, {f: e for f, e in full.steps.items() if "dcw" not in f})
    reply = loop.swap(poor)
    loop.tick()
    with pytest.raises(EngineMismatchError, match="dcw"):
        reply.result(0)
    full.close()


def test_a_loop_that_has_ended_takes_no_engines(loops: Loops) -> None:
    loop = loops()
    loop.start()
    loop.close()
    with pytest.raises(EngineError, match="ended"):
        loop.swap(loop.engines).result(0)
