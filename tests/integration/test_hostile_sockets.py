"""A stream that plays while other clients hold, stall and abandon their connections."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest
from helpers.http_harness import Served, eventually, raw_request

MAX_GAP_S = 0.5
NEIGHBOUR = ("127.0.0.2", 0)


@contextmanager
def client(served: Served, data: bytes, source: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[socket.socket]:
    """A client with a small receive buffer that has sent `data`."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.bind(source)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(data)
        yield connection


def generation(**body: object) -> bytes:
    return raw_request(json.dumps({"prompt": "a", "steps": 8, **body}).encode(), headers="connection: close\r\n")


def largest_gap_s(served: Served) -> float:
    """The longest time without a byte of a stream, from its first to its last."""
    gaps = []
    with client(served, generation(seconds=300), NEIGHBOUR) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        before_s = time.monotonic()
        while connection.recv(65536):
            gaps.append(time.monotonic() - before_s)
            before_s = time.monotonic()
    return max(gaps)


def attack(served: Served, stack: ExitStack) -> None:
    """Idle connections, bodies that stall, clients that do not read, and clients that leave."""
    for _ in range(300):
        stack.enter_context(client(served, b""))
    for _ in range(8):
        stack.enter_context(client(served, raw_request(bytes(2**20), path="/v1/sources")[: 2**19]))
    for _ in range(8):
        stack.enter_context(client(served, generation(seconds=60)))
    for _ in range(40):
        with client(served, generation(seconds=60) + b"x") as leaving:
            leaving.sendall(b"y")


@pytest.mark.slow
def test_a_stream_does_not_pause_while_other_clients_abuse_their_connections(serve: Callable[..., Served]) -> None:
    served = serve(depth=4, queue=36, client_in_flight=None, send_timeout_s=60.0, send_buffer_bytes=4096)
    served.tick_s = 0.01
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        gap_s = pool.submit(largest_gap_s, served)
        attack(served, stack)
        assert gap_s.result() < MAX_GAP_S
        served.tick_s = 0.0
        eventually(lambda: not served.service.admission.num_pending)
    eventually(lambda: not served.service.admission.permits)
