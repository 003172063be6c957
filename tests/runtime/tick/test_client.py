"""Places and outcomes, also under many threads."""

from __future__ import annotations

import threading

import pytest

from runtime.errors import QueueFullError, RequestError
from runtime.tick.client import Registry
from runtime.tick.events import Cancelled, Event, Progress


def test_exactly_slots_plus_queue_are_let_in_whoever_asks_at_once() -> None:
    registry, refused = Registry(slots=3, queue=4), []

    def ask(index: int) -> None:
        try:
            registry.enter(str(index), lambda event: None)
        except QueueFullError:
            refused.append(index)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(registry), len(refused)) == (7, 43)


def test_leaving_is_told_once_and_frees_the_place() -> None:
    registry, heard = Registry(slots=1, queue=0), list[Event]()
    registry.enter("a", heard.append)
    registry.tell(Progress("a", 1, 4, 0, 1.0))
    for _ in range(3):
        registry.leave(Cancelled("a"), "cancelled")
    registry.tell(Progress("a", 2, 4, 1, 1.0))
    assert [type(event) for event in heard] == [Progress, Cancelled]
    assert registry.outcomes["cancelled"] == 1
    registry.enter("b", heard.append)
    assert registry.ids() == ["b"]


def test_an_id_is_inside_once() -> None:
    registry = Registry(slots=2, queue=0)
    registry.enter("a", lambda event: None)
    with pytest.raises(RequestError, match="inside already"):
        registry.enter("a", lambda event: None)


def test_a_caller_that_waits_takes_the_next_free_place() -> None:
    registry, is_inside = Registry(slots=1, queue=0), threading.Event()

    def enter() -> None:
        registry.enter("b", lambda event: None, wait=True)
        is_inside.set()

    registry.enter("a", lambda event: None)
    thread = threading.Thread(target=enter)
    thread.start()
    assert "b" not in registry
    registry.leave(Cancelled("a"), "cancelled")
    assert is_inside.wait(30)
    thread.join()
    assert registry.ids() == ["b"]
