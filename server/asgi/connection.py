"""uvicorn's HTTP protocol with what it lacks: a deadline for headers and for closing, a limit on connections, problem
documents for malformed requests, and a way for an endpoint to cut its connection so that the client sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.asgi.problems import MEDIA_TYPE, ProblemError

CUT_EXTENSION = "tickrt.cut"
FLUSH_S = 2.0


def make_protocol(header_timeout_s: float, max_connections: int) -> type[asyncio.Protocol]:
    """The protocol class for a uvicorn Config."""
    limits = {"header_timeout_s": header_timeout_s, "max_connections": max_connections}
    return type("TickProtocol", (BoundedProtocol,), limits)


class BoundedProtocol(H11Protocol):
    """One connection. `cut(flush)` goes to endpoints as the scope's extension "tickrt.cut"."""

    header_timeout_s: float = 10.0
    max_connections: int = 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self.app = self._with_cut(self.app)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; its first request's headers have a deadline."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._await_headers()
        if len(self.connections) > self.max_connections:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._headers_came()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; a next request on the same connection has the same deadline as the first."""
        if self.cycle is None or self.cycle.response_complete:
            self._await_headers()
        super().data_received(data)

    def timeout_keep_alive_handler(self) -> None:
        """The connection has been idle for too long."""
        super().timeout_keep_alive_handler()
        self._close_in_time()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        problem = ProblemError(400, "malformed_http", msg)
        body = problem.document().model_dump_json(exclude_none=True).encode()
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(
                status_code=400, headers=[*headers, (b"connection", b"close")], reason=b"Bad Request"
            )
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._close_in_time()

    def cut(self, flush: bool) -> None:
        """End the connection without the end of the response; with `flush`, after what was already written."""
        self.cycle.disconnected = True
        if not flush:
            self.transport.abort()
        self.transport.close()
        self._close_in_time()

    def _with_cut(self, app: Any) -> ASGIApp:
        async def with_cut(scope: Scope, receive: Receive, send: Send) -> None:
            self._headers_came()
            scope.setdefault("extensions", {})[CUT_EXTENSION] = self.cut
            await app(scope, receive, send)
            self._close_in_time()

        return with_cut

    def _close_in_time(self) -> None:
        """A closing connection sends what it has; a client that does not read it must not keep it open."""
        if self.transport.is_closing():
            self.loop.call_later(FLUSH_S, self.transport.abort)

    def _await_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._give_up)

    def _headers_came(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def cut_connection(scope: Scope) -> Callable[[bool], None]:
    """The cut of this request's connection. Raises ConnectionAbortedError when called on a server that has none."""
    cut: Callable[[bool], None] | None = scope.get("extensions", {}).get(CUT_EXTENSION)
    return cut or _no_cut


def _no_cut(flush: bool) -> None:
    raise ConnectionAbortedError("the response ends before its time")
