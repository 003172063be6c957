"""WebSocket connections that several threads use."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from helpers.tls import make_certificate
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tickrt.connections import Connection

ECHO = Subprotocol("echo")


async def echo(connection: ServerConnection) -> None:
    """Send back what comes, until it is "end"."""
    async for message in connection:
        if message == "end":
            return
        await connection.send(message)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of an echo with TLS, whose certificate is trusted."""
    certificate, key = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    @asynccontextmanager
    async def serving() -> AsyncIterator[Server]:
        async with serve(echo, "127.0.0.1", 0, ssl=context, subprotocols=[ECHO]) as server:
            yield server

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving()) as server:
        yield f"wss://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"


def connection_to(url: str, **options: float) -> Connection:
    times = {"open_s": 60.0, "close_s": 60.0, **options}
    return Connection(url, headers={}, subprotocol=ECHO, max_bytes=2**20, **times)


def test_one_thread_sends_while_another_receives(url: str) -> None:
    messages = [bytes([number]) * 999 for number in range(100)]
    with connection_to(url) as connection, ThreadPoolExecutor(1) as sender:
        sent = sender.map(connection.send, messages)
        assert [connection.recv(60.0) for _ in messages] == messages
        list(sent)


def test_what_comes_after_a_time_out_is_received(url: str) -> None:
    with connection_to(url) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(0.01)
        connection.send("later")
        assert connection.recv(60.0) == "later"


def test_the_end_is_raised_by_whoever_uses_it(url: str) -> None:
    with connection_to(url) as connection:
        connection.send("end")
        with pytest.raises(ConnectionClosed):
            connection.recv(60.0)
        with pytest.raises(ConnectionClosed):
            connection.send("more")


def test_who_waits_for_a_message_hears_of_the_close_by_another_thread(url: str) -> None:
    with ThreadPoolExecutor(1) as receiver:
        with connection_to(url) as connection:
            receiving = receiver.submit(connection.recv, 60.0)
        with pytest.raises(ConnectionClosed):
            receiving.result()


def test_an_untrusted_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path / "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with pytest.raises(ssl.SSLCertVerificationError), connection_to(url):
        pass
