"""Places of generations, and what is left when the loop has ended."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
from helpers.generations import CONDITIONS, Inbox, make
from helpers.lock_check import lock_checked

from runtime.base.errors import (
    DrainingError,
    EngineDeadError,
    EngineError,
    GenerationCancelledError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    TickError,
)
from runtime.requests.request import GenerationRequest
from runtime.tick.language.sequence import SequenceRequest
from runtime.tick.loop.events import Cancelled, Event, Progress
from runtime.tick.loop.registry import Registry
from runtime.tick.loop.shared import Answers, Cancel, LoopState, Rehearse, Snapshot, Stop, Submit, Swap

CheckedRegistry = lock_checked(Registry, "_sessions")


def request(name: str, session: str = "") -> GenerationRequest:
    return GenerationRequest(frames=16, conditions=(CONDITIONS[0],), session=session, id=name)


def enter_at_once(registry: Registry, names: list[str]) -> list[Exception]:
    """Enter all from threads that start together; returns the refusals."""
    start, refused = threading.Barrier(len(names)), list[Exception]()

    def enter(name: str) -> None:
        start.wait()
        try:
            registry.enter(request(name), lambda event: None)
        except (QueueFullError, RequestError) as error:
            refused.append(error)

    threads = [threading.Thread(target=enter, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


def test_exactly_slots_plus_queue_enter_when_many_ask_at_once() -> None:
    registry = CheckedRegistry(slots=3, queue=4)
    refused = enter_at_once(registry, [str(index) for index in range(50)])
    assert (len(registry), len(refused)) == (7, 43)


def test_one_id_that_is_entered_by_many_at_once_takes_one_place() -> None:
    registry = CheckedRegistry(slots=1, queue=1)
    refused = enter_at_once(registry, ["a"] * 20)
    assert [type(error) for error in refused] == [RequestError] * 19
    registry.leave(Cancelled("a"), "cancelled")
    for name in "bc":
        registry.enter(request(name), lambda event: None)
    assert registry.ids() == ["b", "c"]


def test_a_generation_leaves_once_and_frees_its_place() -> None:
    registry, events = CheckedRegistry(slots=1, queue=0), list[Event]()
    registry.enter(request("a"), events.append)
    registry.publish(Progress("a", 1, 4, 0, 1.0))
    for _ in range(3):
        registry.leave(Cancelled("a"), "cancelled")
    registry.publish(Progress("a", 2, 4, 1, 1.0))
    assert [type(event) for event in events] == [Progress, Cancelled]
    assert registry.outcomes["cancelled"] == 1
    registry.enter(request("b"), events.append)


def test_a_generation_is_not_another_one_of_the_same_id() -> None:
    registry, first, second = CheckedRegistry(slots=1, queue=0), request("a"), request("a")
    registry.enter(first, lambda event: None)
    assert registry.holds(first)
    assert not registry.holds(second)
    registry.leave(Cancelled("a"), "cancelled")
    assert not registry.holds(first)


def test_entering_waits_for_a_place_where_asked_to() -> None:
    registry, entered = CheckedRegistry(slots=1, queue=0), threading.Event()
    registry.enter(request("a"), lambda event: None)

    def enter() -> None:
        registry.enter(request("b"), lambda event: None, wait=True)
        entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.05)
    registry.leave(Cancelled("a"), "cancelled")
    assert entered.wait(10)
    thread.join()


def test_a_sessions_parameters_are_removed_with_its_last_generation() -> None:
    registry = CheckedRegistry(slots=4, queue=0)
    for name in "ab":
        registry.enter(request(name, "s"), lambda event: None)
    registry.override("s", {"guidance": 3.0})
    assert [entry.request.id for entry in registry.members("s")] == ["a", "b"]
    registry.leave(Cancelled("a"), "cancelled")
    assert registry.overrides("s") == {"guidance": 3.0}
    registry.leave(Cancelled("b"), "cancelled")
    assert registry.overrides("s") == {}
    assert registry.members("s") == []


def test_sequences_have_places_of_their_own() -> None:
    registry = CheckedRegistry(slots=1, queue=0, sequences=1)
    registry.enter(SequenceRequest("plan", (1,)), lambda event: None)
    registry.enter(request("a"), lambda event: None)
    for other in (SequenceRequest("more", (1,)), request("b")):
        with pytest.raises(QueueFullError, match="all 1 slots"):
            registry.enter(other, lambda event: None)
    registry.leave(Cancelled("plan"), "cancelled")
    registry.enter(SequenceRequest("more", (1,)), lambda event: None)


def test_who_waits_for_a_place_waits_no_longer_than_it_wants() -> None:
    registry, has_left, ended = CheckedRegistry(slots=1, queue=0), threading.Event(), list[str]()
    registry.enter(request("a"), lambda event: None)
    with pytest.raises(QueueTimeoutError, match=r"none of 1 slots became free within 0.01 s"):
        registry.enter(request("b"), lambda event: None, wait=True, timeout_s=0.01)

    def wait() -> None:
        with pytest.raises(GenerationCancelledError):
            registry.enter(request("c"), lambda event: None, wait=True, has_left=has_left.is_set)
        ended.append("c")

    thread = threading.Thread(target=wait)
    thread.start()
    registry.wake()
    assert not ended
    has_left.set()
    registry.wake()
    thread.join(60)
    assert ended == ["c"]
    assert registry.ids() == ["a"]


def test_who_waits_for_a_place_is_told_that_the_loop_has_ended_also_before_the_others_leave() -> None:
    registry, told = CheckedRegistry(slots=1, queue=0), list[DrainingError]()
    registry.enter(request("a"), lambda event: None)
    ended = DrainingError("the loop has ended")

    def wait() -> None:
        with pytest.raises(DrainingError) as caught:
            registry.enter(request("b"), lambda event: None, wait=True)
        told.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    registry.close(ended)
    thread.join(60)
    assert told == [ended]
    with pytest.raises(DrainingError):
        registry.enter(request("c"), lambda event: None)
    assert registry.ids() == ["a"]


@pytest.mark.parametrize(
    ("fatal", "outcome"), [(None, "drained"), (EngineDeadError("the GPU has failed"), "engine_error")]
)
def test_generations_and_messages_that_are_left_end_with_an_error(fatal: TickError | None, outcome: str) -> None:
    engines: Any = None
    state, inbox, request = LoopState(engines, Registry(slots=1, queue=0), fatal=fatal), Inbox(), make("a")
    replies: list[Future[Any]] = [Future() for _ in range(4)]
    state.registry.enter(request, inbox)
    for message in (Submit(request, engines), Swap(engines, replies[1]), Rehearse(replies[2]), Cancel("b"), Stop()):
        state.inbox.put(message)
    state.inbox.put(Snapshot("a", replies[3]))
    state.end_leftovers([Snapshot("a", replies[0])])
    kinds = [type(reply.exception(0)) for reply in replies]
    assert kinds == [DrainingError, EngineError, EngineError, DrainingError]
    expected = DrainingError if fatal is None else EngineDeadError
    assert isinstance(inbox.terminal("a").error, expected)
    assert (state.registry.outcomes[outcome], len(state.registry), state.inbox.drain()) == (1, 0, [])
    with pytest.raises(expected):
        state.registry.enter(make("late"), inbox)


@pytest.mark.parametrize("error", [EngineError("refused"), EngineDeadError("the GPU has failed")])
def test_an_error_is_that_of_its_answer_alone_unless_no_tick_can_run_any_more(error: TickError) -> None:
    def answer(message: Snapshot) -> str:
        if message.request_id == "bad":
            raise error
        return message.request_id

    answers, replies = Answers[Snapshot](answer), [Future[Any]() for _ in range(2)]
    for name, reply in zip(("bad", "good"), replies, strict=True):
        answers.add(Snapshot(name, reply))
    is_fatal = isinstance(error, EngineDeadError)
    with pytest.raises(EngineDeadError) if is_fatal else nullcontext():
        answers.give()
    assert replies[0].exception(0) is error
    assert (replies[1].done(), len(answers.waiting)) == (not is_fatal, int(is_fatal))
