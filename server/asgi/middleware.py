"""ASGI middleware: request ids, counting, the access log, the limit on requests at a time. It buffers nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote, quote_from_bytes

from prometheus_client import Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi.access_control import is_open
from server.asgi.connection import PLACE_EXTENSION, REFUSAL_EXTENSION
from server.asgi.problems import REQUEST_ID_HEADER, ProblemError, problem_response, request_id_from
from server.asgi.shares import Shares, client_of

# Headers of one response together are below MAX_BYTES, less than proxies take (by default, 4 KiB): of one value, only a
# client's URL can make more than VALUE_BYTES.
MAX_BYTES, VALUE_BYTES = 2048, 1024
PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
# Requests of monitoring; the access log has them at debug level.
MONITORING_PATHS = ("/health/", "/metrics")
MAX_LOGGED_PATH = 200
access_logger = logging.getLogger("tickrt.access")


@dataclass
class RequestContextMiddleware:
    """The outermost layer: request ids, counting, the access log, HEAD as GET without a body.

    A response sent before the request's body was read closes the connection. requests: by method, route and status.
    """

    app: ASGIApp
    requests: Counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request or WebSocket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        kind = WebSocketExchange if scope["type"] == "websocket" else TrackedExchange
        exchange = kind(scope, receive, send)
        is_complete = False
        started_s = time.monotonic()
        try:
            await self._forward(exchange, scope)
            is_complete = True
        finally:
            status = str(exchange.status or ("499" if is_complete else "500"))
            self._count(exchange, status)
            _log_access(exchange, status, time.monotonic() - started_s)

    async def _forward(self, exchange: TrackedExchange | WebSocketExchange, scope: Scope) -> None:
        problem = scope.get("extensions", {}).get(REFUSAL_EXTENSION)
        if problem is not None:
            await problem_response(problem, exchange.request_id)(scope, exchange.receive, exchange.send)
            return
        await self.app(exchange.scope, exchange.receive, exchange.send)

    def _count(self, exchange: TrackedExchange | WebSocketExchange, status: str) -> None:
        route = getattr(exchange.scope.get("route"), "path", "unmatched")
        method = exchange.method if exchange.method in METHODS else "other"
        self.requests.labels(method, route, status).inc()


@dataclass
class PlacesMiddleware:
    """Requests and WebSockets that have passed access control take one of the `places`, or are refused (429, 503).

    A request takes it once its body is there. What needs no key takes none: it is always answered. Until a request has
    its place, its connection may be closed to make room for another one.
    """

    app: ASGIApp
    places: Shares

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request or WebSocket."""
        if scope["type"] not in ("http", "websocket") or is_open(scope):
            await self.app(scope, receive, send)
            return
        with ExitStack() as stack:
            take = partial(self._take, scope, stack)
            if scope["type"] == "http" and has_body(Headers(scope=scope)):
                receive = partial(_receive, receive, take)
            else:
                try:
                    take()
                except ProblemError as problem:
                    await problem_response(problem, scope["state"]["request_id"])(scope, receive, send)
                    return
            await self.app(scope, receive, send)

    def _take(self, scope: Scope, stack: ExitStack) -> None:
        stack.enter_context(self.places.hold(client_of(scope)))
        scope.get("extensions", {}).get(PLACE_EXTENSION, bool)()


async def _receive(receive: Receive, take: Callable[[], None]) -> Message:
    """The next part of a request's body; `take` is called before the last. Raises what it raises."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        take()
    return message


def has_body(headers: Headers) -> bool:
    """Whether a request has a body."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _log_access(exchange: TrackedExchange | WebSocketExchange, status: str, elapsed_s: float) -> None:
    """One line per request, after its response. Without the query string, which may hold the API key."""
    client, path = exchange.scope.get("client"), exchange.scope["path"]
    access_logger.log(
        logging.DEBUG if path.startswith(MONITORING_PATHS) else logging.INFO,
        "%s %s %s %s %.3f s %d bytes, request %s",
        client[0] if client else "-",
        exchange.method[:20],
        quote(path, safe="/:@")[:MAX_LOGGED_PATH],
        status,
        elapsed_s,
        exchange.sent_bytes,
        exchange.request_id,
    )


@dataclass
class TrackedExchange:
    """One request and its response: status, headers, bytes of the body sent, and whether the request was read."""

    outer_scope: Scope
    outer_receive: Receive
    outer_send: Send
    status: int = 0
    sent_bytes: int = 0
    scope: Scope = field(init=False)
    method: str = field(init=False)
    request_id: str = field(init=False)
    has_unread_body: bool = field(init=False)

    def __post_init__(self) -> None:
        headers = Headers(scope=self.outer_scope)
        self.request_id = request_id_from(headers)
        self.method = self.outer_scope["method"]
        self.has_unread_body = has_body(headers)
        self.outer_scope.setdefault("state", {})["request_id"] = self.request_id
        self.scope = {**self.outer_scope, "method": "GET" if self.method == "HEAD" else self.method}

    async def receive(self) -> Message:
        """Receive the next part of the request."""
        message = await self.outer_receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self.has_unread_body = False
        return message

    async def send(self, message: Message) -> None:
        """Send the next part of the response."""
        if message["type"] == "http.response.start":
            await self._send_start(message)
            return
        if self.method == "HEAD":
            message = {**message, "body": b""}
        self.sent_bytes += len(message.get("body", b""))
        await self.outer_send(message)

    async def _send_start(self, message: Message) -> None:
        self.status = message["status"]
        headers = MutableHeaders(raw=list(message.get("headers", [])))
        headers[REQUEST_ID_HEADER] = self.request_id
        headers.setdefault("X-Content-Type-Options", "nosniff")
        if self.has_unread_body:
            headers["Connection"] = "close"
        await self.outer_send({**message, "headers": sendable(headers.raw)})


def sendable(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers as they are sent: printable ASCII without spaces around it, other bytes percent-encoded.

    Every response passes here, so that no text of a client or a model makes one that cannot be sent. What is longer
    than VALUE_BYTES is left out.
    """
    encoded = ((name, quote_from_bytes(value, safe=PRINTABLE).strip().encode()) for name, value in headers)
    return [(name, value) for name, value in encoded if len(value) <= VALUE_BYTES]


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
            message = {**message, "headers": sendable(headers.raw)}
        self.sent_bytes += len(message.get("bytes") or message.get("text") or message.get("body") or "")
        await self.outer_send(message)

    def _refusal(self) -> ProblemError:
        if "route" in self.scope or "endpoint" in self.scope:
            return ProblemError(403, "forbidden", "the WebSocket was refused")
        return ProblemError(404, "not_found", "no WebSocket has this path", fix="WS /v1/live opens a session")
