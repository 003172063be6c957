"""Further clients of a session: who is told what."""

from __future__ import annotations

from typing import Any

from runtime.live.hosting.clients import Controllers
from runtime.live.protocol.server_messages import Changed, Closed


class Listener:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    def on_message(self, message: Any) -> None:
        self.messages.append(message)

    def on_audio(self, chunk: Any) -> None:
        raise AssertionError("only the client of the session plays")

    def values(self) -> list[dict[str, Any]]:
        return [message.values for message in self.messages if isinstance(message, Changed)]


def test_each_is_told_once_what_others_have_changed() -> None:
    values = {"guidance": 3.0, "seed": 1}
    controllers = Controllers(lambda: dict(values))
    one, other, client = Listener(), Listener(), Listener()
    controllers.join(one)
    controllers.join(other)
    values["guidance"] = 4.0
    controllers.note(one)
    values["guidance"] = 5.0
    controllers.note(one)
    values["seed"] = 2
    controllers.note(None)
    assert client.values() == []
    for _ in range(2):
        controllers.send(client)
    everything = {"guidance": 3.0, "seed": 1}
    assert one.values() == [everything, {"seed": 2}]
    assert other.values() == [everything, {"guidance": 5.0, "seed": 2}]
    assert client.values() == [{"guidance": 5.0}]


def test_who_left_and_who_is_not_connected_is_told_nothing() -> None:
    values = {"guidance": 3.0}
    controllers = Controllers(lambda: dict(values))
    one, client = Listener(), Listener()
    controllers.join(one)
    controllers.leave(one)
    controllers.leave(one)
    values["guidance"] = 4.0
    controllers.note(one)
    controllers.send(None)
    controllers.send(client)
    assert one.values() == [{"guidance": 3.0}]
    assert client.values() == []


def test_a_change_before_its_sender_joins_is_told_as_any_other() -> None:
    values = {"guidance": 3.0, "seed": 1}
    controllers = Controllers(lambda: dict(values))
    one, client = Listener(), Listener()
    controllers.watch(dict(values))
    values["guidance"] = 4.0
    controllers.note(one)
    controllers.join(one)
    controllers.send(client)
    assert client.values() == [{"guidance": 4.0}]
    assert one.values() == [values]


def test_a_session_that_ends_says_so_once() -> None:
    controllers, one = Controllers(dict), Listener()
    controllers.join(one)
    closed = Closed(reason="closed", resumable=False)
    controllers.close(closed)
    controllers.close(closed)
    assert one.messages[1:] == [closed]
