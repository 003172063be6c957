"""WebSockets below the routes: a protocol that bounds closing and what clients send, handshakes refused as problems,
subprotocols.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from starlette.types import Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers as HandshakeHeaders
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response

from runtime.live.protocol.messages import MAX_MESSAGES_PER_S
from server.asgi.connection import ABORT_EXTENSION, CHARGE_EXTENSION
from server.asgi.fair_reads import BoundedReads, FairTransport, charged
from server.asgi.problems import MEDIA_TYPE, ProblemError
from server.asgi.shares import RateLimit

GOING_AWAY = 1001
INVALID_DATA = 1007
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013
SUBPROTOCOL_HEADER = "Sec-WebSocket-Protocol"
# Fragments of a message: at least this large where they are no more than so many, smaller ones count as messages do.
FRAGMENT_BYTES, MAX_FRAGMENTS = 1024, 4096
# Messages of which a part has arrived, over all connections, without those up to the first size.
SMALL_UNFINISHED_BYTES, MAX_UNFINISHED_BYTES = 64 * 1024, 64 * 2**20


class WebSocketProtocol(WebSocketsSansIOProtocol, BoundedReads):
    """One WebSocket connection. Endpoints get `abort(flush)` as the scope's extension "tickrt.abort".

    An endpoint that ends without closing it closes it with 1011, the server's shutdown with 1001. A client that does
    not read cannot keep a closing connection open for more than FLUSH_S. What reaches no endpoint is bounded here: more
    than MAX_MESSAGES_PER_S pings, pongs and small fragments, or MAX_FRAGMENTS of one message, close with 1008; where
    unfinished messages of all connections have more than MAX_UNFINISHED_BYTES, the longest closes with 1013.
    `on_opened` is called once the handshake is complete or the connection has ended.
    """

    transport: FairTransport  # type: ignore[assignment]

    def __init__(self, *args: Any, on_opened: Callable[[], None] = lambda: None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.debug = False  # its debug log has the handshake with the API key
        self._on_opened = on_opened
        self._has_failed = self._is_open = False
        self._small = RateLimit(MAX_MESSAGES_PER_S, 1.0)
        self._unfinished_bytes = 0
        self._inner_app: Any = self.app
        self.app = self._run_app

    def shutdown(self) -> None:
        """Close because the server stops."""
        if not self.handshake_complete:
            super().shutdown()
            return
        if not self.close_sent and not self.transport.is_closing():
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
            self._send_close(GOING_AWAY)
        self._end_writing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The connection was one of HTTP until now."""
        super().connection_made(transport)
        transport.set_write_buffer_limits()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._on_opened()
        super().connection_lost(exc)
        self.transport.end()

    def data_received(self, data: bytes) -> None:
        """Bytes of the handshake, or of frames."""
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_initiated:
            self._refuse_handshake(str(self.conn.handshake_exc))
        elif self._unfinished_bytes > SMALL_UNFINISHED_BYTES:
            self._bound_unfinished()

    def handle_connect(self, event: Request) -> None:
        """Take the handshake; what comes behind it waits for its answer."""
        if self.conn.accept(event).status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return
        self.transport.pause_reading()
        super().handle_connect(event)

    def handle_ping(self) -> None:
        """Answer a ping."""
        if self._takes_control():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """The client has answered a ping."""
        if self._takes_control():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a further fragment of a message."""
        if self._takes(event):
            super().handle_cont(event)

    def handle_text(self, event: Frame) -> None:
        """Take a text or its first fragment."""
        if self._takes(event):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Take a binary message or its first fragment."""
        if self._takes(event):
            super().handle_bytes(event)

    def send_receive_event_to_app(self) -> None:
        """A message is complete."""
        self._unfinished_bytes = 0
        if self.curr_msg_data_type == "text" and not is_utf8(b"".join(self.frames)):
            self._fail(INVALID_DATA, "a text is not valid UTF-8")
            return
        super().send_receive_event_to_app()

    def handle_close(self, event: Frame) -> None:
        """End the connection once both sides have closed."""
        super().handle_close(event)
        if self.close_sent:
            self.transport.close()

    async def send(self, message: Any) -> None:
        """Take a message of the endpoint's. Raises ClientDisconnected where the connection was closed below it."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)
        if self.handshake_complete and not self._is_open:
            self._is_open = True
            self.transport.open_websocket()
            self._on_opened()
            self.transport.resume_reading()

    def eof_received(self) -> None:
        """The client sends no more."""
        self.transport.parse_rest()

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"] |= {ABORT_EXTENSION: self.abort, CHARGE_EXTENSION: self.transport.charge}
        try:
            await charged(self._inner_app(scope, receive, send), self.transport.charge)
        finally:
            if self.initial_response is not None and self.close_sent:
                self.handshake_complete = True  # it was refused
            if self.handshake_complete and not self.close_sent and not self.transport.is_closing():
                self._send_close(INTERNAL_ERROR)
            self.transport.abort_later()

    def _takes_control(self) -> bool:
        if not self.frames:
            self._unfinished_bytes = 0
        return self._count()

    def _takes(self, event: Frame) -> bool:
        """Whether a frame of a message is taken: the endpoint bounds messages, but not fragments and what it left."""
        if len(self.frames) >= MAX_FRAGMENTS:
            self._fail(POLICY_VIOLATION, f"a message has more than {MAX_FRAGMENTS} fragments")
        is_fragment = event.opcode is Opcode.CONT or not event.fin
        if self.close_sent or (is_fragment and len(event.data) < FRAGMENT_BYTES):
            return self._count()
        return True

    def _count(self) -> bool:
        """Count what costs time and has next to nothing in it; whether that is still within the limit."""
        if not self._small.take():
            self._fail(POLICY_VIOLATION, f"more than {MAX_MESSAGES_PER_S} control frames and small fragments a second")
        return not self._has_failed

    def _bound_unfinished(self) -> None:
        others = [item for item in self.connections if isinstance(item, WebSocketProtocol)]
        if sum(item._unfinished_bytes for item in others) > MAX_UNFINISHED_BYTES:
            longest = max(others, key=lambda item: item._unfinished_bytes)
            longest._fail(TRY_AGAIN_LATER, "too many long messages are being read")

    def _fail(self, code: int, reason: str) -> None:
        """Close the connection and read no more of it."""
        if self._has_failed:
            return
        self._has_failed, self._unfinished_bytes, self.frames = True, 0, []
        self.logger.warning("WebSocket of %s: %s", self.client[0] if self.client else "-", reason)
        if self.close_sent or not self.handshake_complete:
            self.transport.abort()
            return
        self.stop_keepalive()
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._send_close(code, reason)
        self.transport.pause_reading()
        self.read_paused = False  # else the endpoint's next receive() would read on
        self._end_writing()

    def _end_writing(self) -> None:
        """Close after what was written: with something of the client unread, a close resets, and loses that."""
        self.transport.write_eof()
        self.transport.abort_later()

    def _refuse_handshake(self, what: str) -> None:
        """Answer a handshake that is none with a problem document."""
        self.logger.warning("WebSocket of %s: %s", self.client[0] if self.client else "-", what)
        self.conn.data_to_send()
        body = ProblemError(400, "malformed_http", what).document().model_dump_json(exclude_none=True).encode()
        headers = {"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"}
        status = HTTPStatus.BAD_REQUEST
        self.transport.write(Response(status.value, status.phrase, HandshakeHeaders(headers), body).serialize())
        self.transport.close()

    def _send_close(self, code: int, reason: str = "") -> None:
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True


def is_utf8(data: bytes) -> bool:
    """Whether the bytes are a text in UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def choose_subprotocol(offered: Sequence[str], supported: str) -> str | None:
    """`supported` if the client offers it; None if it offers none. Raises ProblemError 400 if it offers only others.

    The problem is sent as the handshake's answer: browsers close a connection whose subprotocol they did not offer.
    """
    if not offered:
        return None
    if supported in offered:
        return supported
    raise ProblemError(
        400,
        "unsupported_subprotocol",
        f"the client offers the subprotocols {', '.join(offered)[:100]!r}, this path speaks {supported!r}",
        fix=f"offer {supported} in {SUBPROTOCOL_HEADER}, or none",
    )
