"""WebSockets below the routes: a protocol whose closing is bounded, handshakes refused as problems, subprotocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from server.asgi.connection import ABORT_EXTENSION, FLUSH_S
from server.asgi.problems import REQUEST_ID_HEADER, ProblemError, problem_response, request_id_from

GOING_AWAY = 1001
INTERNAL_ERROR = 1011
SUBPROTOCOL_HEADER = "Sec-WebSocket-Protocol"


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket connection. Endpoints get `abort(flush)` as the scope's extension "tickrt.abort".

    An endpoint that ends without closing it closes it with 1011, the server's shutdown with 1001. A client that does
    not read cannot keep a closing connection open for more than FLUSH_S.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn.debug = False  # its debug log has the handshake with the API key
        self._inner_app: Any = self.app
        self.app = self._run_app

    def abort(self, flush: bool) -> None:
        """Close the connection without a closing handshake; with `flush`, send first what was already written."""
        if not flush:
            self.transport.abort()
        self.transport.close()
        self._limit_closing()

    def shutdown(self) -> None:
        """Close because the server stops."""
        if not self.handshake_complete:
            super().shutdown()
            return
        if not self.close_sent and not self.transport.is_closing():
            self.stop_keepalive()
            self.queue.put_nowait({"type": "websocket.disconnect", "code": GOING_AWAY})
            self._send_close(GOING_AWAY)
        # Closing with something of the client unread would reset the connection, and lose what the client has not read.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self._limit_closing()

    def handle_close(self, event: Frame) -> None:
        """End the connection once both sides have closed."""
        super().handle_close(event)
        if self.close_sent:
            self.transport.close()

    def keepalive_timeout(self) -> None:
        """Close because the client did not answer a ping."""
        super().keepalive_timeout()
        self._limit_closing()

    async def send(self, message: Any) -> None:
        """Take a message of the endpoint's. Raises ClientDisconnected where the connection was closed below it."""
        await self.writable.wait()
        if self.close_sent:
            raise ClientDisconnected
        await super().send(message)

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][ABORT_EXTENSION] = self.abort
        try:
            await self._inner_app(scope, receive, send)
        finally:
            if self.handshake_complete and not self.close_sent and not self.transport.is_closing():
                self._send_close(INTERNAL_ERROR)
            self._limit_closing()

    def _send_close(self, code: int) -> None:
        self.conn.send_close(code)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True

    def _limit_closing(self) -> None:
        self.loop.call_later(FLUSH_S, self.transport.abort)


@dataclass
class WebSocketExchange:
    """One WebSocket: its request id, its status (101, or that of the refusal), and the bytes of its messages.

    A refusal is a problem document, also where the app only closes.
    """

    scope: Scope
    receive: Receive
    outer_send: Send
    status: int = 0
    sent_bytes: int = 0
    method: str = "WEBSOCKET"
    request_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = request_id_from(Headers(scope=self.scope))
        self.scope.setdefault("state", {})["request_id"] = self.request_id

    async def send(self, message: Message) -> None:
        """Send the next part of the handshake, or a message."""
        if self.status == 0 and message["type"] == "websocket.close":
            await problem_response(self._refusal(), self.request_id)(self.scope, self.receive, self.send)
            return
        if message["type"] in ("websocket.accept", "websocket.http.response.start"):
            self.status = message.get("status", 101)
            headers = MutableHeaders(raw=list(message.get("headers", [])))
            headers[REQUEST_ID_HEADER] = self.request_id
            message = {**message, "headers": headers.raw}
        self.sent_bytes += len(message.get("bytes") or message.get("text") or message.get("body") or "")
        await self.outer_send(message)

    def _refusal(self) -> ProblemError:
        if "route" in self.scope or "endpoint" in self.scope:
            return ProblemError(403, "forbidden", "the WebSocket was refused")
        return ProblemError(404, "not_found", "no WebSocket has this path", fix="WS /v1/live opens a session")


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
