from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import WebSocket
from helpers.http_harness import (
    GENERATIONS,
    PROBLEM,
    TIMEOUT_S,
    Served,
    connected,
    eventually,
    handshake,
    open_websocket,
    raw_request,
    read_all,
)
from helpers.tls import make_certificate

from server.asgi import connection as connection_module
from server.asgi.connection import (
    CHARGE_EXTENSION,
    FIRST_PROBE_S,
    MAX_PIPELINED_BYTES,
    WRITE_BYTES,
    BoundedProtocol,
    abort_of,
    in_charged_thread,
)
from server.asgi.fair_reads import READ_BYTES
from server.asgi.websocket import WebSocketProtocol
from server.live.page_routes import static_files

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


def receive_until(connection: socket.socket, end: bytes) -> bytes:
    """What arrives, until `end` is in it or the connection is closed."""
    received = b""
    while end not in received and (part := connection.recv(65536)):
        received += part
    return received


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (handshake("content-length: 5\r\n"), 400, "malformed_http"),
        (handshake("content-length: 5\r\n") + b"abcde", 400, "malformed_http"),
        (handshake("transfer-encoding: chunked\r\n") + b"0\r\n\r\n", 400, "malformed_http"),
        (handshake().replace(b"version: 13", b"version: 12"), 426, "unsupported_version"),
        (handshake().replace(b"sec-websocket-version: 13\r\n", b""), 426, "unsupported_version"),
        (handshake("sec-websocket-version: 8\r\n"), 426, "unsupported_version"),
        (handshake().replace(b"dGhl", b"dGhlAAAA"), 400, "malformed_http"),
        (handshake().replace(b"sec-websocket-key", b"x"), 400, "malformed_http"),
        (handshake("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), 400, "malformed_http"),
        (handshake("x: y\r\n" * 200), 431, "headers_too_large"),
        (handshake(f"x: {'y' * 9000}\r\n"), 431, "headers_too_large"),
        (handshake(target="/v1/live?" + "x" * 9000), 431, "headers_too_large"),
        (handshake("x: \x01\r\n"), 400, "malformed_http"),
        (handshake("upgrade: h2c\r\nupgrade: websocket\r\n"), 400, "malformed_http"),
        (handshake("origin: http://localhost\r\norigin: http://localhost\r\n"), 400, "malformed_http"),
        (handshake("sec-websocket-protocol: a b\r\n"), 400, "malformed_http"),
        (handshake().replace(b"connection: upgrade", b'connection: upgrade, ,"'), 400, "malformed_http"),
        (handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), 404, "not_found"),
        (handshake().replace(b"GET", b"DELETE"), 404, "not_found"),
        (raw_request(method="GET", headers="a:b\r\n" * 126), 431, "headers_too_large"),
        (raw_request(method="GET", headers="a:b\r\n" * 3000), 431, "headers_too_large"),
        (raw_request(method="GET", headers="a:b\r\n" * 200)[:-2], 431, "headers_too_large"),
    ],
)
def test_a_handshake_that_cannot_be_read_is_answered_with_a_problem(
    serve: Serve, sent: bytes, status: int, code: str
) -> None:
    served = serve(max_connections=1, header_timeout_s=600.0)
    with connected(served) as connection:
        connection.sendall(sent)
        head, _, body = receive_until(connection, b"}").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert PROBLEM.encode() in head
        assert json.loads(body)["code"] == code
        assert (b"\r\nsec-websocket-version: 13\r\n" in head.lower()) == (status == 426)
        with served.client() as client:
            assert client.get("/health/live").status_code == 200
    eventually(lambda: not served.server.server_state.connections)


def test_128_headers_are_read(served: Served) -> None:
    with connected(served) as connection:
        connection.sendall(raw_request(path="/health/live", method="GET", headers="a:b\r\n" * 125))
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(("host", "status"), [("elsewhere", 403), ("localhost", 401)])
def test_a_client_without_access_gets_one_answer(serve: Serve, host: str, status: int) -> None:
    request = f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\n\r\n".encode()
    with connected(serve(api_key="k")) as connection:
        connection.sendall(3 * request)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1") == 1
    assert b"connection: close\r\n" in answer.lower()


