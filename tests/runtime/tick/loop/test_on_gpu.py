"""What only a device that runs behind the host can get wrong: ticks in flight, captured graphs, copies, faults.

On the simulated GPU, whose work runs as late as the rules allow.
"""

from __future__ import annotations

import gc
import logging
import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from conftest import Built, Loops, captured, resized
from helpers.backends import SIMULATED, Backend
from helpers.generations import FEATURES, GUIDED, Inbox, make, run_all
from simulator.fixture import Machine

from runtime.base.errors import EngineDeadError, EngineError, OutOfMemoryError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.devices.machine import open_device
from runtime.engines.loading import open_engines
from runtime.tick.loop.events import Cancelled, Failed
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

LATE = SIMULATED[0]
WARM = 8


@pytest.fixture
def backend() -> Backend:
    return LATE


def with_runtime(deployment: Deployment, **changes: Any) -> Deployment:
    return deployment.model_copy(update={"runtime": deployment.runtime.model_copy(update=changes)})


def steady(loop: TickLoop, *, depth: int = 2, ticks: int = WARM, **changes: Any) -> Inbox:
    """Every slot in use, after `ticks` ticks."""
    inbox = Inbox()
    for index in range(depth):
        loop.submit(make(f"{index}", **{"steps": 60, **GUIDED, **changes}), inbox)
    for _ in range(ticks):
        assert loop.tick() is not None
    return inbox


def test_a_steady_tick_replays_one_captured_graph_and_allocates_nothing(loops: Loops, machine: Machine) -> None:
    loop = loops()
    steady(loop)
    before = machine.counters.copy()
    records = [loop.tick() for _ in range(10)]
    done = machine.counters - before
    assert all(isinstance(record, TickRecord) for record in records)
    assert {(r.replayed, r.bound, r.captured, r.evicted, r.allocations) for r in records if r} == {(1, 0, 0, 0, 0)}
    assert done["graph_launches"] == 10
    assert (done["allocations"], done["synchronizes"], done["pageable_copies"]) == (0, 0, 0)


def test_the_host_waits_only_for_a_tick_before_the_one_it_launched(loops: Loops, machine: Machine) -> None:
    loop = loops()
    steady(loop)
    before = machine.counters.copy()
    for _ in range(10):
        loop.tick()
    assert (machine.counters - before)["host_waits"] == 10


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_ticks_are_in_flight_as_may_be(most: int, loops: Loops, built: Built, backend: Backend) -> None:
    """What a tick measured is shown once the device has run it: where one may be in flight, by that tick itself."""
    deployment = resized(built(max_rows=16, backend=backend), 4, 8)
    loop, inbox, shown = loops(with_runtime(deployment, ticks_in_flight=most)), Inbox(), list[TickRecord]()
    loop.observers.append(shown.append)
    loop.submit(make("a", **GUIDED), inbox)
    behind = [number - len(shown) for number, _ in enumerate(iter(loop.tick, None), 1)]
    assert behind == [most - 1] * 4
    np.testing.assert_array_equal(inbox.latents("a"), run_all(loops(), make("a", **GUIDED)).latents("a"))


def test_a_graph_is_captured_at_the_third_tick_of_its_kind(loops: Loops) -> None:
    loop = loops()
    loop.submit(make("a", steps=12), Inbox())
    kinds = [(r.bound, r.captured, r.replayed) for r in (loop.tick() for _ in range(10)) if r is not None]
    bound, held, captured, replayed = (1, 0, 0), (0, 0, 0), (0, 1, 1), (0, 0, 1)
    assert kinds == [bound, bound, held, held, captured, captured, *[replayed] * 4]


def test_no_graph_where_capture_is_off(loops: Loops, machine: Machine) -> None:
    base = loops()
    loop = TickLoop(base.engines, base.bundle, captured(base.deployment, False), base.device)
    steady(loop)
    record = loop.tick()
    assert record is not None
    assert (record.replayed, machine.counters["graph_launches"]) == (0, 0)


def test_few_graphs_are_kept_and_results_stay_the_same(loops: Loops, built: Built, backend: Backend) -> None:
    deployment = resized(built(max_rows=16, backend=backend), 4, 8)
    few = loops(with_runtime(deployment, captured_graphs=2))
    requests = [make(f"{index}", steps=3 + 2 * index, **GUIDED) for index in range(4)]
    expected = run_all(loops(), *requests)
    inbox, evicted = Inbox(), 0
    for request in requests:
        few.submit(request, inbox)
    while (record := few.tick()) is not None:
        evicted += record.evicted
    assert evicted > 2
    for request in requests:
        np.testing.assert_allclose(inbox.latents(request.id), expected.latents(request.id), atol=1e-5)


