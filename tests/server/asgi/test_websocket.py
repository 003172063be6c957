from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from fastapi import WebSocket, WebSocketDisconnect
from helpers.http_harness import (
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    TIMEOUT_S,
    Serve,
    Served,
    connected,
    eventually,
    exchange,
    frame,
    handshake,
    open_websocket,
    problem,
    read_all,
    refused_websocket,
    serving,
)
from websockets.exceptions import ConnectionClosed

from runtime.base.errors import RequestError
from runtime.config.deployment import Deployment
from server.asgi.connection import abort_of
from server.asgi.problems import ProblemError
from server.asgi.websocket import WebSocketProtocol, choose_subprotocol

ECHO = "/test/echo"
DISCONNECTS: list[int] = []


async def echo(websocket: WebSocket) -> None:
    """Returns every message; "fail", "end", "abort" and "flood" do as they say."""
    await websocket.accept(choose_subprotocol(websocket.scope["subprotocols"], "test.v1"))
    try:
        while (text := await websocket.receive_text()) not in ("fail", "end", "abort", "flood"):
            await websocket.send_text(text)
    except WebSocketDisconnect as error:
        DISCONNECTS.append(error.code)
        return
    if text == "fail":
        raise LookupError
    if text == "abort":
        abort_of(websocket.scope)(False)
    while text == "flood":
        await websocket.send_bytes(bytes(100_000))


async def talk(websocket: WebSocket) -> None:
    """Sends much after one message, and takes the others only then."""
    await websocket.accept()
    await websocket.receive_text()
    for _ in range(100):
        await websocket.send_text("more")
        await asyncio.sleep(0.001)
    await websocket.send_text("enough")
    while await websocket.receive_text() != "end":
        pass
    await websocket.send_text("all of it")


async def refuse(websocket: WebSocket) -> None:
    raise RequestError("is not there", field="session")


async def close(websocket: WebSocket) -> None:
    await websocket.close()


def with_endpoints(server: Served) -> Served:
    for path, endpoint in ((ECHO, echo), ("/test/talk", talk), ("/test/refuse", refuse), ("/test/close", close)):
        server.app.add_api_websocket_route(path, endpoint)
    return server


@pytest.fixture(scope="module")
def shared(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny()) as server:
        yield with_endpoints(server)


@pytest.fixture
def server(shared: Served, caplog: pytest.LogCaptureFixture) -> Iterator[Served]:
    """One that is left without a connection and without an error of its own in its log."""
    yield shared
    eventually(lambda: not shared.connections)
    assert not [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]


@contextmanager
def raw_websocket(served: Served) -> Iterator[socket.socket]:
    """A socket after the handshake."""
    with connected(served, handshake(target=ECHO)) as connection:
        assert connection.recv(12) == b"HTTP/1.1 101"
        yield connection


def test_messages_go_both_ways_and_the_handshake_is_counted(server: Served) -> None:
    options = {"additional_headers": {"x-request-id": "mine"}, "subprotocols": ["test.v1"]}
    with open_websocket(server, ECHO, **options) as websocket:
        assert websocket.subprotocol == "test.v1"
        assert websocket.response is not None
        assert websocket.response.headers["x-request-id"] == "mine"
        assert "sec-websocket-extensions" not in websocket.response.headers
        for text in ("a", "ä" * 100_000):
            websocket.send(text)
            assert websocket.recv(TIMEOUT_S) == text
    name = "tickrt_http_requests_total{method=WEBSOCKET}{route=/test/echo}{status=101}"
    eventually(lambda: server.metrics().get(name) == 1)


def test_a_websocket_outlives_the_header_deadline(serve: Serve) -> None:
    server = with_endpoints(serve(header_timeout_s=0.1, keep_alive_s=1))
    with open_websocket(server, ECHO) as websocket:
        with pytest.raises(TimeoutError):
            websocket.recv(0.4)
        websocket.send("still here")
        assert websocket.recv(TIMEOUT_S) == "still here"


def test_a_socket_sends_without_delay_and_compression(server: Served) -> None:
    with open_websocket(server, ECHO, compression="deflate") as websocket:
        (connection,) = server.connections
        assert connection.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert websocket.protocol.extensions == []


def test_refused_handshakes_are_problems(server: Served) -> None:
    other = {"sec-websocket-protocol": "test.v9"}
    assert refused_websocket(server, ECHO, headers=other) == (400, "unsupported_subprotocol")
    assert refused_websocket(server, "/test/refuse") == (422, "invalid_request")
    assert refused_websocket(server, "/test/close") == (403, "forbidden")
    assert refused_websocket(server, "/nowhere") == (404, "not_found")
    assert refused_websocket(server, "/v1/models") == (404, "not_found")


@pytest.mark.parametrize(("text", "code"), [("fail", 1011), ("end", 1011), ("abort", 1006)])
def test_an_endpoint_that_does_not_close_ends_with_a_code(serve: Serve, text: str, code: int) -> None:
    server = with_endpoints(serve())
    with open_websocket(server, ECHO) as websocket:
        websocket.send(text)
        with pytest.raises(ConnectionClosed) as error:
            websocket.recv(TIMEOUT_S)
    assert (error.value.rcvd.code if error.value.rcvd else 1006) == code


