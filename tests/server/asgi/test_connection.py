from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import WebSocket
from helpers.http_harness import (
    PROBLEM,
    TIMEOUT_S,
    Serve,
    Served,
    connected,
    eventually,
    exchange,
    handshake,
    held,
    open_websocket,
    raw_request,
    read_all,
    read_until,
    serving,
)
from helpers.tls import make_certificate

from runtime.config.deployment import Deployment
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

LIVE = raw_request(path="/health/live", method="GET")
HALF, OK, PROBE = b"GET /health/live HT", b"HTTP/1.1 200 OK", b"HTTP/1.1 100 Continue\r\n\r\n"
BUNDLE = "/page/swagger/swagger-ui-bundle.js"
GET_BUNDLE = raw_request(path=BUNDLE, method="GET")
CHUNKED = raw_request(headers="transfer-encoding: chunked\r\n").replace(b"content-length: 0\r\n", b"")


@pytest.fixture(scope="module")
def strict(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    """One whose answers do not come of a deadline, and which has room for one connection."""
    with serving(tiny(), max_connections=1, header_timeout_s=600.0, api_key="k") as server:
        yield server


def get(headers: str = "", path: str = "/") -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode()


def two_lengths(method: str) -> bytes:
    """A request that has another one in it for who reads its length in another way."""
    chunked = raw_request(b"abcde", path="/health/live", method=method, headers="transfer-encoding: chunked\r\n")
    return chunked.replace(b"abcde", b"0\r\n\r\n") + get(path="/nowhere")


KEY_HEADER = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
NOT_HTTP, NO_HANDSHAKE, TOO_LARGE = (400, "malformed_http"), (426, "unsupported_version"), (431, "headers_too_large")
REFUSED: dict[str, tuple[bytes, tuple[int, str]]] = {
    "bytes": (b"\x00\x01\x02\x03\r\n\r\n", NOT_HTTP),
    "no version": (b"GET /\r\n\r\n", NOT_HTTP),
    "a header without a name": (get(": x\r\n"), NOT_HTTP),
    "a length below 0": (get("content-length: -1\r\n"), NOT_HTTP),
    "a length of many digits": (get(f"content-length: {'9' * 23}\r\n"), NOT_HTTP),
    "a header of a megabyte": (get(f"x: {'a' * 1_000_000}\r\n"), NOT_HTTP),
    "126 headers more": (get("a:b\r\n" * 128), TOO_LARGE),
    "3000 headers": (get("a:b\r\n" * 3000), TOO_LARGE),
    "200 headers, not all of them": (get("a:b\r\n" * 200)[:-2], TOO_LARGE),
    "two lengths of GET": (two_lengths("GET"), NOT_HTTP),
    "two lengths of HEAD": (two_lengths("HEAD"), (400, "")),
    "two lengths of POST": (two_lengths("POST"), NOT_HTTP),
    "another host": (3 * get().replace(b"localhost", b"elsewhere"), (403, "host_not_allowed")),
    "no key": (3 * get(path="/v1/models"), (401, "unauthorized")),
    "a body's length": (handshake("content-length: 5\r\n"), NOT_HTTP),
    "a body": (handshake("content-length: 5\r\n") + b"abcde", NOT_HTTP),
    "a chunked body": (handshake("transfer-encoding: chunked\r\n") + b"0\r\n\r\n", NOT_HTTP),
    "version 12": (handshake().replace(b"version: 13", b"version: 12"), NO_HANDSHAKE),
    "no version of WebSockets": (handshake().replace(b"sec-websocket-version: 13\r\n", b""), NO_HANDSHAKE),
    "two versions": (handshake("sec-websocket-version: 8\r\n"), NO_HANDSHAKE),
    "a long key": (handshake().replace(b"dGhl", b"dGhlAAAA"), NOT_HTTP),
    "no key of WebSockets": (handshake().replace(b"sec-websocket-key", b"x"), NOT_HTTP),
    "two keys": (handshake(KEY_HEADER), NOT_HTTP),
    "200 headers of a handshake": (handshake("x: y\r\n" * 200), TOO_LARGE),
    "a long header of a handshake": (handshake(f"x: {'y' * 9000}\r\n"), TOO_LARGE),
    "a long target": (handshake(target="/v1/live?" + "x" * 9000), TOO_LARGE),
    "a control character": (handshake("x: \x01\r\n"), NOT_HTTP),
    "two upgrades": (handshake("upgrade: h2c\r\nupgrade: websocket\r\n"), NOT_HTTP),
    "two origins": (handshake("origin: http://localhost\r\norigin: http://localhost\r\n"), NOT_HTTP),
    "a protocol that is none": (handshake("sec-websocket-protocol: a b\r\n"), NOT_HTTP),
    "half a quotation": (handshake().replace(b"connection: upgrade", b'connection: upgrade, ,"'), NOT_HTTP),
}


@pytest.mark.parametrize(("sent", "expected"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_or_is_not_allowed_gets_one_problem(
    strict: Served, sent: bytes, expected: tuple[int, str]
) -> None:
    status, code = expected
    with connected(strict, sent) as connection:
        head, _, body = read_until(connection, b"}").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert PROBLEM.encode() in head
        if b"upgrade" not in sent:  # the last answer of its connection
            assert read_all(connection) == b""
            assert b"\r\nconnection: close" in head.lower()
        assert (b"\r\nsec-websocket-version: 13\r\n" in head.lower()) == (status == 426)
        assert not code or json.loads(body)["code"] == code
        assert strict.get("/health/live").status_code == 200
    eventually(lambda: not strict.connections)


@pytest.mark.parametrize(
    "sent", [handshake().replace(b"HTTP/1.1", b"HTTP/1.0"), handshake().replace(b"GET", b"DELETE")]
)
def test_a_handshake_of_another_method_or_version_is_a_request(served: Served, sent: bytes) -> None:
    with connected(served, sent) as connection:
        assert connection.recv(13) == b"HTTP/1.1 404 "


@pytest.mark.parametrize("sent", [raw_request(b"12345678")[:-1], HALF])
def test_a_request_that_ends_early_is_answered_with_a_problem(served: Served, sent: bytes) -> None:
    answer = exchange(served, sent, is_all=True)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert PROBLEM.encode() in answer


def test_128_headers_are_read(served: Served) -> None:
    with connected(served, raw_request(path="/health/live", method="GET", headers="a:b\r\n" * 125)) as connection:
        assert connection.recv(15) == OK


def test_a_refused_handshake_is_counted(serve: Serve) -> None:
    served = serve()
    with connected(served, handshake(f"x: {'y' * 9000}\r\n")) as connection:
        assert connection.recv(12) == b"HTTP/1.1 431"
    assert served.metrics()["tickrt_http_requests_total{method=GET}{route=unmatched}{status=431}"] == 1


async def never_accept(websocket: WebSocket) -> None:
    await websocket.receive()
    await websocket.receive()


def test_headers_have_a_deadline(serve: Serve) -> None:
    served = serve(header_timeout_s=0.2, keep_alive_s=600)
    served.app.add_api_websocket_route("/test/never", never_accept)
    for sent in (b"", HALF, handshake(target="/test/never")):
        started_s = time.monotonic()
        assert exchange(served, sent) == b""
        assert time.monotonic() - started_s > 0.1
    with connected(served, LIVE) as connection:
        assert read_until(connection, b"}").startswith(OK)
        connection.sendall(HALF)
        assert read_all(connection) == b"", "the second request has the same one"
    eventually(lambda: not served.connections)
    served.tick_s = 0.1
    assert served.post(steps=5).status_code == 200, "it does not bound the response"


def clients(stack: ExitStack, served: Served, num: int, sent: bytes = b"", **options: Any) -> list[socket.socket]:
    """As many clients that stay."""
    return [stack.enter_context(connected(served, sent, **options)) for _ in range(num)]


def is_answered(client: socket.socket) -> bool:
    client.sendall(LIVE)
    return client.recv(15) == OK


def test_a_handshake_without_an_answer_makes_room(serve: Serve) -> None:
    served = serve(max_connections=2, header_timeout_s=600.0)
    served.app.add_api_websocket_route("/test/never", never_accept)
    with ExitStack() as stack:
        waiting = clients(stack, served, 2, handshake(target="/test/never"))
        eventually(lambda: [isinstance(each, WebSocketProtocol) for each in served.connections] == [True] * 2)
        idle = clients(stack, served, 4)
        assert [read_all(connection) for connection in waiting] == [b"", b""]
        assert is_answered(idle[0])
    eventually(lambda: not served.connections)


def test_the_address_with_the_most_idle_connections_makes_room(serve: Serve) -> None:
    served = serve(max_connections=2)
    with ExitStack() as stack:
        (other,) = clients(stack, served, 1, source="127.0.0.2")
        eventually(lambda: len(served.connections) == 1)
        idle = clients(stack, served, 8)
        assert [read_all(connection) for connection in idle[:5]] == [b""] * 5
        assert is_answered(other)


def test_of_addresses_with_few_idle_connections_the_longest_idle_makes_room(serve: Serve) -> None:
    """A newcomer is not the one that goes because its address has two, and others one each."""
    served = serve(max_connections=32)
    with ExitStack() as stack:
        others = [clients(stack, served, 1, source=f"127.0.1.{number}")[0] for number in range(1, 65)]
        eventually(lambda: len(served.connections) == 64)
        newcomers = clients(stack, served, 2)
        assert [read_all(connection) for connection in others[:2]] == [b"", b""]
        assert all(map(is_answered, newcomers))


def test_beyond_the_limit_the_connections_idle_for_the_longest_time_are_closed(serve: Serve) -> None:
    served = serve(max_connections=2)
    with ExitStack() as stack:
        busy = stack.enter_context(held(served))
        idle = clients(stack, served, 6)
        assert [read_all(connection) for connection in idle[:3]] == [b""] * 3
        assert len(served.connections) == 4
        assert is_answered(idle[5])
        served.resume()
        assert busy.recv(15) == OK
    eventually(lambda: not served.connections)
    assert served.post().status_code == 200


def test_a_connection_that_was_refused_makes_room(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.asgi.connection.LINGER_S", 600.0)
    served = serve(api_key="k", max_connections=1)
    with ExitStack() as stack:
        refused = clients(stack, served, 2, CHUNKED)
        assert [read_until(each, b"}")[:13] for each in refused] == [b"HTTP/1.1 401 "] * 2
        assert served.get("/health/live").status_code == 200
        assert read_all(refused[0]) == b""  # and not after LINGER_S


def test_a_connection_that_was_refused_stays_open_while_its_client_may_still_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closed at once, with a body that is on its way, the response would be lost."""
    monkeypatch.setattr("server.asgi.connection.LINGER_S", 600.0)
    with connected(serve(api_key="k")) as connection:
        connection.sendall(CHUNKED)
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 401 ")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_a_page_that_is_not_read_makes_room(serve: Serve) -> None:
    served = serve(max_connections=1, send_buffer_bytes=4096, send_timeout_s=600.0, api_key="k")
    with ExitStack() as stack:
        pages = clients(stack, served, 2, GET_BUNDLE, buffer_bytes=4096)
        eventually(lambda: num_waiting(served) == 2)
        assert served.get("/v1/models", headers={"x-api-key": "k"}).status_code == 200
        assert len(read_all(pages[0])) < len(static_files()[BUNDLE.removeprefix("/page/")].content)


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_turn_of_the_event_loop_takes_little_of_a_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_tls: bool
) -> None:
    sizes: dict[type, list[int]] = {BoundedProtocol: [], WebSocketProtocol: []}
    for kind, seen in sizes.items():
        watch_reads(monkeypatch, kind, seen)
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


def watch_reads(monkeypatch: pytest.MonkeyPatch, kind: type, seen: list[int]) -> None:
    original = kind.data_received  # type: ignore[attr-defined]
    monkeypatch.setattr(kind, "data_received", lambda self, data: (seen.append(len(data)), original(self, data)))


@pytest.mark.parametrize(("size", "status"), [(1, 400), (4, 400), (8, 200)])
def test_a_body_whose_framing_is_larger_than_its_chunks_is_refused(served: Served, size: int, status: int) -> None:
    chunk = b"%x\r\n%b\r\n" % (size, b" " * size)
    with connected(served) as connection, suppress(ConnectionError):
        connection.sendall(CHUNKED + chunk * (200_000 // len(chunk)))
        connection.sendall(b'f\r\n{"prompt": "a"}\r\n0\r\n\r\n')
        answer = read_until(connection, b"}" if status == 400 else b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert (PROBLEM.encode() in answer) == (status == 400)


@pytest.mark.parametrize("chunk", [b"1\r\n \r\n" * 2**14, b"10000\r\n" + bytes(2**16) + b"\r\n"])
def test_next_to_nothing_is_read_after_a_refusal(serve: Serve, chunk: bytes) -> None:
    served = serve(api_key="k", max_connections=1)
    with connected(served) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        connection.sendall(CHUNKED)
        assert read_until(connection, b"}").startswith(b"HTTP/1.1 401 ")
        assert served.get("/health/live").status_code == 200
        sent = 0
        with suppress(OSError):
            while sent < 2**26:
                sent += connection.send(chunk)
    assert sent < 2**22


def test_connections_are_kept_alive_and_closed_when_idle(serve: Serve) -> None:
    served = serve(keep_alive_s=1, header_timeout_s=600.0)
    with connected(served) as connection:
        for _ in range(3):
            connection.sendall(LIVE)
            assert read_until(connection, b"}").startswith(OK)
            assert len(served.connections) == 1
        assert read_all(connection) == b""
    eventually(lambda: not served.connections)


def test_a_closing_connection_ends_although_the_client_does_not_read(serve: Serve) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=600.0, drain_s=0.0)
    body = b'{"prompt": "a", "seconds": 1, "stream": false}'
    with connected(served, raw_request(body, headers="connection: close\r\n"), buffer_bytes=4096):
        eventually(lambda: served.metrics()["tickrt_generations_total{outcome=ok}"] == 1)
        eventually(lambda: len(served.connections) == 1)
        eventually(lambda: not served.connections)


def test_a_client_that_sent_more_than_its_request_and_leaves_is_noticed(serve: Serve) -> None:
    served = serve(depth=1, queue=40)
    served.pause()
    with ExitStack() as stack:
        leaving = clients(stack, served, 41, raw_request(b'{"prompt": "a", "steps": 100}') + b"x")
        eventually(lambda: served.service.admission.num_pending == 41)
        for connection in leaving:
            connection.sendall(b"y")
    eventually(lambda: not served.service.admission.permits)
    served.resume()
    eventually(lambda: not served.service.admission.num_pending)
    counted = served.metrics()
    assert counted["tickrt_generations_total{outcome=cancelled}"] == 41
    assert counted["tickrt_queue_depth"] == counted["tickrt_generations_in_flight"] == 0


def test_pipelined_requests_are_answered_in_order(serve: Serve) -> None:
    served = serve()
    with held(served, raw_request(b'{"prompt": "a", "response_format": "pcm", "stream": false}')) as connection:
        connection.sendall(LIVE + raw_request(path="/nowhere", method="GET"))
        connection.shutdown(socket.SHUT_WR)
        served.resume()
        answer = read_all(connection)
    assert re.findall(rb"HTTP/1.1 ([2-5]..)", answer) == [b"200", b"200", b"404"]


def test_a_client_that_sends_much_behind_its_request_is_disconnected(serve: Serve) -> None:
    with held(served := serve()) as connection:
        with suppress(ConnectionError):
            connection.sendall(bytes(16 * MAX_PIPELINED_BYTES))
        eventually(lambda: not served.connections)


@pytest.mark.parametrize("stream", ["true", "false"])
def test_a_half_closed_client_gets_its_response(serve: Serve, stream: str) -> None:
    served = serve()
    body = f'{{"prompt": "a", "response_format": "pcm", "stream": {stream}}}'.encode()
    with held(served, raw_request(body), is_all=True) as connection:
        assert connection.recv(25) == PROBE
        served.resume()
        head, _, content = read_all(connection).partition(b"HTTP/1.1 200 OK\r\n")
    assert len(content) > 1000
    assert head.count(b"HTTP/1.1") == head.count(PROBE)
    eventually(lambda: not served.connections)


def test_a_half_closed_client_is_probed_until_it_leaves(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_PROBE_S", FIRST_PROBE_S)
    with held(served := serve(), is_all=True) as connection, connection.makefile("rb") as received:
        assert received.read(12 * len(PROBE)) == 12 * PROBE  # doubling, the last would come after minutes
    eventually(lambda: not served.service.admission.permits)


def test_a_client_that_does_not_read_loses_its_connection_on_every_route(serve: Serve) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=1.0)
    with connected(served, 200 * raw_request(path="/metrics", method="GET"), buffer_bytes=4096):
        eventually(lambda: num_waiting(served))
        eventually(lambda: not served.connections)
    assert served.metrics()["tickrt_http_requests_total{method=GET}{route=/metrics}{status=200}"] < 200


@pytest.mark.parametrize(
    "sent",
    [
        GET_BUNDLE,
        raw_request(path="/openapi.json", method="GET"),
        raw_request(b'{"prompt": "a", "seconds": 10}'),
        raw_request(b'{"prompt": "a", "seconds": 10, "stream": false}'),
    ],
)
def test_little_of_a_response_waits_for_its_client(serve: Serve, sent: bytes) -> None:
    served = serve(send_buffer_bytes=4096, send_timeout_s=600.0, drain_s=0.0)
    with connected(served, sent, buffer_bytes=4096) as connection:
        eventually(lambda: num_waiting(served))
        (waiting,) = served.connections
        assert waiting.transport.get_write_buffer_size() < 3 * WRITE_BYTES
        assert connection.recv(15) == OK


def num_waiting(served: Served) -> int:
    """How many responses wait for their clients."""
    return sum(isinstance(item, BoundedProtocol) and item.flow.write_paused for item in served.connections)


def test_a_response_in_parts_is_whole(served: Served) -> None:
    headers = {"accept-encoding": "identity"}
    with served.client() as client, client.stream("GET", BUNDLE, headers=headers) as response:
        content = b"".join(response.iter_raw())
    assert len(content) == int(response.headers["content-length"]) > 10 * WRITE_BYTES
    assert content == static_files()[BUNDLE.removeprefix("/page/")].content


def test_without_the_extension_an_abort_raises() -> None:
    with pytest.raises(ConnectionAbortedError):
        abort_of({})(True)


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
