"""uvicorn's HTTP/1.1 protocol with additions: deadlines for headers, for writing and for closing, a connection limit,
bounds on what is read and written at once, and read after a response, clients that send no more but still read, problem
documents for malformed requests, and an abort by which an endpoint ends a response visibly incomplete.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from runtime.base.untrusted import quoted
from server.asgi.fair_reads import BoundedReads, FairReads, FairTransport, charged
from server.asgi.problems import MEDIA_TYPE, ProblemError
from server.asgi.shares import Holding, Shares
from server.asgi.tls import TlsTransport

ABORT_EXTENSION = "tickrt.abort"
CHARGE_EXTENSION = "tickrt.charge"
PLACE_EXTENSION = "tickrt.place"
REFUSAL_EXTENSION = "tickrt.refusal"
VERSION_HEADER, KEY_HEADER = b"sec-websocket-version", b"sec-websocket-key"
END_OF_HEADERS = re.compile(rb"\n\r?\n")
KEY = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")
# After these the connection is closed: without access a client gets one answer for each.
UNAUTHORIZED = (401, 403)
# What is written at once, and may wait in the process for a client to read it; a response may be much larger.
WRITE_BYTES = 16 * 1024
# What is written in one turn of the connection.
TURN_BYTES = 4 * WRITE_BYTES
MAX_PIPELINED_BYTES = 64 * 1024
# Of a chunked body that is framing for the most part.
MAX_FRAMING_BYTES = 64 * 1024
# What is read of a request after its response, without being parsed.
LINGER_S = 1.0
LINGER_BYTES = 64 * 1024
FIRST_PROBE_S = 0.05
MAX_PROBE_S = 2.0


def make_protocol(
    header_timeout_s: float, write_timeout_s: float, max_connections: int, tls: ssl.SSLContext | None = None
) -> type[BoundedProtocol]:
    """The protocol class for a uvicorn Config, which is without TLS; its connections share one limit."""
    limits = {"header_timeout_s": header_timeout_s, "write_timeout_s": write_timeout_s}
    shared = {"idle": Shares("holds idle connections", max_connections, 0), "reads": FairReads(), "tls": tls}
    return type("TickProtocol", (BoundedProtocol,), {**limits, **shared})


class Deadline:
    """Calls `act` after `delay_s`, unless it is stopped before; may be started again."""

    def __init__(self, delay_s: float, act: Callable[[], None]) -> None:
        self._delay_s, self._act = delay_s, act
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, where it has not begun."""
        self._timer = self._timer or asyncio.get_running_loop().call_later(self._delay_s, self._end)

    def stop(self) -> None:
        """Do not act."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._act()


class BoundedProtocol(H11Protocol, BoundedReads):
    """One connection. Endpoints get `abort(flush)` as the scope's extension "tickrt.abort".

    It is one of the idle connections, of which one makes room above their limit, until it has a place, and again after
    the response: a request gets one by the extension "tickrt.place" once its body is there, a WebSocket by a complete
    handshake. The socket is read while a response is made, so that a disconnect is seen: what the client sends then
    waits for the end of the response, up to MAX_PIPELINED_BYTES. A client that sends no more (half-closed) gets its
    response; probes show whether it is still there. One that is still sending at the end of its response has LINGER_S
    to read that; what it sends is dropped, and not read any more after LINGER_BYTES.
    """

    header_timeout_s: float = 10.0
    write_timeout_s: float = 20.0
    idle: ClassVar[Shares]
    reads: ClassVar[FairReads]
    tls: ClassVar[ssl.SSLContext | None]
    transport: FairTransport  # type: ignore[assignment]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._headers_end = Deadline(self.header_timeout_s, self._on_header_timeout)
        self._write_end = Deadline(self.write_timeout_s, lambda: self.transport.abort())
        self._is_half_closed = False
        self._refusal: ProblemError | None = None
        self._framing_bytes = self._payload_bytes = 0
        self._dropped_bytes: int | None = None
        self._is_early = False
        self._turn_bytes = 0
        self._idle: Holding | None = None
        self.app = self._with_abort(self.app)
        if self.ws_protocol_class is not None:
            kind: Any = self.ws_protocol_class
            self.ws_protocol_class = partial(kind, on_opened=self._end_waiting)  # type: ignore[assignment]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected; start the deadline for its first request's headers, and for what TLS has before them."""
        fair = TlsTransport(transport, self.reads, self.tls) if self.tls else FairTransport(transport, self.reads)
        super().connection_made(fair)  # type: ignore[arg-type]
        self.transport.set_write_buffer_limits(WRITE_BYTES)
        if len(self.connections) > self.idle.limit:
            self.idle.evict()
        self._wait_for_place()
        self._headers_end.start()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._end_waiting()
        self._write_end.stop()
        super().connection_lost(exc)
        self.transport.end()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; every further request on the connection has the same header deadline."""
        if self._dropped_bytes is not None:  # it was answered, and is about to be closed
            self._dropped_bytes += len(data)
            if self._dropped_bytes >= LINGER_BYTES:
                self.flow.pause_reading()
            return
        if self._is_answering():
            self._keep_for_later(data)
            return
        if self.cycle is None or self.cycle.response_complete:
            self._headers_end.start()
        cycle, kept = self.cycle, 0 if self.cycle is None else len(self.cycle.body)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            if self._idle is not None:  # what it sends is a body
                self._idle.touch()
            self._count_framing(len(data), len(self.cycle.body) - (kept if self.cycle is cycle else 0))
        if self._is_answering():
            self.flow.resume_reading()

    def handle_events(self) -> None:
        """Parse the next request, in the connection's turn."""
        if not self.transport.has_turn:
            if self.conn.trailing_data[0]:
                self.transport.wait_for_turn()
            return
        if self.conn.their_state is h11.IDLE and _num_headers(self.conn.trailing_data[0]) > MAX_NUM_HEADERS:
            what = f"the request has more than {MAX_NUM_HEADERS} headers"
            self._refuse(ProblemError(431, "headers_too_large", what, fix="send fewer headers"))
            return
        cycle = self.cycle
        super().handle_events()
        if self.cycle is not cycle:
            self._framing_bytes = self._payload_bytes = 0
        if self._is_half_closed and not self._is_answering():
            self._end_half_closed()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Give the connection to the WebSocket protocol, with what has arrived behind the handshake."""
        super().handle_websocket_upgrade(event)
        self.transport.put_back(self.conn.trailing_data[0])

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, or has left; True keeps the connection open for the response.

        HTTP/1.0 and TLS have no probe that tells one from the other: there the client counts as gone.
        """
        self.transport.parse_rest()
        can_probe = self.scheme == "http" and self.conn.their_http_version == b"1.1"
        if can_probe and (self._is_answering() or self.transport.is_waiting):
            if not self._is_half_closed:
                self._is_half_closed = True
                self._probe(FIRST_PROBE_S)
            return True
        self._end_half_closed()
        return False

    def on_response_complete(self) -> None:
        """A response was sent: take the next request of the connection, or wait for one."""
        super().on_response_complete()
        self._wait_for_place()
        if self._is_half_closed and not self.transport.is_waiting and not self.transport.is_closing():
            self._end_half_closed()

    def pause_writing(self) -> None:
        """The client reads slower than the server writes; it has `write_timeout_s` to catch up."""
        super().pause_writing()
        self._write_end.start()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._write_end.stop()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP with a problem document."""
        self._refuse(ProblemError(400, "malformed_http", msg))

    def abort(self, flush: bool) -> None:
        """Close the connection without ending the response; with `flush`, send first what was already written."""
        self.cycle.disconnected = True
        super().abort(flush)

    def _with_abort(self, app: Any) -> ASGIApp:
        async def with_abort(scope: Scope, receive: Receive, send: Send) -> None:
            self._headers_end.stop()
            if has_two_lengths(scope):
                self.send_400_response("the request has both Transfer-Encoding and Content-Length")
                return
            scope.setdefault("extensions", {})[ABORT_EXTENSION] = self.abort
            scope["extensions"] |= {
                CHARGE_EXTENSION: self.transport.charge,
                PLACE_EXTENSION: self._end_waiting,
                REFUSAL_EXTENSION: self._refusal,
            }
            await charged(app(scope, receive, partial(self._send, send)), self.transport.charge)
            if self._is_early:
                await self._linger()
                await send({"type": "http.response.body"})

        return with_abort

    async def _send(self, send: Send, message: Message) -> None:
        """Send a part of the response, in small ones, without its end while the client is still sending."""
        if message["type"] == "http.response.start" and message["status"] in UNAUTHORIZED:
            headers = [header for header in message["headers"] if header[0].lower() != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        if message["type"] == "http.response.body":
            body, is_last = memoryview(message.get("body", b"")), not message.get("more_body", False)
            while len(body) > WRITE_BYTES and not self.cycle.disconnected:
                await send({**message, "body": body[:WRITE_BYTES], "more_body": True})
                body = body[WRITE_BYTES:]
                self._turn_bytes += WRITE_BYTES
                if self._turn_bytes >= TURN_BYTES:
                    self._turn_bytes = 0
                    await self.reads.turn(self.transport.flow)
            self._is_early = is_last and self.cycle.more_body
            message = {**message, "body": body, "more_body": not is_last or self._is_early}
        await send(message)

    async def _linger(self) -> None:
        """Let the client read the response before the connection is closed, which may also happen to make room."""
        cycle, self._dropped_bytes = self.cycle, 0
        self._wait_for_place()
        self.flow.resume_reading()
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not cycle.disconnected:
                    cycle.message_event.clear()
                    await cycle.message_event.wait()

    def _count_framing(self, received: int, payload: int) -> None:
        """Refuse a body that is framing for the most part, above a limit.

        `received`: bytes, of which `payload` are the body's.
        """
        self._payload_bytes += payload
        self._framing_bytes += received - payload
        if self.cycle.more_body and self._framing_bytes > max(MAX_FRAMING_BYTES, self._payload_bytes):
            self.send_400_response("the chunks of the body are too small: their framing is larger than what is in them")

    def _refuse(self, problem: ProblemError) -> None:
        """Answer a request that is not read, and close the connection."""
        body = problem.document().model_dump_json(exclude_none=True).encode()
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            response = h11.Response(
                status_code=problem.status,
                headers=[*headers, (b"connection", b"close")],
                reason=HTTPStatus(problem.status).phrase.encode(),
            )
            has_body = self.conn.our_state is h11.IDLE or self.scope["method"] != "HEAD"
            for event in (response, h11.Data(data=body if has_body else b""), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.close()

    def _end_half_closed(self) -> None:
        """Close the connection of a client that sends no more, after its last response."""
        if self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]:
            self.send_400_response("the request ends before its end")
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Whether the WebSocket protocol takes the request; a handshake that it could not read is answered as HTTP."""
        is_upgrade = self.scope["http_version"] == "1.1" and self.scope["method"] == "GET" and super()._should_upgrade()
        target = self.scope["raw_path"] + self.scope["query_string"]
        self._refusal = handshake_problem(target, self.headers) if is_upgrade else None
        return is_upgrade and self._refusal is None

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
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
            return
        if self._is_answering() and self.conn.our_state is h11.SEND_RESPONSE:
            interim = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(interim) or b"")
        self.loop.call_later(delay_s, self._probe, min(2 * delay_s, MAX_PROBE_S))

    def _wait_for_place(self) -> None:
        """Be one of the connections without a place; the last one, where it had one."""
        if self in self.connections and self._idle is None:
            self._idle = self.idle.take(self.transport.address, evict=self.transport.abort)

    def _end_waiting(self) -> None:
        """The connection has its place, or ends: no deadline for headers, it is none of those without a place."""
        self._headers_end.stop()
        if self._idle is not None:
            self._idle.release()
            self._idle = None

    def _on_header_timeout(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def _num_headers(data: bytes) -> int:
    """How many lines the headers have in what has arrived of a request."""
    head = END_OF_HEADERS.split(data, 1)[0]
    return head.strip(b"\r\n").count(b"\n")


def has_two_lengths(scope: Scope) -> bool:
    """Whether a request states its length in two ways, of which a proxy may follow the other one (RFC 9112, 6.1)."""
    names = {name for name, _ in scope["headers"]}
    return {b"transfer-encoding", b"content-length"} <= names


def handshake_problem(target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> ProblemError | None:
    """Why the WebSocket protocol cannot take a handshake; None: it can."""
    if any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers):
        return ProblemError(400, "malformed_http", "a WebSocket's handshake has no body", fix="send no Content-Length")
    lines = [b"GET %b? HTTP/1.1\r\n" % target, *(b"%b: %b\r\n" % header for header in headers)]
    longest = max(len(line) for line in lines)
    if longest > MAX_LINE_LENGTH:
        what, fix = f"the handshake has a line of {longest} bytes", f"send at most {MAX_LINE_LENGTH} bytes a line"
        return ProblemError(431, "headers_too_large", what, fix=fix)
    versions, keys = ([value for name, value in headers if name == wanted] for wanted in (VERSION_HEADER, KEY_HEADER))
    if versions != [b"13"]:
        found = quoted(b", ".join(versions).decode("latin-1")) if versions else "none"
        what, accepted = f"the WebSocket's version is {found}, expected 13", {"Sec-WebSocket-Version": "13"}
        return ProblemError(426, "unsupported_version", what, headers={**accepted, "Upgrade": "websocket"})
    if len(keys) != 1 or not KEY.fullmatch(keys[0]):
        fix = "send one Sec-WebSocket-Key: 16 bytes in base64"
        return ProblemError(400, "malformed_http", "the handshake has no key, or not a valid one", fix=fix)
    return None


def abort_of(scope: Scope) -> Callable[[bool], None]:
    """The connection's `abort(flush)`. On a server without the extension it raises ConnectionAbortedError."""
    abort: Callable[[bool], None] | None = scope.get("extensions", {}).get(ABORT_EXTENSION)
    return abort or _abort_by_error


def _abort_by_error(flush: bool) -> None:
    raise ConnectionAbortedError("the response is incomplete")


async def charged_to(scope: Scope, task: Callable[..., Coroutine[Any, Any, Any]], *args: object) -> None:
    """Run a task of an endpoint whose CPU time is caused by what the connection of `scope` sends."""
    await charged(task(*args), _charge_of(scope))


def _charge_of(scope: Scope) -> Callable[[float], None]:
    charge: Callable[[float], None] = scope.get("extensions", {}).get(CHARGE_EXTENSION, lambda _: None)
    return charge


async def in_charged_thread(scope: Scope, work: Callable[..., None], *args: object) -> None:
    """Work in a thread whose CPU time is caused by what the connection of `scope` sends."""
    used_s = 0.0

    def timed() -> None:
        nonlocal used_s
        started_s = time.thread_time()
        try:
            work(*args)
        finally:
            used_s = time.thread_time() - started_s

    try:
        await run_in_threadpool(timed)
    finally:
        _charge_of(scope)(used_s)


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