def test_a_refused_handshake_is_counted(serve: Serve) -> None:
    served = serve()
    with connected(served) as connection:
        connection.sendall(handshake(f"x: {'y' * 9000}\r\n"))
        assert connection.recv(12) == b"HTTP/1.1 431"
    assert served.metrics()["tickrt_http_requests_total{method=GET}{route=unmatched}{status=431}"] == 1


async def never_accept(websocket: WebSocket) -> None:
    await websocket.receive()
    await websocket.receive()


def test_a_handshake_without_an_answer_has_the_deadline_of_headers(serve: Serve) -> None:
    served = serve(header_timeout_s=0.2)
    served.app.add_api_websocket_route("/test/never", never_accept)
    with connected(served) as connection:
        connection.sendall(handshake(target="/test/never"))
        assert read_all(connection) == b""
    eventually(lambda: not served.server.server_state.connections)


def test_a_handshake_without_an_answer_makes_room(serve: Serve) -> None:
    served = serve(max_connections=2, header_timeout_s=600.0)
    served.app.add_api_websocket_route("/test/never", never_accept)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(served)) for _ in range(2)]
        for connection in waiting:
            connection.sendall(handshake(target="/test/never"))
        eventually(lambda: _num_websockets(served) == 2)
        idle = [stack.enter_context(connected(served)) for _ in range(4)]
        assert [read_all(connection) for connection in waiting] == [b"", b""]
        idle[0].sendall(raw_request(path="/health/live", method="GET"))
        assert idle[0].recv(15) == b"HTTP/1.1 200 OK"
    eventually(lambda: not served.server.server_state.connections)


def _num_websockets(served: Served) -> int:
    return sum(isinstance(item, WebSocketProtocol) for item in list(served.server.server_state.connections))


def test_the_address_with_the_most_idle_connections_makes_room(serve: Serve) -> None:
    served = serve(max_connections=2)
    with ExitStack() as stack:
        other = stack.enter_context(
            socket.create_connection(("127.0.0.1", served.port), TIMEOUT_S, source_address=("127.0.0.2", 0))
        )
        eventually(lambda: len(served.server.server_state.connections) == 1)
        idle = [stack.enter_context(connected(served)) for _ in range(8)]
        assert [read_all(connection) for connection in idle[:5]] == [b""] * 5
        other.sendall(raw_request(path="/health/live", method="GET"))
        assert other.recv(15) == b"HTTP/1.1 200 OK"


def test_of_addresses_with_few_idle_connections_the_longest_idle_makes_room(serve: Serve) -> None:
    """A newcomer is not the one that goes because its address has two, and others one each."""
    served = serve(max_connections=32)
    with ExitStack() as stack:

        def connected_from(host: str) -> socket.socket:
            address = ("127.0.0.1", served.port)
            return stack.enter_context(socket.create_connection(address, TIMEOUT_S, source_address=(host, 0)))

        others = [connected_from(f"127.0.1.{number}") for number in range(1, 65)]
        eventually(lambda: len(served.server.server_state.connections) == 64)
        newcomers = [connected_from("127.0.0.1") for _ in range(2)]
        assert [read_all(connection) for connection in others[:2]] == [b"", b""]
        for connection in newcomers:
            connection.sendall(raw_request(path="/health/live", method="GET"))
            assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_turn_of_the_event_loop_takes_little_of_a_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_tls: bool
) -> None:
    sizes: dict[type, list[int]] = {BoundedProtocol: [], WebSocketProtocol: []}
    for kind, seen in sizes.items():
        _watch_reads(monkeypatch, kind, seen)
    certificate, key = make_certificate(tmp_path) if has_tls else (None, None)
    trusting = ssl.create_default_context(cafile=str(certificate)) if has_tls else None
    served = serve(certificate=certificate, private_key=key)
    with served.client(**({"verify": trusting} if has_tls else {})) as client:
        assert client.post("/v1/sources", content=bytes(2**20)).status_code == 415
    with open_websocket(served, "/v1/live", ssl=trusting) as websocket:
        websocket.send(" " * 2**20)
        websocket.recv(TIMEOUT_S)
    for seen in sizes.values():
        assert sum(seen) > 2**20
        assert max(seen) <= READ_BYTES


def _watch_reads(monkeypatch: pytest.MonkeyPatch, kind: type, seen: list[int]) -> None:
    original = kind.data_received  # type: ignore[attr-defined]

    def data_received(self: object, data: bytes) -> None:
        seen.append(len(data))
        original(self, data)

    monkeypatch.setattr(kind, "data_received", data_received)


