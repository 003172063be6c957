"""uvicorn's HTTP/1.1 protocol with additions: deadlines for headers and for closing, a connection limit, problem
documents for malformed requests, and an abort by which an endpoint ends a response visibly incomplete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.asgi.problems import MEDIA_TYPE, ProblemError

ABORT_EXTENSION = "tickrt.abort"
FLUSH_S = 2.0


def make_protocol(header_timeout_s: float, max_connections: int) -> type[asyncio.Protocol]:
    """The protocol class for a uvicorn Config."""
    limits = {"header_timeout_s": header_timeout_s, "max_connections": max_connections}
    return type("TickProtocol", (BoundedProtocol,), limits)


class BoundedProtocol(H11Protocol):
    """One connection. Endpoints get `abort(flush)` as the scope's extension "tickrt.abort"."""

    header_timeout_s: float = 10.0
    max_connections: int = 1024

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self.app = self._with_abort(self.app)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; start the deadline for its first request's headers."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._start_header_timer()
        if len(self.connections) > self.max_connections:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._stop_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; every further request on the connection has the same header deadline."""
        if self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()
        super().data_received(data)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to the WebSocket protocol; it has no deadline of ours any more."""
        self._stop_header_timer()
        super().handle_websocket_upgrade(event)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for the keep-alive time."""
        super().timeout_keep_alive_handler()
        self._limit_closing()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a problem document."""
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
        self._limit_closing()

    def abort(self, flush: bool) -> None:
        """Close the connection without ending the response; with `flush`, send first what was already written."""
        self.cycle.disconnected = True
        if not flush:
            self.transport.abort()
        self.transport.close()
        self._limit_closing()

    def _with_abort(self, app: Any) -> ASGIApp:
        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            self._stop_header_timer()
            scope.setdefault("extensions", {})[ABORT_EXTENSION] = self.abort
            await app(scope, receive, send)
            self._limit_closing()

        return with_abort

    def _limit_closing(self) -> None:
        """Abort a closing connection after FLUSH_S, so that a client that does not read cannot keep it open."""
        if self.transport.is_closing():
            self.loop.call_later(FLUSH_S, self.transport.abort)

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_timeout_s, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def abort_of(scope: Scope) -> Callable[[bool], None]:
    """The connection's `abort(flush)`. On a server without the extension it raises ConnectionAbortedError."""
    abort: Callable[[bool], None] | None = scope.get("extensions", {}).get(ABORT_EXTENSION)
    return abort or _abort_by_error


def _abort_by_error(flush: bool) -> None:
    raise ConnectionAbortedError("the response is incomplete")


async def wait_disconnected(receive: Receive) -> None:
    """Until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def first_completed(tasks: set[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
    """Wait until one task is done or `timeout_s` has passed; cancel the others and wait for their end."""
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
