"""uvicorn's HTTP/1.1 protocol with additions: deadlines for headers, for writing and for closing, a connection limit,
clients that send no more but still read, problem documents for malformed requests, and an abort by which an endpoint
ends a response visibly incomplete.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, ClassVar

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.asgi.problems import MEDIA_TYPE, ProblemError

ABORT_EXTENSION = "tickrt.abort"
FLUSH_S = 2.0
MAX_PIPELINED_BYTES = 64 * 1024
FIRST_PROBE_S = 0.05
MAX_PROBE_S = 2.0


def make_protocol(header_timeout_s: float, write_timeout_s: float, max_connections: int) -> type[asyncio.Protocol]:
    """The protocol class for a uvicorn Config; its connections share one limit."""
    limits = {"header_timeout_s": header_timeout_s, "write_timeout_s": write_timeout_s}
    return type("TickProtocol", (BoundedProtocol,), {**limits, "max_connections": max_connections, "idle": {}})


class BoundedProtocol(H11Protocol):
    """One connection. Endpoints get `abort(flush)` as the scope's extension "tickrt.abort".

    Above `max_connections` the connection is closed that has been without a request for the longest time, which may be
    the new one. The socket is read while a response is made, so that a disconnect is seen: what the client sends then
    waits for the end of the response, up to MAX_PIPELINED_BYTES. A client that sends no more (half-closed) gets its
    response; probes show whether it is still there.
    """

    header_timeout_s: float = 10.0
    write_timeout_s: float = 20.0
    max_connections: int = 1024
    idle: ClassVar[dict[BoundedProtocol, None]] = {}  # without a request, the longest first

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_half_closed = False
        self.app = self._with_abort(self.app)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; start the deadline for its first request's headers."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self.idle[self] = None
        self._start_header_timer()
        if len(self.connections) > self.max_connections:
            longest_idle = next(iter(self.idle))
            del self.idle[longest_idle]
            longest_idle.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.idle.pop(self, None)
        self._stop_header_timer()
        self._stop_write_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; every further request on the connection has the same header deadline."""
        if self._is_answering():
            self._keep_for_later(data)
            return
        if self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self.idle.pop(self, None)
        if self._is_answering():
            self.flow.resume_reading()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, or has left; True keeps the connection open for the response.

        HTTP/1.0 and TLS have no probe that tells one from the other: there the client counts as gone.
        """
        can_probe = self.scheme == "http" and self.conn.their_http_version == b"1.1"
        if self._is_answering() and can_probe:
            if not self._is_half_closed:
                self._is_half_closed = True
                self._probe(FIRST_PROBE_S)
            return True
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self.send_400_response("the request ends before its end")
        return False

    def on_response_complete(self) -> None:
        """A response was sent: take the next request of the connection, or wait for one."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self.idle[self] = None
            if self._is_half_closed:
                self.transport.close()
                self._limit_closing()

    def pause_writing(self) -> None:
        """The client reads slower than the server writes; it has `write_timeout_s` to catch up."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """The client caught up."""
        self._stop_write_timer()
        super().resume_writing()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection to the WebSocket protocol; it has no deadline of ours any more."""
        self._stop_header_timer()
        self.idle.pop(self, None)
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
            has_body = self.conn.our_state is h11.IDLE or self.scope["method"] != "HEAD"
            for event in (response, h11.Data(data=body if has_body else b""), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
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
            if has_two_lengths(scope):
                self.send_400_response("the request has both Transfer-Encoding and Content-Length")
                return
            scope.setdefault("extensions", {})[ABORT_EXTENSION] = self.abort
            await app(scope, receive, send)
            self._limit_closing()

        return with_abort

    def _is_answering(self) -> bool:
        """Whether a whole request has arrived and its response has not been sent."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _keep_for_later(self, data: bytes) -> None:
        """Keep what belongs to the next request until the response is complete."""
        self.conn.receive_data(data)
        if len(self.conn.trailing_data[0]) > MAX_PIPELINED_BYTES:
            self.transport.abort()

    def _probe(self, delay_s: float) -> None:
        """Abort if a half-closed client has left: its system answers data with a reset.

        Before a response that data is 100 Continue, which clients skip. The transport does not watch a half-closed
        socket for errors.
        """
        if not self._is_answering() or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if self.conn.our_state is h11.SEND_RESPONSE:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(interim) or b"")
        self.loop.call_later(delay_s, self._probe, min(2 * delay_s, MAX_PROBE_S))

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

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _on_header_timeout(self) -> None:
        self._header_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def has_two_lengths(scope: Scope) -> bool:
    """Whether a request states its length in two ways, of which a proxy may follow the other one (RFC 9112, 6.1)."""
    names = {name for name, _ in scope["headers"]}
    return {b"transfer-encoding", b"content-length"} <= names


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