def test_an_endpoint_that_sends_and_does_not_read_has_few_messages_waiting(server: Served) -> None:
    """What it sends does not make the server read on: what a client sends waits in its own buffers."""
    with open_websocket(server, "/test/talk") as websocket:
        for text in (*["x" * 4000] * 60, "end"):
            websocket.send(text)
        while websocket.recv(TIMEOUT_S) != "enough":
            (protocol,) = server.connections
            assert protocol.queue.qsize() < 20
        assert websocket.recv(TIMEOUT_S) == "all of it"


def test_shutdown_closes_with_1001(serve: Serve) -> None:
    server = with_endpoints(serve())
    DISCONNECTS.clear()
    with open_websocket(server, ECHO) as websocket:
        server.server.drain()
        with pytest.raises(ConnectionClosed) as error:
            websocket.recv(TIMEOUT_S)
    assert error.value.rcvd is not None
    assert error.value.rcvd.code == 1001
    eventually(lambda: DISCONNECTS == [1001])


def test_an_endpoint_sees_the_drain_before_the_server_closes(serve: Serve) -> None:
    server = with_endpoints(serve())

    async def farewell(websocket: WebSocket) -> None:
        await websocket.accept()
        await server.service.draining.wait()
        await websocket.send_text("closed")
        await websocket.close(1001)

    server.app.add_api_websocket_route("/test/farewell", farewell)
    with open_websocket(server, "/test/farewell") as websocket:
        server.server.drain()
        assert websocket.recv(TIMEOUT_S) == "closed"


def test_websockets_count_as_connections(serve: Serve) -> None:
    server = with_endpoints(serve(max_connections=2))
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(open_websocket(server, ECHO))
        assert refused_websocket(server, ECHO) == (503, "busy")
        problem(server.get("/v1/models"), 503, "busy")
        assert server.get("/health/live").status_code == 200
    eventually(lambda: not server.connections)
    with open_websocket(server, ECHO):
        pass


def test_a_client_that_does_not_read_cannot_keep_a_closing_connection_open(serve: Serve) -> None:
    server = with_endpoints(serve(send_buffer_bytes=4096))
    with raw_websocket(server) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(b"\x81\x85\0\0\0\0flood")
        (connection,) = server.connections
        eventually(lambda: not connection.writable.is_set())
        server.event_loop.call_soon_threadsafe(connection.keepalive_timeout)
        eventually(lambda: not server.connections)


@pytest.mark.parametrize(
    "closing",
    [
        lambda connection: connection.keepalive_timeout(),
        lambda connection: connection.shutdown(),
        lambda connection: connection.data_received(b"\xff" * 10),
        lambda connection: (connection.data_received(b"\x88\x80\0\0\0\0"), connection.shutdown()),
    ],
    ids=["keepalive", "shutdown", "no frames", "shutdown after the client's close"],
)
def test_an_endpoint_that_sends_when_the_connection_was_just_closed_sees_a_disconnect(
    closing: Callable[[Any], object], serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server, ends = serve(), list[BaseException]()

    async def late(websocket: WebSocket) -> None:
        await websocket.accept()
        (connection,) = server.connections
        try:
            closing(connection)
            await websocket.send_text("late")
        except BaseException as error:
            ends.append(error)

    server.app.add_api_websocket_route("/test/late", late)
    with open_websocket(server, "/test/late") as websocket, pytest.raises(ConnectionClosed):
        websocket.recv(TIMEOUT_S)
    eventually(lambda: ends and not server.connections)
    assert [type(error) for error in ends] == [WebSocketDisconnect]
    assert not [record for record in caplog.records if record.exc_info]


FIRST = frame(TEXT, is_last=False)


def close_code(received: bytes) -> int:
    """The code in the last frame of what a server has sent, without the reason's text."""
    return int.from_bytes(re.findall(rb"\x88.(..)", received, re.DOTALL)[-1], "big")


def test_what_comes_with_the_handshake_is_taken_once_it_is_accepted(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(handshake(target=ECHO) + frame(TEXT, b"first") + frame(PING) + frame(TEXT, b"second"))
        received = b""
        while b"second" not in received:
            received += connection.recv(65536)
    assert re.findall(rb"first|second", received) == [b"first", b"second"]
    assert b"\x8a\x00" in received


@pytest.mark.parametrize(("path", "status"), [(ECHO, b"101"), ("/nowhere", b"404"), ("/test/close", b"403")])
def test_a_flood_with_the_handshake_leaves_no_error_in_the_log(server: Served, path: str, status: bytes) -> None:
    answer = exchange(server, handshake(target=path) + 5000 * frame(PING))
    assert answer[9:12] == status
    assert path != ECHO or close_code(answer) == 1008


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(TEXT, b"\xff"), 1007),
        (frame(TEXT, b"\xc3", is_last=False) + frame(CONTINUATION, b"("), 1007),
        (bytes([0xC1]) + frame(TEXT)[1:], 1002),
        (frame(8, b"\0"), 1002),
        (frame(8, (999).to_bytes(2, "big")), 1002),
        (frame(8, (65535).to_bytes(2, "big")), 1002),
        (frame(PING, bytes(126)), 1002),
        (frame(3), 1002),
        (frame(CONTINUATION), 1002),
        (b"\x81\x00", 1002),
        (b"\xff" * 1000, 1002),
        (b"\x81\xff" + (4 * 2**20 + 1).to_bytes(8, "big") + bytes(4), 1009),  # the announced length is enough
        # Not many more than the limit: what a server has not read when it closes resets the connection.
        (1050 * frame(PING), 1008),
        (1050 * frame(PONG), 1008),
        (FIRST + 1050 * frame(CONTINUATION, is_last=False), 1008),
        (FIRST + 1050 * frame(CONTINUATION, b"ab", is_last=False), 1008),
        (1050 * (FIRST + frame(CONTINUATION, b"a")), 1008),
    ],
)
def test_frames_that_are_malformed_or_too_many_close_with_a_code(server: Served, sent: bytes, code: int) -> None:
    with raw_websocket(server) as connection:
        connection.sendall(sent)
        assert close_code(read_all(connection)) == code


