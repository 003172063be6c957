"""The client side of the loop under many threads, and its calls down to the device."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Loops
from helpers.generations import Inbox, make

from runtime.base.errors import DrainingError, RequestError
from runtime.devices.device import Stream, Tensor
from runtime.engines.adapters import Adapter, AdapterCatalog
from runtime.tick.loop.events import Cancelled, Failed, Finished
from runtime.tick.loop.tick_loop import TickLoop


def test_a_submit_that_waits_for_a_place_is_refused_when_the_loop_ends(loops: Loops) -> None:
    loop, refused = loops(depth=1), list[Exception]()
    for index in range(1 + loop.deployment.runtime.queue):
        loop.submit(make(str(index)), Inbox())

    def submit() -> None:
        try:
            loop.submit(make("late"), Inbox(), wait=True)
        except DrainingError as error:
            refused.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    loop.close()
    thread.join(10)
    assert len(refused) == 1


def test_an_update_is_a_merge_patch(loops: Loops) -> None:
    loop = loops()
    loop.submit(make("a", session="s"), Inbox())
    assert loop.update("s", {"guidance": 4.0, "velocity_scale": 0.5}) == 1
    loop.update("s", {"velocity_scale": 2.0})
    assert loop.registry.overrides("s") == {"guidance": 4.0, "velocity_scale": 2.0}
    loop.update("s", {"guidance": None})
    assert loop.registry.overrides("s") == {"velocity_scale": 2.0}


@pytest.mark.parametrize(
    ("patch", "says"), [({"loudness": 1.0}, "loudness: expected one of"), ({"guidance": float("nan")}, "not finite")]
)
def test_a_wrong_update_is_refused_and_changes_nothing(patch: dict[str, Any], says: str, loops: Loops) -> None:
    loop = loops()
    loop.submit(make("a", session="s"), Inbox())
    loop.update("s", {"guidance": 4.0})
    with pytest.raises(RequestError, match=says):
        loop.update("s", {"velocity_scale": 0.5, **patch})
    assert loop.registry.overrides("s") == {"guidance": 4.0}


def test_an_update_reaches_nothing_where_the_session_has_no_generation(loops: Loops) -> None:
    assert loops().update("unknown", {"guidance": 4.0}) == 0


def test_curves_of_an_update_are_resampled_in_the_callers_thread(loops: Loops) -> None:
    loop = loops()
    for name, frames in (("a", 16), ("b", 32)):
        loop.submit(make(name, frames, session=f"s{frames}"), Inbox())
    for frames in (16, 32):
        loop.update(f"s{frames}", {"ode_noise": np.linspace(0, 1, 8)})
    works = [entry.work for frames in (16, 32) for entry in loop.registry.members(f"s{frames}")]
    assert [np.shape(work.values.parameters.ode_noise) for work in works if work] == [(16,), (32,)]


def test_an_update_holds_for_generations_that_its_session_begins_later(loops: Loops) -> None:
    own, loop, inbox = loops(), loops(), Inbox()
    own.submit(make("b", parameters=replace(make("b").parameters, velocity_scale=0.5)), inbox)
    while own.tick() is not None:
        pass
    expected, inbox = inbox.latents("b"), Inbox()
    loop.submit(make("a", session="s"), inbox)
    loop.update("s", {"velocity_scale": 0.5})
    loop.submit(make("b", session="s"), inbox)
    while loop.tick() is not None:
        pass
    np.testing.assert_array_equal(inbox.latents("b"), expected)


def test_an_update_reaches_waiting_generations(loops: Loops) -> None:
    alone, loop, inbox = loops(depth=1), loops(depth=1), Inbox()
    alone.submit(make("b", parameters=replace(make("b").parameters, velocity_scale=0.5)), inbox)
    while alone.tick() is not None:
        pass
    expected, inbox = inbox.latents("b"), Inbox()
    loop.submit(make("a"), inbox)
    loop.submit(make("b", session="s"), inbox)
    loop.tick()
    assert loop.update("s", {"velocity_scale": 0.5}) == 1
    while loop.tick() is not None:
        pass
    np.testing.assert_array_equal(inbox.latents("b"), expected)


def test_the_newest_submission_of_a_session_replaces_the_one_that_waits(loops: Loops) -> None:
    loop, inbox = loops(depth=1), Inbox()
    loop.submit(make("first", session="s"), inbox)
    loop.tick()
    for name in ("second", "third"):
        loop.submit(make(name, session="s"), inbox)
    while loop.tick() is not None:
        pass
    assert isinstance(inbox.terminal("first"), Finished)
    assert inbox.terminal("second") == Cancelled("second", replaced_by="third")
    assert isinstance(inbox.terminal("third"), Finished)
    assert {name: count for name, count in loop.stats().outcomes.items() if count} == {"ok": 2, "replaced": 1}


def test_every_generation_of_many_threads_ends_exactly_once(loops: Loops) -> None:
    """Submits, updates and cancels against a loop whose thread runs; nothing is left of them at the end."""
    loop, inboxes = loops(depth=3), dict[str, Inbox]()
    start = threading.Barrier(6)

    def use(client: int) -> None:
        random = np.random.default_rng(client)
        start.wait()
        for number in range(12):
            name, session = f"{client}-{number}", f"s{random.integers(4)}"
            inboxes[name] = Inbox()
            loop.submit(make(name, 16, steps=3, session=session, client=str(client)), inboxes[name], wait=True)
            loop.update(session, {"velocity_scale": float(random.random() + 0.5), "ode_noise": 0.1})
            if number % 3 == 0:
                loop.cancel(name)
            if number % 4 == 0:
                loop.cancel(f"{(client + 1) % 6}-{number}")

    threads = [threading.Thread(target=use, args=(client,)) for client in range(6)]
    for thread in threads:
        thread.start()
    loop.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert loop.drain(60)
    assert len(inboxes) == 6 * 12
    kinds = [type(inbox.terminal(name)) for name, inbox in inboxes.items()]
    outcomes = loop.stats().outcomes
    assert sum(outcomes.values()) == len(inboxes)
    assert outcomes["ok"] == kinds.count(Finished) > 0
    assert outcomes["cancelled"] + outcomes["replaced"] == kinds.count(Cancelled) > 0
    assert loop.is_empty
    assert (loop.stats().slots_active, loop.stats().queue_depth) == (0, 0)


def test_a_generation_that_is_submitted_while_the_loop_ends_ends_with_it(
    loops: Loops, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, inbox = loops(), Inbox()
    shared = loop._shared
    put = shared.inbox.put

    def ending(message: Any) -> None:
        put(message)
        shared.ended.set()

    monkeypatch.setattr(shared.inbox, "put", ending)
    loop.submit(make("a"), inbox)
    assert isinstance(inbox.terminal("a"), Failed)


def test_an_update_is_refused_and_changes_nothing_once_an_adapter_in_use_is_gone(loops: Loops) -> None:
    loop, factors = loops(), np.zeros((4, 8), np.float32)
    loop.registry._adapter_rank = 8
    catalogs = [AdapterCatalog({name: Adapter(name, factors, factors)}, 8) for name in ("soft", "hard")]
    loop._shared.engines = replace(loop.engines, adapters=catalogs[0])
    loop.submit(make("a", session="s"), Inbox())
    loop.update("s", {"adapters": {"soft": 0.5}})
    loop._shared.engines = replace(loop.engines, adapters=catalogs[1])
    for patch in ({"guidance": 4.0}, {"adapters": {"soft": 1.0}}):
        with pytest.raises(RequestError, match="there is no adapter 'soft'"):
            loop.update("s", patch)
        assert loop.registry.overrides("s") == {"adapters": {"soft": 0.5}}
    assert loop.update("s", {"guidance": 4.0, "adapters": {"hard": 1.0}}) == 1
    assert loop.registry.overrides("s") == {"guidance": 4.0, "adapters": {"hard": 1.0}}


TICK, LAUNCH = ("runtime/tick/loop/tick_thread.py", "tick"), ("runtime/tick/denoise/runner.py", "launch")
Call = tuple[str, str]


class TracedExecution:
    """Notes the calls that lead to each launch: (file, function), the outermost first."""

    def __init__(self, execution: Any, traces: list[list[Call]]) -> None:
        self._execution, self._traces = execution, traces

    def launch(self, stream: Stream) -> None:
        frames = [frame for frame in traceback.extract_stack() if frame.name != "<listcomp>"]
        self._traces.append([("/".join(Path(frame.filename).parts[-4:]), frame.name) for frame in frames])
        self._execution.launch(stream)


@pytest.fixture
def traces() -> list[list[Call]]:
    return []


@pytest.fixture
def traced(loops: Loops, traces: list[list[Call]], monkeypatch: pytest.MonkeyPatch) -> TickLoop:
    """A loop whose decoder notes the calls that lead to its launches."""
    loop = loops()
    bind = loop.engines.decoder.bind

    def bind_traced(tensors: Mapping[str, Tensor]) -> Any:
        return TracedExecution(bind(tensors), traces)

    monkeypatch.setattr(loop.engines.decoder, "bind", bind_traced)
    return loop


def test_run_reaches_the_device_in_three_calls(traced: TickLoop, traces: list[list[Call]]) -> None:
    done = threading.Event()
    traced.submit(make("a", steps=1), lambda event: done.set() if hasattr(event, "latents") else None)
    traced.start()
    assert done.wait(30)
    (trace,) = traces
    start = trace.index(("runtime/tick/loop/tick_thread.py", "run"))
    assert trace[start + 1 :] == [TICK, LAUNCH, trace[-1]]