def test_a_tick_that_cannot_be_captured_runs_plainly(
    loops: Loops, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.faults = {"uncapturable": True}
    loop = loops()
    with caplog.at_level(logging.WARNING, "runtime.engines.launch_cache"):
        steady(loop, ticks=14)
    record = loop.tick()
    assert record is not None
    assert (record.replayed, record.captured, record.bound) == (0, 0, 0)
    assert sum("launched plainly" in message for message in caplog.messages) == 1


def test_without_memory_for_a_graphs_own_context_ticks_run_plainly(
    loops: Loops, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The next kind of tick has memory again and is captured."""
    expected = run_all(loops(), make("0", steps=8)).latents("0")
    loop, inbox = loops(), Inbox()
    machine.faults = {"context_none_at": [machine.struck["context_none_at"] + 2]}
    loop.submit(make("0", steps=8), inbox)
    with caplog.at_level(logging.WARNING, "runtime.engines.launch_cache"):
        records = [loop.tick() for _ in range(8)]
    assert "cannot be captured as a graph and is launched plainly" in caplog.text
    assert "out of memory" in caplog.text
    replayed = [record.replayed for record in records if record is not None]
    assert 0 < sum(replayed) < 4
    while loop.tick() is not None:
        pass
    np.testing.assert_array_equal(inbox.latents("0"), expected)


def play(loop: TickLoop) -> Inbox:
    """Starts, ends, cancels and updates at fixed ticks, with features of every kind."""
    inbox = Inbox()
    kinds = sorted(FEATURES)
    for tick in range(40):
        if tick < 27:
            name = kinds[tick % len(kinds)]
            loop.submit(make(f"{name}-{tick}", session=f"s{tick}", **{"steps": 3 + tick % 4, **FEATURES[name]}), inbox)
        if tick % 5 == 2:
            loop.cancel(f"{kinds[tick % len(kinds)]}-{tick}")
        if tick % 7 == 3:
            loop.update(f"s{tick}", {"velocity_scale": 0.8 + tick / 100, "ode_noise": 0.05})
        if tick % 7 == 5:
            loop.update(f"s{tick - 2}", {"velocity_scale": None, "ode_noise": None})
        loop.tick()
    while loop.tick() is not None:
        pass
    return inbox


@pytest.mark.parametrize("in_flight", [1, 2])
def test_mixed_work_has_the_events_and_latents_of_the_cpu(
    in_flight: int, loops: Loops, built: Built, backend: Backend
) -> None:
    gpu = resized(built(max_rows=16, backend=backend), 4, 8)
    cpu = resized(built(max_rows=16, depth=8, codec=False, text_encoder=False), 4, 8)
    device = open_device("cpu")
    reference = TickLoop(open_engines(cpu, device), load_bundle(cpu.bundle), cpu, device)
    expected, found = play(reference), play(loops(with_runtime(gpu, ticks_in_flight=in_flight)))
    reference.close()
    ended = {event.request_id: type(event) for event in expected.events if not hasattr(event, "step")}
    assert {event.request_id: type(event) for event in found.events if not hasattr(event, "step")} == ended
    finished = [name for name, kind in ended.items() if kind.__name__ == "Finished"]
    assert len(finished) > 15
    assert Cancelled in ended.values()
    for name in finished:
        np.testing.assert_allclose(found.latents(name), expected.latents(name), atol=2e-4, err_msg=name)


def test_an_execute_that_is_refused_ends_its_batch_and_not_the_loop(loops: Loops, machine: Machine) -> None:
    loop, inbox = loops(), Inbox()
    loop.submit(make("a"), inbox)
    machine.faults = {"enqueue_false_at": [1]}
    assert loop.tick() is not None
    assert isinstance(inbox.terminal("a"), Failed)
    assert isinstance(inbox.terminal("a").error, EngineError)
    machine.faults = {}
    assert np.isfinite(run_all(loop, make("b")).latents("b")).all()


def test_no_memory_at_the_first_execute_fails_its_generation_alone(loops: Loops, machine: Machine) -> None:
    loop, inbox = loops(), Inbox()
    loop.submit(make("a"), inbox)
    machine.faults = {"enqueue_oom_at": [1]}
    loop.tick()
    assert isinstance(inbox.terminal("a").error, OutOfMemoryError)
    machine.faults = {}
    assert np.isfinite(run_all(loop, make("b")).latents("b")).all()


def test_an_id_that_is_used_again_while_its_last_tick_is_in_flight_gets_its_own_result(loops: Loops) -> None:
    loop, first, second = loops(), Inbox(), Inbox()
    newer = make("a", steps=6, seed=5)
    alone = run_all(loop, newer).latents("a")
    loop.submit(make("a", steps=1), first)
    loop.tick()
    loop.cancel("a")
    loop._ticks._drain_inbox()
    assert isinstance(first.terminal("a"), Cancelled)
    loop.submit(newer, second)
    while loop.tick() is not None:
        pass
    np.testing.assert_array_equal(second.latents("a"), alone)


def test_an_asynchronous_error_ends_the_loop_and_every_generation(loops: Loops, machine: Machine) -> None:
    loop = loops()
    inbox = steady(loop, depth=3)
    machine.faults = {"async_error_at": [machine.struck["async_error_at"] + 4]}
    with pytest.raises(EngineDeadError, match="cudaErrorIllegalAddress"):
        run_all(loop)
    loop.close()
    assert all(isinstance(inbox.terminal(str(index)), Failed) for index in range(3))


def test_a_dead_device_ends_the_thread_with_a_message(loops: Loops, machine: Machine) -> None:
    loop, inbox = loops(), Inbox()
    machine.faults = {"async_error_at": [machine.struck["async_error_at"] + 30]}
    loop.submit(make("a", steps=200), inbox)

    def run() -> None:
        with suppress(EngineDeadError):
            loop._ticks.run()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(20)
    assert not loop.stats().is_alive
    assert isinstance(inbox.terminal("a").error, EngineDeadError)
    with pytest.raises(EngineDeadError):
        loop.submit(make("b"), inbox)


def test_no_tick_waits_for_the_end_of_engines_that_were_replaced(loops: Loops, machine: Machine) -> None:
    loop, inbox = loops(), Inbox()
    loop.start()
    loop.submit(make("a", steps=12), inbox)
    loop.swap(open_engines(loop.deployment, loop.device)).result(60)
    assert loop.drain(60)
    loop.close()
    gc.collect()
    ended = {thread for (what, thread), _ in machine.spent_ms.items() if what == "end of an engine"}
    assert "tick" not in ended
    assert any(thread.startswith("graphs") for thread in ended)


MAKING = ("context", "capture", "graph")


def served(loop: TickLoop, runs_before_capture: float = 1) -> TickLoop:
    """A loop as a server has it once it is ready: with what graphs cost, and captures bounded by that."""
    run_all(loop, make("a", steps=12))
    reply = loop.bound_captures()
    loop.tick()
    reply.result(0)
    loop._ticks._denoise._launches.runs_before_capture = runs_before_capture
    return loop


def settle(loop: TickLoop) -> None:
    """Wait until what was begun beside the ticks is done."""
    loop._ticks._beside.submit(int).result(60)


def settled(loop: TickLoop, *requests: Any) -> Inbox:
    """All events of generations in whose ticks everything that was begun before is done."""
    inbox = Inbox()
    for request in requests:
        loop.submit(request, inbox)
    while loop.tick() is not None:
        settle(loop)
    return inbox


def makers(machine: Machine, since: Any) -> set[str]:
    """The threads that have made contexts or graphs since then."""
    spent = machine.spent_ms - since
    return {thread.partition("_")[0] for (what, thread), _ in spent.items() if what in MAKING}


def test_once_clients_are_served_only_keys_that_come_back_get_graphs_and_no_tick_makes_them(
    loops: Loops, machine: Machine
) -> None:
    alone = run_all(loops(), make("b", steps=20, **GUIDED)).latents("b")
    loop = served(loops(), runs_before_capture=4)
    before, captured = machine.spent_ms.copy(), loop.launch_counts.captured
    settled(loop, make("short", steps=6, **GUIDED))
    assert (makers(machine, before), loop.launch_counts.captured) == (set(), captured), "three runs do not pay"
    inbox = settled(loop, make("b", steps=20, **GUIDED))
    assert makers(machine, before) == {"graphs"}
    assert loop.launch_counts.captured == captured + 2, "both sides of its states"
    np.testing.assert_array_equal(inbox.latents("b"), alone)


def in_captures(loop: TickLoop, meanwhile: Any) -> list[str]:
    """Run `meanwhile` in the midst of every capture; returns the threads that have captured."""
    capture, threads = loop.device.capture, list[str]()

    def slow(stream: Any, work: Any) -> Any:
        def captured() -> None:
            threads.append(threading.current_thread().name.partition("_")[0])
            work()
            meanwhile()

        return capture(stream, captured)

    loop.device.capture = slow  # type: ignore[method-assign]
    return threads


def test_ticks_go_on_while_a_graph_is_captured(loops: Loops, machine: Machine) -> None:
    """Also those that take memory, for generations that join, of new lengths."""
    requests = [make(f"{index}", (16, 32, 64)[index % 3], steps=80, **GUIDED) for index in range(6)]
    alone = run_all(loops(depth=6), *requests)
    loop, inbox = served(loops(depth=6)), Inbox()
    before, goes_on = machine.spent_ms.copy(), threading.Event()

    def until_three_ticks_later() -> None:
        end = min(loop.stats().ticks + 3, 80)
        while loop.stats().ticks < end and not loop.stats().is_idle:
            assert not goes_on.wait(0.001)

    threads = in_captures(loop, until_three_ticks_later)
    for request in requests:
        loop.submit(request, inbox)
    loop.start()
    assert loop.drain(120)
    loop.close()
    assert set(threads) == {"graphs"} == makers(machine, before)
    assert loop.launch_counts.failed == 0
    for request in requests:
        np.testing.assert_allclose(inbox.latents(request.id), alone.latents(request.id), atol=1e-5)


@pytest.mark.parametrize("fault", ["uncapturable", "oom_at_instantiation", "oom_at_graph_upload"])
def test_a_graph_that_cannot_be_made_leaves_plain_ticks_and_one_warning(
    fault: str, loops: Loops, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    alone = run_all(loops(), make("b", steps=20, **GUIDED)).latents("b")
    loop = served(loops())
    machine.faults = {fault: True if fault == "uncapturable" else range(100)}
    captured = loop.launch_counts.captured
    with caplog.at_level(logging.WARNING, "runtime.engines.launch_cache"):
        inbox = settled(loop, make("b", steps=20, **GUIDED))
    assert (loop.launch_counts.captured, loop.launch_counts.failed) == (captured, 2)
    assert sum("launched plainly" in message for message in caplog.messages) == 1
    np.testing.assert_array_equal(inbox.latents("b"), alone)
    machine.faults = {}
    settled(loop, make("c", 64, steps=20, **GUIDED))
    assert loop.launch_counts.captured > captured, "the next kind of tick has its graph"


def test_a_device_that_dies_while_a_graph_is_made_ends_the_loop(loops: Loops, machine: Machine) -> None:
    loop, inbox = served(loops()), Inbox()

    def die() -> None:
        raise EngineDeadError("illegal address")

    in_captures(loop, die)
    loop.submit(make("b", steps=20, **GUIDED), inbox)
    with suppress(EngineDeadError):
        while loop.tick() is not None:
            settle(loop)
    loop.close()
    assert isinstance(inbox.terminal("b"), Failed)


@pytest.mark.parametrize("way", ["close", "swap", "evict"])
def test_what_a_graph_needs_is_kept_until_it_is_made(way: str, loops: Loops, machine: Machine) -> None:
    """The engines are closed, replaced, or the launch is evicted, in the midst of its capture."""
    alone = run_all(loops(), make("b", steps=20, **GUIDED)).latents("b")
    before = machine.alive()
    loop, inbox = served(loops()), Inbox()
    begun, go_on = threading.Event(), threading.Event()

    def meanwhile() -> None:
        begun.set()
        assert go_on.wait(60)

    in_captures(loop, meanwhile)
    loop.submit(make("b", steps=20, **GUIDED), inbox)
    while not begun.is_set():
        assert loop.tick() is not None
        begun.wait(0.01)
    if way == "close":
        closing = threading.Thread(target=loop.close)
        closing.start()
        closing.join(0.05)
        assert closing.is_alive(), "it waits for the graph"
        go_on.set()
        closing.join(60)
        assert isinstance(inbox.terminal("b"), Failed)
        loop.device.close()
        assert machine.alive() | {"pinned": 0} == before | {"pinned": 0}, "but for arrays that somebody still has"
        return
    if way == "swap":
        swapped = loop.swap(open_engines(loop.deployment, loop.device))
    else:
        loop._ticks._denoise._launches.limit = 1
    for _ in range(4):
        loop.tick()
    go_on.set()
    while loop.tick() is not None:
        settle(loop)
    if way == "swap":
        assert swapped.done()
    np.testing.assert_array_equal(inbox.latents("b"), alone)


def test_engines_that_arrive_while_a_tick_runs_are_taken_after_it(loops: Loops, machine: Machine) -> None:
    loop, inbox = loops(), Inbox()
    alone = run_all(loops(), make("a", steps=12, **GUIDED)).latents("a")
    loop.submit(make("a", steps=12, **GUIDED), inbox)
    for _ in range(4):
        loop.tick()
    launch, new = loop._ticks._denoise.launch, open_engines(loop.deployment, loop.device)

    def launch_and_swap(part: Any) -> Any:
        launched = launch(part)
        loop._ticks._denoise.launch = launch  # type: ignore[method-assign]
        loop.swap(new)
        return launched

    loop._ticks._denoise.launch = launch_and_swap  # type: ignore[method-assign]
    loop.tick()
    assert loop.engines is not new, "the tick that was just launched still runs on the old engines"
    while loop.tick() is not None:
        pass
    assert loop.engines is new
    np.testing.assert_array_equal(inbox.latents("a"), alone)
