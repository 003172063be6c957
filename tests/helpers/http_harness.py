"""A real server on a loopback port in a thread of the test process, its fixtures, and clients for it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx
import prometheus_client.parser
import pytest
import websockets.sync.client
from fastapi import FastAPI
from websockets.exceptions import InvalidStatus

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from server.app import create_app
from server.asgi.openapi import GenerationBody, body_model
from server.config import ServerSettings
from server.process import TickServer, open_socket, url_of
from server.service import service
from server.service.service import Service

GENERATIONS = "/v1/audio/generations"
PROBLEM = "application/problem+json"
TIMEOUT_S = 60.0
# Reading the machine's certificates takes longer than most requests, and is not needed without TLS.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

_bodies: list[tuple[float, Bundle | None, type[GenerationBody]]] = []


def _known_body_model(max_seconds: float, bundle: Bundle | None = None) -> type[GenerationBody]:
    """`body_model`, made once for equal arguments: a server makes two, which takes longer than most tests."""
    for known in _bodies:
        if known[:2] == (max_seconds, bundle):
            return known[2]
    _bodies.append((max_seconds, bundle, body_model(max_seconds, bundle)))
    return _bodies[-1][2]


vars(service)["body_model"] = _known_body_model


@dataclass
class Served:
    """A running server. `pause()` stops the tick loop between two ticks; `tick_s` is added to every tick."""

    url: str
    app: FastAPI
    server: TickServer
    tick_s: float = 0.0
    event_loop: asyncio.AbstractEventLoop = field(init=False)
    _running: threading.Event = field(default_factory=threading.Event)

    @property
    def service(self) -> Service:
        service: Service = self.app.state.service
        return service

    @property
    def pipeline(self) -> Pipeline:
        return self.service.ready_pipeline()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def connections(self) -> list[Any]:
        """Those that are open, by their protocols."""
        return list(self.server.server_state.connections)

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, **{"timeout": TIMEOUT_S, "verify": NO_CERTIFICATES, **options})

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request on a connection of its own."""
        with self.client() as client:
            return client.request(method, path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        """One request on a connection of its own."""
        return self.send("GET", path, **options)

    def post(self, **body: Any) -> httpx.Response:
        """One generation, its whole body."""
        return self.send("POST", GENERATIONS, json={"prompt": "a", "seed": 1, **body})

    def card(self, response: httpx.Response) -> Any:
        """What the server tells of a generation when it is asked for it."""
        asked = self.get(f"{GENERATIONS}/{response.headers['x-generation-id']}")
        assert asked.status_code == 200, asked.text
        return asked.json()

    def pause(self) -> None:
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def observe(self, _: object) -> None:
        if self.tick_s:
            time.sleep(self.tick_s)
        self._running.wait(TIMEOUT_S)

    def metrics(self) -> dict[str, float]:
        """Every sample: "name{label=value}" -> value."""
        with self.client() as client:
            text = client.get("/metrics").text
        return {
            sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
            for family in prometheus_client.parser.text_string_to_metric_families(text)
            for sample in family.samples
        }


Serve = Callable[..., Served]


@contextmanager
def serving(deployment: Deployment, **settings: Any) -> Iterator[Served]:
    """Serve a built deployment until the block ends; all clients of a test have one address, so it has no limit."""
    options = ServerSettings(**{"port": 0, "drain_s": 0.5, "client_in_flight": 0, **settings})
    app = create_app(lambda: _started(open_pipeline(deployment)), options)
    listener = open_socket(options.host, options.port, options.send_buffer_bytes)
    server = TickServer(app, options)
    served = Served(url_of(listener, options.scheme), app, server)
    served.resume()

    async def serve() -> None:
        served.event_loop = asyncio.get_running_loop()
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        eventually(lambda: served.service.pipeline is not None or served.service.failure)
        served.pipeline.loop.observers.append(served.observe)
        yield served
    finally:
        served.resume()
        server.drain()
        thread.join(TIMEOUT_S)
        listener.close()
    assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def tiny(built: Callable[..., Deployment]) -> Callable[..., Deployment]:
    """`tiny(depth=2, queue=3)`: the shared engines with that many slots and queue places."""

    def sized(*, depth: int = 4, queue: int = 8) -> Deployment:
        deployment = built(max_rows=16)
        runtime = deployment.runtime.model_copy(update={"depth": depth, "queue": queue})
        return deployment.model_copy(update={"runtime": runtime})

    return sized


@pytest.fixture
def serve(tiny: Callable[..., Deployment]) -> Iterator[Serve]:
    """`serve(depth=2, queue=3, api_key="k")`: a server for this test."""
    with ExitStack() as running:

        def start(*, depth: int = 4, queue: int = 8, **settings: Any) -> Served:
            return running.enter_context(serving(tiny(depth=depth, queue=queue), **settings))

        yield start


@pytest.fixture(scope="module")
def served(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    """One server for all tests of a module that do not change its state."""
    with serving(tiny()) as server:
        yield server


def _started(pipeline: Pipeline) -> Pipeline:
    pipeline.start()
    return pipeline


def eventually(condition: Callable[[], Any], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until `condition` is true; fail the test after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not become true in time"
        time.sleep(0.002)


def sent_head(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The head of a response with these headers, as h11 sends it. Raises LocalProtocolError where one is not valid."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.next_event()
    return connection.send(h11.Response(status_code=200, headers=headers)) or b""


def problem(response: httpx.Response, status: int, code: str = "") -> dict[str, Any]:
    """The problem document of a response, after checking the members that all of them have."""
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM)
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["type"] == f"urn:tickrt:problem:{document['code']}"
    assert document["title"]
    assert document["detail"]
    assert response.headers["x-request-id"] in document["instance"]
    if code:
        assert document["code"] == code
    return document


def open_websocket(served: Served, path: str, **options: Any) -> websockets.sync.client.ClientConnection:
    """A WebSocket; use it in a with statement."""
    options = {"open_timeout": TIMEOUT_S, "proxy": None, "compression": None, **options}
    return websockets.sync.client.connect(served.url.replace("http", "ws", 1) + path, **options)


def refused_websocket(
    served: Served, path: str, *, headers: dict[str, str] | None = None, **options: Any
) -> tuple[int, str]:
    """The status and the problem's code of a handshake that the server refuses."""
    with pytest.raises(InvalidStatus) as error, open_websocket(served, path, additional_headers=headers, **options):
        pass
    response = error.value.response
    assert response.headers["content-type"] == PROBLEM
    document = json.loads(response.body)
    assert response.headers["x-request-id"] in document["instance"]
    return response.status_code, document["code"]


def handshake(headers: str = "", target: str = "/v1/live", host: str = "localhost") -> bytes:
    """The bytes that open a WebSocket."""
    upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    return f"GET {target} HTTP/1.1\r\nhost: {host}\r\n{upgrade}{key}{headers}\r\n".encode()


TEXT, CONTINUATION, PING, PONG = 1, 0, 9, 10


def frame(opcode: int, payload: bytes = b"", *, is_last: bool = True) -> bytes:
    """A frame of a WebSocket's client, masked with zeros."""
    size = bytes([0xFE]) + len(payload).to_bytes(2, "big") if len(payload) > 125 else bytes([0x80 | len(payload)])
    return bytes([opcode | 0x80 * is_last]) + size + bytes(4) + payload


def raw_request(body: bytes = b"", *, path: str = GENERATIONS, method: str = "POST", headers: str = "") -> bytes:
    """An HTTP/1.1 request as bytes."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n{headers}\r\n".encode() + body


@contextmanager
def connected(
    served: Served, sent: bytes = b"", *, source: str = "127.0.0.1", buffer_bytes: int = 0
) -> Iterator[socket.socket]:
    """A raw TCP connection of an address, which has sent this. buffer_bytes: what waits to be read, if few."""
    with socket.socket() as connection:
        if buffer_bytes:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        connection.settimeout(TIMEOUT_S)
        connection.bind((source, 0))
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(sent)
        yield connection


def exchange(served: Served, sent: bytes, *, is_all: bool = False) -> bytes:
    """All that a server answers until it closes the connection. is_all: it is told that no more is sent."""
    with connected(served, sent) as connection:
        if is_all:
            connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


@contextmanager
def held(served: Served, sent: bytes = b"", *, is_all: bool = False) -> Iterator[socket.socket]:
    """A client whose generation waits until `served.resume()`. is_all: it has told that it sends no more."""
    served.pause()
    before = served.service.admission.num_pending
    with connected(served, sent or raw_request(b'{"prompt": "a"}')) as connection:
        if is_all:
            connection.shutdown(socket.SHUT_WR)
        eventually(lambda: served.service.admission.num_pending == before + 1)
        yield connection


def read_until(connection: socket.socket, end: bytes) -> bytes:
    """What arrives, until `end` is in it or the connection is closed."""
    received = b""
    while end not in received and (part := connection.recv(65536)):
        received += part
    return received


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    parts = []
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)
