"""The clients of one session: the order and the bounds of what they want, and who is told what."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from helpers.scripted_sessions import WAIT_S, Client, Opened, seqs

from runtime.base.errors import QueueFullError, RequestError
from runtime.live.hosting.clients import Controllers
from runtime.live.hosting.inbox import BURST_S, MAX_UNHANDLED, MAX_WAITING, SHARE
from runtime.live.protocol.messages import Ack, SetControls, SetSource, WriteAudio
from runtime.live.protocol.server_messages import Changed, Closed, Problem

LATENTS = np.zeros((4, 8), np.float32)


def controls(seq: int) -> SetControls:
    return SetControls(seq=seq, values={})


def test_messages_keep_their_order_while_a_source_is_loaded(opened: Opened) -> None:
    may_load = threading.Event()

    def load(source_id: str) -> Any:
        assert may_load.wait(WAIT_S)
        if source_id == "missing":
            raise RequestError("there is no such source", field="id")
        return LATENTS

    driven, session, client = opened(sources=load)
    loaded = SetSource(seq=1, id="a"), controls(2), SetSource(seq=3, id="missing"), SetSource(seq=4, id=None)
    driven.post(session, *loaded, Ack(playhead_sample=5), SetSource(seq=6, id="b"))
    assert seqs(session) == [None]
    may_load.set()
    driven.run(lambda: len(seqs(session)) == 5)
    assert seqs(session)[1:] == [1, 2, 4, 6]
    assert [latents is LATENTS for _, latents in session.of("handle")[1:]] == [True, False, False, True]
    assert [problem.seq for problem in client.of(Problem)] == [3]
    driven.post(session, controls(7))
    assert seqs(session)[-1] == 7


def test_audio_that_waits_is_bounded_and_a_write_without_audio_is_refused(opened: Opened) -> None:
    driven, session, client = opened()
    ten_s = 10 * session.model.sample_rate_hz
    for seq in range(1, 5):
        message = WriteAudio(seq=seq, at_s=0.0, samples=ten_s)
        driven.host.post(session.id, message, np.zeros((ten_s, 2), np.float32))
    assert driven.host.room(session.id) is not None
    driven.post(session, WriteAudio(seq=5, at_s=0.0, samples=5))
    driven.run(lambda: len(client.of(Problem)) == 2)
    assert seqs(session) == [1, 2, 3]
    assert [(problem.seq, problem.field) for problem in client.of(Problem)] == [(4, None), (5, "samples")]
    assert driven.host.room(session.id) is None


def test_further_clients_are_next_in_turn_and_none_takes_the_place_of_another(opened: Opened) -> None:
    driven, session, _ = opened()
    one, other = Client("one"), Client("other")
    for sender, number in ((one, 1.0), (other, 2.0)):
        change = SetControls(seq=1, values={"shift": number})
        with suppress(QueueFullError):
            for _ in range(MAX_WAITING + 1):
                driven.host.change(session.id, lambda values, change=change: change, sender)
    driven.run()
    found = [message.values["shift"] for message, _ in session.of("handle")]
    assert found[:6] == [1.0, 2.0] * 3
    assert (found.count(1.0), found.count(2.0)) == (MAX_WAITING, MAX_WAITING // 2)


def test_there_is_room_again_once_half_is_handled(opened: Opened) -> None:
    driven, session, _ = opened()
    for seq in range(1, MAX_UNHANDLED):
        driven.host.post(session.id, controls(seq))
    assert driven.host.room(session.id) is None
    driven.host.post(session.id, controls(MAX_UNHANDLED))
    waits, cancelled = driven.host.room(session.id), driven.host.room(session.id)
    cancelled.cancel()
    inbox = driven.hosted(session).inbox
    for _ in range(MAX_UNHANDLED // 2):
        assert not waits.done()
        inbox.handle_next()
    inbox.handle_next()
    assert waits.done()


@pytest.mark.parametrize(("given", "share"), [(0.0, SHARE), (0.5, 0.5), (float("inf"), float("inf"))])
def test_what_has_cost_more_than_a_burst_is_waited_for(given: float, share: float, opened: Opened) -> None:
    driven, session, _ = opened()
    driven.host.services.mailbox.share, inbox = given, driven.hosted(session).inbox
    driven.now_s = 200.0
    inbox.charge(BURST_S)
    assert inbox.free_s == pytest.approx(200.0)
    inbox.charge(0.01)
    assert inbox.free_s == pytest.approx(200.0 + 0.01 / share)
    driven.now_s = 300.0
    inbox.charge(0.0)
    assert inbox.free_s <= 300.0


def test_the_end_refuses_what_waits_and_what_comes(opened: Opened) -> None:
    ended = threading.Event()
    driven, session, client = opened(sources=lambda source_id: ended.wait(WAIT_S))
    driven.post(session, SetSource(seq=1, id="a"), controls(2))
    driven.host.end(session.id, "deleted")
    driven.post(session, controls(3), Ack(playhead_sample=0), controls(4))
    ended.set()
    assert [(problem.seq, problem.code) for problem in client.of(Problem)] == [
        (seq, "draining") for seq in (1, 2, 3, 4)
    ]


def told(client: Client) -> list[dict[str, Any]]:
    return [changed.values for changed in client.of(Changed)]


def test_each_is_told_once_what_others_have_changed() -> None:
    values = {"guidance": 3.0, "seed": 1}
    controllers = Controllers(lambda: dict(values))
    one, other, left, client = (Client() for _ in range(4))
    for listener in (one, other, left):
        controllers.join(listener)
    for _ in range(2):
        controllers.leave(left)
    values["guidance"] = 4.0
    controllers.note(one)
    values["guidance"] = 5.0
    controllers.note(one)
    values["seed"] = 2
    controllers.note(None)
    assert told(client) == []
    for _ in range(2):
        controllers.send(client)
    everything = {"guidance": 3.0, "seed": 1}
    assert told(one) == [everything, {"seed": 2}]
    assert told(other) == [everything, {"guidance": 5.0, "seed": 2}]
    assert told(left) == [everything]
    assert told(client) == [{"guidance": 5.0}]


def test_a_client_that_is_not_connected_is_told_nothing() -> None:
    values = {"guidance": 3.0}
    controllers, one, client = Controllers(lambda: dict(values)), Client(), Client()
    controllers.join(one)
    values["guidance"] = 4.0
    controllers.note(one)
    controllers.send(None)
    controllers.send(client)
    assert told(client) == []


def test_a_change_before_its_sender_joins_is_told_as_any_other() -> None:
    values = {"guidance": 3.0, "seed": 1}
    controllers, one, client = Controllers(lambda: dict(values)), Client(), Client()
    controllers.watch(dict(values))
    values["guidance"] = 4.0
    controllers.note(one)
    controllers.join(one)
    controllers.send(client)
    assert told(client) == [{"guidance": 4.0}]
    assert told(one) == [values]


def test_a_session_that_ends_says_so_once() -> None:
    controllers, one = Controllers(dict), Client()
    controllers.join(one)
    closed = Closed(reason="closed", resumable=False)
    controllers.close(closed)
    controllers.close(closed)
    assert one.messages[1:] == [closed]
