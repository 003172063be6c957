from __future__ import annotations

import asyncio

import pytest

from server.admission import Gate
from server.asgi.problems import ProblemError


def test_as_many_as_there_are_places_come_in() -> None:
    gate = Gate(2)
    first, _ = gate.enter("a"), gate.enter("a")
    with pytest.raises(ProblemError) as refusal:
        gate.enter("b")
    assert (refusal.value.status, refusal.value.code) == (503, "queue_full")
    first.leave()
    first.leave()
    assert gate.places_taken == 1
    gate.enter("b")


def test_a_place_is_held_until_the_loop_has_let_go() -> None:
    gate = Gate(1)
    ticket = gate.enter("a")
    ticket.entered_loop()
    ticket.leave()
    assert (gate.places_taken, gate.tickets) == (1, set())
    ticket.left_loop()
    assert gate.places_taken == 0


def test_a_place_is_held_between_stretches_and_free_after_the_last() -> None:
    gate = Gate(1)
    ticket = gate.enter("a")
    ticket.entered_loop()
    ticket.left_loop()
    assert gate.places_taken == 1
    ticket.entered_loop()
    ticket.needs_no_more_ticks()
    assert gate.places_taken == 1
    ticket.left_loop()
    assert (gate.places_taken, gate.tickets) == (0, {ticket})


def test_a_client_has_a_share() -> None:
    gate = Gate(10, client_limit=1)
    ticket = gate.enter("a")
    ticket.needs_no_more_ticks()
    with pytest.raises(ProblemError) as refusal:
        gate.enter("a")
    assert refusal.value.status == 429
    gate.enter("b")
    ticket.leave()
    gate.enter("a")


def test_nobody_comes_in_while_it_drains() -> None:
    gate = Gate(1)
    gate.drain()
    with pytest.raises(ProblemError) as refusal:
        gate.enter("a")
    assert refusal.value.code == "draining"
    assert int(refusal.value.headers["Retry-After"]) > 0


def test_waiting_for_the_last_to_leave() -> None:
    async def wait() -> tuple[bool, bool, bool]:
        gate = Gate(2)
        at_once = await gate.wait_empty(0.0)
        ticket = gate.enter("a")
        in_vain = await gate.wait_empty(0.01)
        asyncio.get_running_loop().call_later(0.01, ticket.leave)
        return at_once, in_vain, await gate.wait_empty(5.0)

    assert asyncio.run(wait()) == (True, False, True)


def test_come_back_later_follows_how_long_generations_take() -> None:
    gate = Gate(0)
    for _ in range(50):
        gate.note_duration(7.5)
    with pytest.raises(ProblemError) as refusal:
        gate.enter("a")
    assert refusal.value.headers["Retry-After"] == "8"
