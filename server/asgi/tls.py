"""TLS of the server's socket, for https and wss: its certificate, and connections until their handshake is complete."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from uvicorn import Config
from uvicorn.server import ServerState

from runtime.errors import ConfigError
from server.asgi.connection import BoundedProtocol
from server.asgi.fair_reads import BoundedReads, FairTransport

FIX = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 365 -subj /CN=localhost"

# About the CPU time of a handshake.
HANDSHAKE_S = 0.002


def with_tls(http: type[BoundedProtocol], context: ssl.SSLContext) -> type[asyncio.Protocol]:
    """The protocol class for a uvicorn Config without TLS of its own: `http` below TLS."""
    return type("TickTlsProtocol", (TlsHandshake,), {"http": http, "context": context})


class TlsHandshake(BoundedReads):
    """A TCP connection until its TLS handshake is complete, from when on it is the HTTP protocol's.

    The handshake waits for the connection's turn, and has the time that the headers of a request have. Until it is
    complete the connection has a place among those without a request.
    """

    http: ClassVar[type[BoundedProtocol]]
    context: ClassVar[ssl.SSLContext]

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: object) -> None:
        self._make_http = partial(self.http, config, server_state, app_state)
        self._connections: set[Any] = server_state.connections
        self._task: asyncio.Task[None] | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._tcp, self.transport = transport, FairTransport(transport, self.http.reads)
        self._connections.add(self)
        self.http.idle.add(self)
        self.http.idle.make_room(len(self._connections))
        self.transport.wait_for_turn()

    def handle_events(self) -> None:
        """Start the handshake, in the connection's turn."""
        self.transport.charge(HANDSHAKE_S)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands())

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived behind the handshake, before `_shake_hands` went on."""
        self._received += self._buffer[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._leave()

    def shutdown(self) -> None:
        """Close because the server stops."""
        self.transport.abort()

    async def _shake_hands(self) -> None:
        loop, transport = asyncio.get_running_loop(), None
        with suppress(OSError):
            transport = await loop.start_tls(
                self._tcp, self, self.context, server_side=True, ssl_handshake_timeout=self.http.header_timeout_s
            )
        self._leave()
        if transport is None:  # the client left
            return
        protocol = self._make_http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._received:
            protocol.transport.take(self._received)

    def _leave(self) -> None:
        self._connections.discard(self)
        self.http.idle.discard(self)


def tls_context(certificate: Path, private_key: Path | None) -> ssl.SSLContext:
    """The context of a certificate (chain) and its key, both PEM. Raises ConfigError."""
    for path in (certificate, private_key or certificate):
        _check_readable(path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    try:
        # The empty password turns OpenSSL's prompt for the one of an encrypted key into an error.
        context.load_cert_chain(certificate, private_key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_explain(error, certificate, private_key or certificate), fix=FIX) from None
    return context


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", fix=FIX) from None


def _explain(error: Exception, certificate: Path, private_key: Path) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return f"{private_key} is not the key of {certificate}"
    return f"{certificate} and {private_key} are not a PEM certificate and its key without a password ({reason})"
