"""Live sessions on servers: they sound the same where the server changes in between."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from conftest import Built
from helpers import live_clients
from helpers.http_harness import Served, eventually, serving
from helpers.live_clients import silence
from helpers.live_simulation import new_session
from helpers.redis_server import RedisServer, redis_server
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve
from websockets.typing import Subprotocol

import tickrt
from runtime.base.errors import DrainingError, RequestError, TickError
from runtime.config.deployment import Deployment
from runtime.live.protocol.messages import SUBPROTOCOL
from runtime.live.protocol.server_messages import message_text
from tickrt.remote import RemoteSession, retry_delay_s

RATE_HZ = 8000
KEY = "the-key"
TIMEOUT_S = 60.0
SUBPROTOCOLS = [Subprotocol(SUBPROTOCOL)]


@pytest.fixture(scope="module")
def deployment(built: Built) -> Deployment:
    return built(max_rows=16)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def second(deployment: Deployment, redis: RedisServer) -> Iterator[Served]:
    with serving(deployment, redis=redis.url, api_key=KEY) as served:
        yield served


@pytest.fixture(scope="module")
def uninterrupted(second: Served) -> np.ndarray:
    """8 s of a session on one server."""
    with tickrt.TickRT(second.url, key=KEY).live("a", mode="extend", seed=3) as live:
        return live.read(8 * RATE_HZ)


def drain(served: Served, live: tickrt.Live) -> None:
    served.server.drain()


def lose_connection(served: Served, live: tickrt.Live) -> None:
    transport = live._sessions._socket.websocket.transport  # type: ignore[attr-defined]
    transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("interrupt", [drain, lose_connection])
def test_a_session_goes_on_at_the_address_that_its_server_named(
    interrupt: Callable[[Served, tickrt.Live], None],
    deployment: Deployment,
    redis: RedisServer,
    second: Served,
    uninterrupted: np.ndarray,
) -> None:
    with serving(deployment, redis=redis.url, api_key=KEY, edges=(second.url,)) as first:
        client = tickrt.TickRT(first.url, key=KEY)
        with client.live("a", mode="extend", seed=3) as live:
            before = live.read(2 * RATE_HZ)
            interrupt(first, live)
            after = live.read(4 * RATE_HZ)
            end = live._receiver.ring.playhead_sample  # Later by a gap, where the machine is slow.
            assert second.service.host is not None
            assert second.service.host.stats().connected == 1
            assert live.state is not None
            assert live.state.stored
    np.testing.assert_allclose(before, uninterrupted[: 2 * RATE_HZ], atol=1e-4)
    np.testing.assert_allclose(after[-3 * RATE_HZ :], uninterrupted[end - 3 * RATE_HZ : end], atol=1e-4)


def test_a_change_is_heard_and_a_wrong_one_raised_by_the_next_read(second: Served, tmp_path: Path) -> None:
    with tickrt.TickRT(second.url, key=KEY).live("a", seed=3) as live:
        before = live.record(2.0)
        live.set(velocity_scale=0.3)
        assert before.sample_rate_hz == RATE_HZ
        assert before.prompt_words.understood == ("a",)
        eventually(lambda: live.read(800) is not None and not live._receiver._pending_seq)
        assert np.abs(live.read(2 * RATE_HZ) - before.pcm).max() > 1e-3
        live.write(np.ones((800, 2)), 0.1)
        with pytest.raises(RequestError, match="nofile"):
            live.source(tmp_path / "nofile")
        live.set(guidance=-3.0)
        with pytest.raises(RequestError, match="guidance"):
            live.read(600 * RATE_HZ)


class Scripted:
    """A server of WebSockets that plays one script after the other, one for each connection that it accepts."""

    def __init__(self, *scripts: Callable[[ServerConnection], None], accept: Callable[[str], None] = str) -> None:
        self._scripts = iter(scripts)
        self._server = serve(
            self._handle,
            "127.0.0.1",
            0,
            subprotocols=SUBPROTOCOLS,
            process_request=lambda _, request: accept(request.path) and None,
        )
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def _handle(self, connection: ServerConnection) -> None:
        connection.recv(TIMEOUT_S)
        next(self._scripts)(connection)

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()


def ready() -> str:
    return message_text(new_session().attach("token", 0.0, keep_s=60.0))


def test_a_session_that_ends_while_it_is_resumed_ends_on_the_server_too() -> None:
    is_resumed, may_accept, said = threading.Event(), threading.Event(), SimpleQueue[str]()

    def accept(path: str) -> None:
        if path != "/v1/live":
            is_resumed.set()
            assert may_accept.wait(TIMEOUT_S)

    def resumed(connection: ServerConnection) -> None:
        connection.send(ready())
        said.put(json.loads(connection.recv(TIMEOUT_S))["type"])

    with Scripted(lambda connection: connection.send(ready()), resumed, accept=accept) as server:
        live = tickrt.TickRT(server.url).live("a")
        assert is_resumed.wait(TIMEOUT_S)
        live.close()
        may_accept.set()
        assert said.get(timeout=TIMEOUT_S) == "close"


def test_where_an_address_does_not_answer_the_next_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickrt.remote.retry_delay_s", lambda *_: 0.0)
    resumed = threading.Event()

    def again(connection: ServerConnection) -> None:
        connection.send(ready())
        resumed.set()
        with suppress(ConnectionClosed):
            while True:
                connection.recv(TIMEOUT_S)

    with (
        Scripted(lambda connection: connection.send(ready()), again) as server,
        tickrt.TickRT([server.url, "http://127.0.0.1:1"]).live("a"),
    ):
        assert resumed.wait(TIMEOUT_S / 2)


def test_what_is_acknowledged_is_what_was_played_of_what_the_connection_has_brought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tickrt.remote.retry_delay_s", lambda *_: 0.0)
    done = threading.Event()

    def acks(connection: ServerConnection, until: int) -> set[int]:
        """All up to this one."""
        found = set[int]()
        while until not in found:
            found.add(json.loads(connection.recv(TIMEOUT_S))["playhead_sample"])
        return found

    def lost(connection: ServerConnection) -> None:
        connection.send(message_text(live_clients.ready()))
        connection.send(silence(0, 200))
        assert acks(connection, 200) <= {0, 150, 200}

    def resumed(connection: ServerConnection) -> None:
        connection.send(message_text(live_clients.ready(next_sample=100, resumed=True, epoch=2)))
        connection.send(silence(100, 150))
        assert acks(connection, 150) <= {100, 150}
        connection.send(silence(150, 260))
        assert acks(connection, 200) <= {150, 200}
        done.set()
        with suppress(ConnectionClosed):
            while True:
                connection.recv(TIMEOUT_S)

    with Scripted(lost, resumed) as server, tickrt.TickRT(server.url).live("a") as live:
        assert [len(live.read(150)), len(live.read(50))] == [150, 50]
        assert done.wait(TIMEOUT_S / 2)
        assert len(live.read(60)) == 60


def test_audio_that_is_written_follows_its_message() -> None:
    said: SimpleQueue[str | bytes] = SimpleQueue()

    def receive(connection: ServerConnection) -> None:
        connection.send(ready())
        while not isinstance(data := connection.recv(TIMEOUT_S), bytes):
            if (kind := json.loads(data)["type"]) != "ack":
                said.put(kind)
        said.put(data)
        with suppress(ConnectionClosed):
            connection.recv(TIMEOUT_S)

    with Scripted(receive) as server, tickrt.TickRT(server.url).live("a") as live:
        live.write(np.array([[0.5], [-1.0]]), 0.0)
        found = [said.get(timeout=TIMEOUT_S) for _ in range(2)]
    assert found == ["write", np.array([0.5, -1.0], "<f4").tobytes()]


def test_closing_ends_the_connection_also_where_the_server_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tickrt.remote.CLOSE_S", 0.01)
    is_closed = threading.Event()

    def mute(connection: ServerConnection) -> None:
        connection.send(ready())
        with suppress(ConnectionClosed):
            while True:
                connection.recv(TIMEOUT_S)
        is_closed.set()

    with Scripted(mute) as server:
        live = tickrt.TickRT(server.url).live("a")
        live.close()
        assert is_closed.wait(TIMEOUT_S / 2)


@pytest.mark.parametrize("text", ['{"type": "closed", "reason": "ended", "resumable": false}', '{"type": "new"}'])
def test_another_answer_than_ready_is_an_error(text: str) -> None:
    with Scripted(lambda connection: connection.send(text)) as server, pytest.raises(TickError, match=r"closed|type"):
        tickrt.TickRT(server.url).live("a")


def test_a_message_that_is_not_known_ends_the_session_with_an_error() -> None:
    def unknown(connection: ServerConnection) -> None:
        connection.send(ready())
        connection.send('{"type": "new"}')
        with suppress(ConnectionClosed):
            connection.recv(TIMEOUT_S)

    with (
        Scripted(unknown) as server,
        tickrt.TickRT(server.url).live("a") as live,
        pytest.raises(TickError, match="sends what this version does not know"),
    ):
        live.read(1)


@pytest.mark.parametrize("num_silent", [0, 1])
def test_a_session_that_an_unanswered_attempt_has_taken_is_resumed_once_more(num_silent: int) -> None:
    num_connections, taken = SimpleQueue[int](), json.dumps({"type": "closed", "reason": "taken", "resumable": False})

    def lost(connection: ServerConnection) -> None:
        connection.send(ready())

    def silent(connection: ServerConnection) -> None:
        num_connections.put(1)

    def resumed(connection: ServerConnection) -> None:
        num_connections.put(1)
        connection.send(ready())
        connection.send(taken)

    scripts = [lost, *[silent] * num_silent, resumed, resumed, resumed]
    with (
        Scripted(*scripts) as server,
        tickrt.TickRT(server.url).live("a") as live,
        pytest.raises(TickError, match="taken"),
    ):
        live.read(1)
    assert num_connections.qsize() == 1 + 2 * num_silent


class Edge(BaseHTTPRequestHandler):
    """An edge that has no server: it answers uploads by itself."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/busy"):
            self.send_error(503)
        else:
            self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n<html>welcome</html>")

    def log_message(self, *values: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(("path", "says"), [("/busy", "503"), ("", "answers something else than the id of a source")])
def test_an_upload_that_an_edge_answers_is_an_error(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "a.wav").write_bytes(b"audio")
    with ThreadingHTTPServer(("127.0.0.1", 0), Edge) as server:
        threading.Thread(target=server.serve_forever).start()
        session = RemoteSession.__new__(RemoteSession)
        session._urls, session._headers = [f"http://127.0.0.1:{server.server_port}{path}"], {}
        try:
            with pytest.raises(RequestError, match=says):
                session.add_source("timbre", tmp_path / "a.wav", None)
        finally:
            server.shutdown()


def test_who_cannot_open_a_session_is_told_why(second: Served) -> None:
    with pytest.raises(RequestError, match="urls"):
        tickrt.TickRT([])
    with pytest.raises(RequestError, match="401"):
        tickrt.TickRT(second.url).live("a")
    with pytest.raises(DrainingError, match=r"127\.0\.0\.1:1 does not answer"):
        tickrt.TickRT("http://127.0.0.1:1").live("a")
    with pytest.raises(RequestError, match="guidance"):
        tickrt.TickRT(["http://127.0.0.1:1", second.url], key=KEY).live("a", guidance=-3.0)


def test_listeners_of_a_lost_server_come_back_one_after_the_other() -> None:
    def lengths(attempt: int, num_addresses: int) -> np.ndarray:
        return np.array([retry_delay_s(attempt, num_addresses) for _ in range(200)])

    for first in (lengths(0, 1), lengths(1, 2)):
        assert 0.0 <= first.min() < 0.02
        assert 0.08 < first.max() <= 0.1
    assert 0.05 <= lengths(1, 1).min() < lengths(1, 1).max() <= 0.15
    assert 1.0 <= lengths(99, 2).min() < 1.2
    assert 2.8 < lengths(99, 2).max() <= 3.0
    assert lengths(100_000, 1).max() <= 3.0, "a session may be kept for days"


def test_a_lost_session_waits_before_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, is_resumed = list[tuple[int, int]](), threading.Event()
    monkeypatch.setattr("tickrt.remote.retry_delay_s", lambda *given: asked.append(given) or 0.0)

    def resumed(connection: ServerConnection) -> None:
        is_resumed.set()
        connection.send(ready())
        with suppress(ConnectionClosed):
            connection.recv(TIMEOUT_S)

    with Scripted(lambda connection: connection.send(ready()), resumed) as server, tickrt.TickRT(server.url).live("a"):
        assert is_resumed.wait(TIMEOUT_S)
    assert asked == [(0, 1)]


def test_a_session_that_was_ended_is_not_resumed(second: Served) -> None:
    with tickrt.TickRT(second.url, key=KEY).live("a", seed=3) as live:
        live.read(800)
        assert second.service.host is not None
        second.service.host.end(live._client.id, "deleted")
        with pytest.raises(TickError, match="deleted"):
            live.read(600 * RATE_HZ)
    eventually(lambda: not second.service.host.stats().open)  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["a\nX-Evil: 1", "schl\u00fcssel"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(RequestError, match="no header can carry"):
        tickrt.TickRT("http://127.0.0.1:9", key=key)
