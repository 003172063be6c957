"""The clients of one session: the order and the bounds of what they want, and who is told what."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from helpers.lock_check import lock_checked
from helpers.panics import panic
from helpers.scripted_sessions import Client

from runtime.base.errors import DrainingError, RequestError, TickError
from runtime.base.threads import Heartbeat
from runtime.live.hosting.clients import Controllers, Received
from runtime.live.hosting.inbox import BURST_S, MAX_UNHANDLED, MAX_WAITING, SHARE, Inbox
from runtime.live.hosting.mailbox import Mailbox, SessionWork
from runtime.live.protocol.messages import Ack, ClientMessage, SetControls, SetSource, SetStructure, WriteAudio
from runtime.live.protocol.server_messages import Changed, Closed

RATE_HZ = 1000
LATENTS = np.zeros((4, 8), np.float32)


class Scripted:
    """An inbox, a session that notes what it gets, and work in other threads that waits until `work()`."""

    def __init__(self) -> None:
        self.handled: list[tuple[Any, ...]] = []
        self.refused: list[tuple[Any, TickError]] = []
        self.waiting: list[tuple[Callable[[], Any], Future[Any]]] = []
        self.now_s, self.mailbox, self.session = 0.0, Mailbox(), self
        services: Any = SimpleNamespace(
            model=SimpleNamespace(sample_rate_hz=RATE_HZ),
            codec_work=SimpleNamespace(encode=self._encode, write=lambda *_: LATENTS),
            reference=self._reference,
            mailbox=self.mailbox,
            clock=lambda: self.now_s,
        )
        messages, work = cast(Any, self), SessionWork("s", self.mailbox, panic)
        self.inbox = lock_checked(Inbox, "_waiting", "_audio_s", "_rooms")(services, work, messages)

    def _encode(self, work: Callable[[], Any]) -> Future[Any]:
        self.waiting.append((work, Future()))
        return self.waiting[-1][1]

    @property
    def turns(self) -> list[Any]:
        """Inboxes that wait for their turn."""
        self.mailbox.take(0.0, Heartbeat())
        return list(self.mailbox.waiting)

    def put(self, *messages: ClientMessage, pcm: Any = None) -> list[bool]:
        return [self.inbox.put(Received(message, pcm)) for message in messages]

    def run(self) -> None:
        """Handle what can be handled."""
        while self.turns and self.inbox.handle_next():
            pass

    def work(self) -> None:
        """Do all work, and what follows from it."""
        self.run()
        while self.waiting:
            make, made = self.waiting.pop(0)
            made.set_result(make())
            self.run()

    @staticmethod
    def _reference(kind: str, source_id: str) -> Any:
        if source_id == "missing":
            raise RequestError("there is no such source", field="id")
        return kind

    def resolved(self, received: Received) -> Received | None:
        return received

    def write_region(self, message: WriteAudio) -> tuple[int, Any]:
        return 0, LATENTS

    def handle(self, received: Received, latents: Any = None) -> None:
        self.handled.append((getattr(received.message, "seq", received.message.type), latents))

    def refuse(self, received: Received, error: TickError) -> None:
        self.refused.append((getattr(received.message, "seq", None), error))


def controls(seq: int) -> SetControls:
    return SetControls(seq=seq, values={})


def test_messages_keep_their_order_while_a_source_is_loaded() -> None:
    scripted = Scripted()
    scripted.put(
        SetSource(seq=1, id="a"),
        controls(2),
        SetSource(seq=3, id="missing"),
        SetSource(seq=4, id=None),
        Ack(playhead_sample=5),
        SetStructure(seq=6, id="b"),
    )
    scripted.run()
    assert scripted.handled == [("ack", None)]
    scripted.work()
    assert scripted.handled[1:] == [(1, "source"), (2, None), (4, None), (6, "structure")]
    assert [seq for seq, _ in scripted.refused] == [3]
    scripted.put(controls(7))
    scripted.run()
    assert scripted.handled[-1] == (7, None)


def test_audio_that_waits_is_bounded() -> None:
    scripted = Scripted()
    writes = [WriteAudio(seq=seq, at_s=0.0, samples=10 * RATE_HZ) for seq in range(1, 5)]
    assert scripted.put(*writes, pcm=np.zeros((10 * RATE_HZ, 2), np.float32)) == [True, True, True, False]
    assert scripted.inbox.room() is not None
    scripted.work()
    assert [seq for seq, _ in scripted.handled] == [1, 2, 3]
    assert scripted.inbox.room() is None


def test_messages_that_wait_are_bounded() -> None:
    scripted = Scripted()
    messages = [controls(seq) for seq in range(1, MAX_WAITING + 2)]
    assert scripted.put(*messages) == [True] * MAX_WAITING + [False]
    assert scripted.inbox.put(Received(call=lambda: scripted.handled.append(("left",))), is_bounded=False)
    scripted.run()
    assert [found for found, *_ in scripted.handled] == [*range(1, MAX_WAITING + 1), "left"]


def test_further_clients_are_next_in_turn_and_none_takes_the_place_of_another() -> None:
    scripted, (one, other) = Scripted(), [SimpleNamespace(client=name) for name in ("one", "other")]

    def put(sender: Any, seq: int) -> bool:
        return scripted.inbox.put(Received(controls(seq), sender=sender))

    assert [put(one, seq) for seq in range(1, MAX_WAITING + 2)] == [True] * MAX_WAITING + [False]
    assert [put(other, 1000 + seq) for seq in range(MAX_WAITING)].count(True) == MAX_WAITING // 2
    assert not put(one, 1)
    scripted.run()
    found = [seq for seq, _ in scripted.handled]
    assert found[:6] == [1, 1000, 2, 1001, 3, 1002]
    for first in (1, 1000):
        of_client = [seq for seq in found if seq // 1000 == first // 1000]
        assert of_client == list(range(first, first + len(of_client)))


def test_there_is_room_again_once_half_is_handled() -> None:
    scripted = Scripted()
    scripted.put(*(controls(seq) for seq in range(1, MAX_UNHANDLED)))
    assert scripted.inbox.room() is None
    scripted.put(controls(MAX_UNHANDLED))
    waits, cancelled = scripted.inbox.room(), scripted.inbox.room()
    assert waits is not None
    assert cancelled is not None
    cancelled.cancel()
    for _ in range(MAX_UNHANDLED // 2):
        assert not waits.done()
        scripted.inbox.handle_next()
    scripted.inbox.handle_next()
    assert waits.done()


def test_an_inbox_has_one_turn_while_something_waits() -> None:
    scripted = Scripted()
    for seq in range(1, 4):
        scripted.put(controls(seq))
        assert scripted.turns == [scripted.inbox]
    scripted.run()
    scripted.mailbox.waiting.clear()
    scripted.put(controls(4))
    assert scripted.turns == [scripted.inbox]


@pytest.mark.parametrize(("given", "share"), [(0.0, SHARE), (0.5, 0.5), (float("inf"), float("inf"))])
def test_what_has_cost_more_than_a_burst_is_waited_for(given: float, share: float) -> None:
    scripted = Scripted()
    scripted.mailbox.share, inbox = given, scripted.inbox
    scripted.now_s = 100.0
    inbox.charge(BURST_S)
    assert inbox.free_s == pytest.approx(100.0)
    inbox.charge(0.01)
    assert inbox.free_s == pytest.approx(100.0 + 0.01 / share)
    scripted.now_s = 200.0
    inbox.charge(0.0)
    assert inbox.free_s <= 200.0


def test_the_end_refuses_what_waits_and_what_comes() -> None:
    scripted = Scripted()
    scripted.put(SetSource(seq=1, id="a"), controls(2))
    scripted.run()
    scripted.put(controls(3), Ack(playhead_sample=0))
    scripted.inbox.close()
    scripted.put(controls(4))
    scripted.work()
    assert [(seq, type(error)) for seq, error in scripted.refused] == [(seq, DrainingError) for seq in (1, 2, 3, 4)]


@pytest.mark.parametrize("seq", [1, 2])
def test_a_write_without_audio_is_refused(seq: int) -> None:
    scripted = Scripted()
    if seq == 2:
        scripted.put(SetSource(seq=1, id="a"))
    scripted.put(WriteAudio(seq=seq, at_s=0.0, samples=5))
    scripted.work()
    assert [(found, str(error)) for found, error in scripted.refused] == [(seq, "samples: the audio is missing")]


def told(client: Client) -> list[dict[str, Any]]:
    return [changed.values for changed in client.of(Changed)]


def test_each_is_told_once_what_others_have_changed() -> None:
    values = {"guidance": 3.0, "seed": 1}
    controllers = Controllers(lambda: dict(values))
    one, other, client = Client(), Client(), Client()
    controllers.join(one)
    controllers.join(other)
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
    assert told(client) == [{"guidance": 5.0}]


def test_who_left_and_who_is_not_connected_is_told_nothing() -> None:
    values = {"guidance": 3.0}
    controllers = Controllers(lambda: dict(values))
    one, client = Client(), Client()
    controllers.join(one)
    controllers.leave(one)
    controllers.leave(one)
    values["guidance"] = 4.0
    controllers.note(one)
    controllers.send(None)
    controllers.send(client)
    assert told(one) == [{"guidance": 3.0}]
    assert told(client) == []


def test_a_change_before_its_sender_joins_is_told_as_any_other() -> None:
    values = {"guidance": 3.0, "seed": 1}
    controllers = Controllers(lambda: dict(values))
    one, client = Client(), Client()
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