CHUNKED = (
    f"POST {GENERATIONS} HTTP/1.1\r\nhost: %s\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(("size", "status"), [(1, 400), (4, 400), (8, 200)])
def test_a_body_whose_framing_is_larger_than_its_chunks_is_refused(served: Served, size: int, status: int) -> None:
    chunk = b"%x\r\n%b\r\n" % (size, b" " * size)
    with connected(served) as connection, suppress(ConnectionError):
        connection.sendall((CHUNKED % "localhost").encode() + chunk * (200_000 // len(chunk)))
        connection.sendall(b'f\r\n{"prompt": "a"}\r\n0\r\n\r\n')
        answer = receive_until(connection, b"}" if status == 400 else b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert (PROBLEM.encode() in answer) == (status == 400)


@pytest.mark.parametrize("chunk", [b"1\r\n \r\n" * 2**14, b"10000\r\n" + bytes(2**16) + b"\r\n"])
def test_next_to_nothing_is_read_after_a_refusal(serve: Serve, chunk: bytes) -> None:
    served = serve(api_key="k", max_connections=1)
    with connected(served) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        connection.sendall((CHUNKED % "localhost").encode())
        assert receive_until(connection, b"}").startswith(b"HTTP/1.1 401 ")
        with served.client() as client:
            assert client.get("/health/live").status_code == 200
        sent = 0
        with suppress(OSError):
            while sent < 2**26:
                sent += connection.send(chunk)
    assert sent < 2**22


def test_a_connection_that_was_refused_makes_room(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.asgi.connection.LINGER_S", 600.0)
    served = serve(api_key="k", max_connections=1)
    with ExitStack() as stack:
        refused = [stack.enter_context(connected(served)) for _ in range(2)]
        for connection in refused:
            connection.sendall((CHUNKED % "localhost").encode())
            assert receive_until(connection, b"}").startswith(b"HTTP/1.1 401 ")
        with served.client() as client:
            assert client.get("/health/live").status_code == 200
        assert read_all(refused[0]) == b""  # and not after LINGER_S


def test_headers_have_a_deadline(serve: Serve) -> None:
    served = serve(header_timeout_s=0.2, keep_alive_s=600)
    for sent in (b"", b"GET /health/live HT"):
        with connected(served) as connection:
            connection.sendall(sent)
            started_s = time.monotonic()
            assert read_all(connection) == b""
            assert time.monotonic() - started_s > 0.1


def test_a_second_request_on_a_connection_has_the_same_deadline(serve: Serve) -> None:
    served = serve(header_timeout_s=0.2, keep_alive_s=600)
    connection = HTTPConnection("127.0.0.1", served.port, timeout=TIMEOUT_S)
    connection.request("GET", "/health/live")
    assert connection.getresponse().read()
    connection.sock.sendall(b"GET /health/live HT")
    assert read_all(connection.sock) == b""
    connection.close()


def test_the_header_deadline_does_not_bound_the_response(serve: Serve) -> None:
    served = serve(header_timeout_s=0.1)
    served.tick_s = 0.1
    assert served.post(steps=5).status_code == 200


def test_connections_are_kept_alive_and_closed_when_idle(serve: Serve) -> None:
    served = serve(keep_alive_s=1, header_timeout_s=600.0)
    connection = HTTPConnection("127.0.0.1", served.port, timeout=TIMEOUT_S)
    for _ in range(3):
        connection.request("GET", "/health/live")
        response = connection.getresponse()
        assert (response.status, len(response.read()) > 0) == (200, True)
        assert len(served.server.server_state.connections) == 1
    assert read_all(connection.sock) == b""
    connection.close()
    eventually(lambda: not served.server.server_state.connections)


def test_a_closing_connection_ends_although_the_client_does_not_read(serve: Serve) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=600.0, drain_s=0.0)
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", served.port))
        body = b'{"prompt": "a", "seconds": 1, "stream": false}'
        stalled.sendall(raw_request(body, headers="connection: close\r\n"))
        eventually(lambda: served.metrics()["tickrt_generations_total{outcome=ok}"] == 1)
        eventually(lambda: len(served.server.server_state.connections) == 1)
        eventually(lambda: not served.server.server_state.connections)


def test_beyond_the_limit_the_connections_idle_for_the_longest_time_are_closed(serve: Serve) -> None:
    served = serve(max_connections=2)
    served.pause()
    with ExitStack() as stack:
        busy = stack.enter_context(connected(served))
        busy.sendall(raw_request(b'{"prompt": "a"}'))
        eventually(lambda: served.service.admission.num_pending == 1)
        idle = [stack.enter_context(connected(served)) for _ in range(6)]
        assert [read_all(connection) for connection in idle[:3]] == [b""] * 3
        assert len(served.server.server_state.connections) == 4
        idle[5].sendall(raw_request(path="/health/live", method="GET"))
        assert idle[5].recv(15) == b"HTTP/1.1 200 OK"
        served.resume()
        assert busy.recv(15) == b"HTTP/1.1 200 OK"
    eventually(lambda: not served.server.server_state.connections)
    assert served.post().status_code == 200


def test_a_client_that_sent_more_than_its_request_and_leaves_is_noticed(serve: Serve) -> None:
    served = serve(depth=1, queue=40)
    served.pause()
    with ExitStack() as stack:
        leaving = [stack.enter_context(connected(served)) for _ in range(41)]
        for connection in leaving:
            connection.sendall(raw_request(b'{"prompt": "a", "steps": 100}') + b"x")
        eventually(lambda: served.service.admission.num_pending == 41)
        for connection in leaving:
            connection.sendall(b"y")
    eventually(lambda: not served.service.admission.permits)
    served.resume()
    eventually(lambda: not served.service.admission.num_pending)
    assert served.metrics()["tickrt_generations_total{outcome=cancelled}"] == 41


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    served = serve()
    served.pause()
    with connected(served) as connection:
        connection.sendall(raw_request(b'{"prompt": "a", "response_format": "pcm", "stream": false}'))
        eventually(lambda: served.service.admission.num_pending == 1)
        for path in ("/health/live", "/nowhere"):
            connection.sendall(raw_request(path=path, method="GET"))
        connection.shutdown(socket.SHUT_WR)
        served.resume()
        answer = read_all(connection)
    assert re.findall(rb"HTTP/1.1 ([2-5]..)", answer) == [b"200", b"200", b"404"]


def test_a_client_that_sends_much_behind_its_request_is_disconnected(serve: Serve) -> None:
    served = serve()
    served.pause()
    with connected(served) as connection:
        connection.sendall(raw_request(b'{"prompt": "a"}'))
        eventually(lambda: served.service.admission.num_pending == 1)
        with suppress(ConnectionError):
            connection.sendall(bytes(16 * MAX_PIPELINED_BYTES))
        eventually(lambda: not served.server.server_state.connections)
    served.resume()


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_half_closed_client_gets_its_response(serve: Serve, stream: str) -> None:
    served = serve()
    served.pause()
    body = f'{{"prompt": "a", "response_format": "pcm", "stream": {stream}}}'.encode()
    with connected(served) as connection:
        connection.sendall(raw_request(body))
        connection.shutdown(socket.SHUT_WR)
        eventually(lambda: served.service.admission.num_pending == 1)
        assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        served.resume()
        head, _, content = read_all(connection).partition(b"HTTP/1.1 200 OK\r\n")
    assert len(content) > 1000
    assert head.count(b"HTTP/1.1") == head.count(b"HTTP/1.1 100 Continue\r\n\r\n")
    eventually(lambda: not served.server.server_state.connections)


def test_a_half_closed_client_that_leaves_is_noticed(serve: Serve) -> None:
    served = serve()
    served.pause()
    with connected(served) as connection:
        connection.sendall(raw_request(b'{"prompt": "a"}'))
        connection.shutdown(socket.SHUT_WR)
        eventually(lambda: served.service.admission.num_pending == 1)
    eventually(lambda: not served.service.admission.permits)
    served.resume()


@pytest.mark.parametrize("sent", [raw_request(b"12345678")[:-1], b"GET /health/live HT"])
def test_a_request_that_ends_early_is_answered_with_a_problem(served: Served, sent: bytes) -> None:
    with connected(served) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert PROBLEM.encode() in answer


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(served: Served, method: str) -> None:
    with connected(served) as connection:
        chunked = raw_request(b"abcde", path="/health/live", method=method, headers="transfer-encoding: chunked\r\n")
        connection.sendall(chunked.replace(b"abcde", b"0\r\n\r\n") + raw_request(path="/nowhere", method="GET"))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_a_client_that_does_not_read_loses_its_connection_on_every_route(serve: Serve) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=1.0)
    with stalled(served, 200 * raw_request(path="/metrics", method="GET")):
        eventually(lambda: _num_waiting(served))
        eventually(lambda: not served.server.server_state.connections)
    assert served.metrics()["tickrt_http_requests_total{method=GET}{route=/metrics}{status=200}"] < 200


BUNDLE = "/page/swagger/swagger-ui-bundle.js"


@contextmanager
def stalled(served: Served, sent: bytes) -> Iterator[socket.socket]:
    """A client that has sent a request and reads nothing."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT_S)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(sent)
        yield connection


@pytest.mark.parametrize(
    "sent",
    [
        raw_request(path=BUNDLE, method="GET"),
        raw_request(path="/openapi.json", method="GET"),
        raw_request(b'{"prompt": "a", "seconds": 10}'),
        raw_request(b'{"prompt": "a", "seconds": 10, "stream": false}'),
    ],
)
def test_little_of_a_response_waits_for_its_client(serve: Serve, sent: bytes) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=600.0, drain_s=0.0)
    with stalled(served, sent) as connection:
        eventually(lambda: _num_waiting(served))
        (waiting,) = served.server.server_state.connections
        assert isinstance(waiting, BoundedProtocol)
        assert waiting.transport.get_write_buffer_size() < 3 * WRITE_BYTES
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def _num_waiting(served: Served) -> int:
    """How many responses wait for their clients."""
    connections = list(served.server.server_state.connections)
    return sum(isinstance(item, BoundedProtocol) and item.flow.write_paused for item in connections)


def test_a_response_in_parts_is_whole(served: Served) -> None:
    headers = {"accept-encoding": "identity"}
    with served.client() as client, client.stream("GET", BUNDLE, headers=headers) as response:
        content = b"".join(response.iter_raw())
    assert len(content) == int(response.headers["content-length"]) > 10 * WRITE_BYTES
    assert content == static_files()[BUNDLE.removeprefix("/page/")].content


def test_a_page_that_is_not_read_makes_room(serve: Serve) -> None:
    served = serve(max_connections=1, send_buffer_bytes=4096, send_timeout_s=600.0, api_key="k")
    with ExitStack() as stack:
        request = raw_request(path=BUNDLE, method="GET")
        pages = [stack.enter_context(stalled(served, request)) for _ in range(2)]
        eventually(lambda: _num_waiting(served) == 2)
        with served.client(headers={"x-api-key": "k"}) as client:
            assert client.get("/v1/models").status_code == 200
        pages[0].settimeout(TIMEOUT_S)
        assert len(read_all(pages[0])) < len(static_files()[BUNDLE.removeprefix("/page/")].content)


def test_without_the_extension_an_abort_raises() -> None:
    with pytest.raises(ConnectionAbortedError):
        abort_of({})(True)


def test_a_half_closed_client_is_probed_for_as_long_as_it_waits(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_PROBE_S", FIRST_PROBE_S)
    served, probe = serve(), b"HTTP/1.1 100 Continue\r\n\r\n"
    served.pause()
    with connected(served) as connection:
        connection.sendall(raw_request(b'{"prompt": "a"}'))
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as received:
            assert received.read(12 * len(probe)) == 12 * probe  # doubling, the last would come after minutes
    eventually(lambda: not served.service.admission.permits)
    served.resume()


def test_work_in_a_thread_is_charged_to_its_connection_also_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([10.0, 10.25, 20.0, 20.5, 30.0, 31.0])
    monkeypatch.setattr(connection_module, "time", SimpleNamespace(thread_time=lambda: next(times_s)))
    charged: list[float] = []
    done: list[int] = []

    def fail() -> None:
        raise LookupError

    scope: Any = {"extensions": {CHARGE_EXTENSION: charged.append}}
    asyncio.run(in_charged_thread(scope, done.append, 7))
    with pytest.raises(LookupError):
        asyncio.run(in_charged_thread(scope, fail))
    assert (charged, done) == ([0.25, 0.5], [7])
    asyncio.run(in_charged_thread({}, done.append, 8))
    assert done == [7, 8]