def test_a_close_without_a_code_is_answered(server: Served) -> None:
    with raw_websocket(server) as connection:
        connection.sendall(frame(8))
        assert read_all(connection).endswith(b"\x88\x00")


def test_small_frames_within_the_limit_are_taken(server: Served) -> None:
    with raw_websocket(server) as connection:
        connection.sendall(300 * frame(PING) + 300 * frame(PONG) + FIRST)
        connection.sendall(300 * frame(CONTINUATION, b"a", is_last=False) + frame(CONTINUATION, b"b"))
        received = b""
        while not received.endswith(b"ab"):
            received += connection.recv(65536)
    assert received.count(b"\x8a\x00") == 300


def test_a_message_in_many_fragments_is_taken(server: Served) -> None:
    with open_websocket(server, ECHO, max_size=None) as websocket:
        websocket.send("x" * 1024 for _ in range(2048))
        assert websocket.recv(TIMEOUT_S) == "x" * 2**21


def test_the_fragments_of_a_message_are_bounded(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.asgi.websocket.MAX_FRAGMENTS", 10)
    with raw_websocket(server) as connection:
        connection.sendall(FIRST + 10 * frame(CONTINUATION, b"a", is_last=False))
        assert close_code(read_all(connection)) == 1008


def test_the_longest_unfinished_message_makes_room_for_others(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.asgi.websocket.MAX_UNFINISHED_BYTES", 400_000)
    begin = b"\x81\xff" + (300_000).to_bytes(8, "big") + bytes(4)
    with raw_websocket(server) as longest, open_websocket(server, ECHO) as other:
        longest.sendall(begin + b"x" * 250_000)
        eventually(lambda: max(item._unfinished_bytes for item in server.connections) > 240_000)
        other.send("a" * 200_000)
        assert other.recv(TIMEOUT_S) == "a" * 200_000
        assert close_code(read_all(longest)) == 1013


@pytest.mark.parametrize(
    ("offered", "expected"), [([], None), (["tickrt.live.v1"], "tickrt.live.v1"), (["other", "test.v1"], "test.v1")]
)
def test_the_supported_subprotocol_is_chosen(offered: list[str], expected: str | None) -> None:
    assert choose_subprotocol(offered, expected or "tickrt.live.v1") == expected


def test_only_other_subprotocols_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"tickrt\.live\.v1"):
        choose_subprotocol(["tickrt.live.v9"], "tickrt.live.v1")


def test_many_abrupt_disconnects_leave_nothing(serve: Serve) -> None:
    server = with_endpoints(serve())
    for _ in range(20):
        with raw_websocket(server) as connection:
            connection.sendall(b"\x81\x81\0\0\0\0a")
    eventually(lambda: not server.connections)
    tasks = asyncio.run_coroutine_threadsafe(_num_tasks(), server.event_loop)
    assert tasks.result(TIMEOUT_S) < 10


async def _num_tasks() -> int:
    return len(asyncio.all_tasks())


@pytest.mark.parametrize("kind", ["ping", "pong", "cont", "text", "bytes"])
def test_a_frame_is_handled_where_it_is_taken(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pong that is not handled would end the connection as one of a client that does not answer."""
    handled: list[str] = []
    taken = [False]
    for base in WebSocketProtocol.__mro__[1:]:
        if f"handle_{kind}" in vars(base):
            monkeypatch.setattr(base, f"handle_{kind}", lambda protocol, *frame: handled.append(kind))
    for name in ("_takes", "_takes_control"):
        monkeypatch.setattr(WebSocketProtocol, name, lambda protocol, *frame: taken[0])
    protocol = WebSocketProtocol.__new__(WebSocketProtocol)
    event = () if kind == "ping" else (None,)
    getattr(protocol, f"handle_{kind}")(*event)
    assert handled == []
    taken[0] = True
    getattr(protocol, f"handle_{kind}")(*event)
    assert handled == [kind]
