from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from http.client import HTTPConnection

import pytest
from helpers.http_harness import PROBLEM, Served, connected, eventually, raw_request, read_all

from server.asgi.connection import FLUSH_S, abort_of

Serve = Callable[..., Served]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1_000_000 + b"\r\n\r\n",
        b"POST /v1/audio/generations HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_malformed_http_is_answered_with_a_problem(served: Served, data: bytes) -> None:
    with connected(served) as connection:
        connection.sendall(data)
        answer = read_all(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 4")
    assert PROBLEM.encode() in head
    assert json.loads(body)["status"] in (400, 413, 415)
    with served.client() as client:
        assert client.get("/health/live").status_code == 200


def test_headers_have_a_deadline(serve: Serve) -> None:
    served = serve(header_timeout_s=0.2)
    for sent in (b"", b"GET /health/live HT"):
        with connected(served) as connection:
            connection.sendall(sent)
            started_s = time.monotonic()
            assert read_all(connection) == b""
            assert 0.1 < time.monotonic() - started_s < 8.0


def test_a_second_request_on_a_connection_has_the_same_deadline(serve: Serve) -> None:
    served = serve(header_timeout_s=0.2)
    connection = HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.request("GET", "/health/live")
    assert connection.getresponse().read()
    connection.sock.sendall(b"GET /health/live HT")
    started_s = time.monotonic()
    assert read_all(connection.sock) == b""
    assert time.monotonic() - started_s < 8.0
    connection.close()


def test_the_header_deadline_does_not_bound_the_response(serve: Serve) -> None:
    served = serve(header_timeout_s=0.1)
    served.tick_s = 0.1
    assert served.post(steps=5).status_code == 200


def test_connections_are_kept_alive_and_closed_when_idle(serve: Serve) -> None:
    served = serve(keep_alive_s=1)
    connection = HTTPConnection("127.0.0.1", served.port, timeout=10)
    for _ in range(3):
        connection.request("GET", "/health/live")
        response = connection.getresponse()
        assert (response.status, len(response.read()) > 0) == (200, True)
        assert len(served.server.server_state.connections) == 1
    started_s = time.monotonic()
    assert read_all(connection.sock) == b""
    assert time.monotonic() - started_s < 8.0
    connection.close()
    eventually(lambda: not served.server.server_state.connections)


def test_a_closing_connection_ends_although_the_client_does_not_read(serve: Serve) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=30.0, drain_s=0.0)
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.port))
        body = b'{"prompt": "a", "seconds": 1, "stream": false}'
        stalled.sendall(raw_request(body, headers="connection: close\r\n"))
        eventually(lambda: served.metrics()["tickrt_generations_total{outcome=ok}"] == 1)
        eventually(lambda: len(served.server.server_state.connections) == 1)
        started_s = time.monotonic()
        eventually(lambda: not served.server.server_state.connections)
        assert time.monotonic() - started_s < FLUSH_S + 6.0


def test_connections_beyond_the_limit_are_closed(serve: Serve) -> None:
    served = serve(max_connections=2)
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(served)) for _ in range(6)]
        eventually(lambda: len(served.server.server_state.connections) == 4)
        assert sum(read_all(connection) == b"" for connection in connections[4:]) == 2
    eventually(lambda: not served.server.server_state.connections)
    assert served.post().status_code == 200


def test_without_the_extension_an_abort_raises() -> None:
    with pytest.raises(ConnectionAbortedError):
        abort_of({})(True)
