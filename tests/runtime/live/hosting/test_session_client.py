"""A session's client: changes are numbered in the order in which they go, answered, and its time is what it took."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from runtime.base.errors import RequestError, TickError
from runtime.live.hosting.session_client import PACED, Hearing, SessionClient
from runtime.live.playback.audio_ring import AudioRing
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import CLIENT_MESSAGES, Ack, Open, Play, Reply
from runtime.live.protocol.server_messages import ServerMessage


class Ear(Hearing):
    """Notes which changes are waited for."""

    def __init__(self) -> None:
        self.ring = AudioRing(1000, 1)
        self.expected: list[int] = []

    def on_message(self, message: ServerMessage) -> None:
        """It is told nothing."""

    def on_audio(self, chunk: AudioChunk) -> None:
        self.ring.write(chunk.start_sample, chunk.pcm)

    def expect(self, seq: int) -> None:
        self.expected.append(seq)

    def forget(self, seq: int) -> None:
        self.expected.remove(seq)


class Place:
    """Where sessions run that keep what they get; `replies` are called by the test."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.messages: list[Any] = []
        self.replies: list[Reply | None] = []
        self.ended: list[tuple[str, str]] = []

    def open(self, message: Open, listener: Any, client: str = "", clock: Any = None) -> str:
        self.opened.append((message, listener, client))
        self.clock = clock
        return "s1"

    def post(self, session_id: str, message: Any, pcm: Any = None, reply: Reply | None = None) -> None:
        assert session_id == "s1"
        self.messages.append(message)
        self.replies.append(reply)

    def end(self, session_id: str, reason: str) -> None:
        self.ended.append((session_id, reason))


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture
def client(place: Place) -> SessionClient[Ear]:
    opened = SessionClient(place, Ear(), "10.0.0.1")
    opened.open(Open())
    return opened


def test_it_is_opened_and_ended_by_its_id(place: Place, client: SessionClient[Ear]) -> None:
    assert place.opened == [(Open(), client.listener, "10.0.0.1")]
    client.end()
    client.end("not used")
    assert (client.id, place.ended) == ("s1", [("s1", "closed"), ("s1", "not used")])


def test_its_time_is_what_was_taken(place: Place, client: SessionClient[Ear]) -> None:
    client.listener.on_audio(AudioChunk(1, 0, np.ones((700, 1), np.float32)))
    client.listener.ring.read(np.empty((500, 1), np.float32))
    client.acknowledge()
    client.acknowledge()
    assert (client.position_s, place.clock()) == (0.5, 0.5)
    assert place.messages == [Ack(playhead_sample=500, worst_lead_s=0.2)] * 2


def test_changes_of_many_threads_go_in_the_order_of_their_numbers(place: Place, client: SessionClient[Ear]) -> None:
    with ThreadPoolExecutor(8) as pool:
        seqs = list(pool.map(lambda index: client.send("seek", {"to_s": float(index)}), range(200)))
    assert [message.seq for message in place.messages] == list(range(1, 201)) == sorted(seqs)
    client.post(Play())
    assert client.seq == 200


def test_a_change_is_done_once_it_is_handled_and_one_that_is_refused_is_not_waited_for(
    place: Place, client: SessionClient[Ear]
) -> None:
    first, second = (client.change("set", {"values": {"guidance": value}}) for value in (2.0, 3.0))
    client.send("reset", {})
    assert (first.done(), client.listener.expected, place.replies[2]) == (False, [1, 2, 3], None)
    error = TickError("refused")
    for reply, result in zip(place.replies, (error, None), strict=False):
        assert reply is not None
        reply(result)
    assert (first.exception(), second.result(), client.listener.expected) == (error, None, [2, 3])


def test_a_change_that_is_wrong_is_not_sent(place: Place, client: SessionClient[Ear]) -> None:
    for members in ({"values": {}, "wrong": 1}, {"values": {}, "ramp_ms": float("nan")}, {"values": {}, "pcm": []}):
        with pytest.raises(RequestError):
            client.change("set", members)
    assert (place.messages, client.listener.expected) == ([], [])


def test_what_is_generated_anew_at_once_is_waited_for(client: SessionClient[Ear]) -> None:
    changes = {name for name, message in CLIENT_MESSAGES.items() if "seq" in message.model_fields}
    assert set(PACED) == changes - {"write", "band", "mute", "seek", "clock", "set_plan", "notes"}
    client.send("set", {"values": {}, "at": 9.0})
    client.send("seek", {"to_s": 0.0})
    client.send("reset", {})
    assert client.listener.expected == [3]
