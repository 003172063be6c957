"""ASGI middleware: request ids, counting, and the limit on concurrent requests. It buffers nothing."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi.problems import REQUEST_ID_HEADER, problem_response, request_id_from, unavailable
from server.asgi.websocket import WebSocketExchange
from server.metrics import Metrics

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
LINGER_S = 1.0
LINGER_BYTES = 16 * 2**20


@dataclass
class RequestContextMiddleware:
    """The outermost layer: request ids, counting, HEAD as GET without a body, a limit on requests and WebSockets.

    A response sent before the request's body was read closes the connection, but reads and drops the rest of the body
    for up to LINGER_S first: a client that is still sending can then read the response.
    """

    app: ASGIApp
    metrics: Metrics
    max_connections: int
    active: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request or WebSocket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        kind = WebSocketExchange if scope["type"] == "websocket" else TrackedExchange
        exchange = kind(scope, receive, send)
        is_complete = False
        self.active += 1
        try:
            await self._forward(exchange, scope)
            is_complete = True
        finally:
            self.active -= 1
            self._count(exchange, "499" if is_complete else "500")

    async def _forward(self, exchange: TrackedExchange | WebSocketExchange, scope: Scope) -> None:
        if self.active > self.max_connections:
            problem = unavailable("busy", f"this server answers {self.max_connections} requests at a time")
            await problem_response(problem, exchange.request_id)(scope, exchange.receive, exchange.send)
            return
        await self.app(exchange.scope, exchange.receive, exchange.send)

    def _count(self, exchange: TrackedExchange | WebSocketExchange, status_if_none: str) -> None:
        route = getattr(exchange.scope.get("route"), "path", "unmatched")
        method = exchange.method if exchange.method in METHODS else "other"
        self.metrics.requests.labels(method, route, str(exchange.status or status_if_none)).inc()


@dataclass
class TrackedExchange:
    """One request and its response: status, headers, and how much of the body was read."""

    outer_scope: Scope
    outer_receive: Receive
    outer_send: Send
    status: int = 0
    scope: Scope = field(init=False)
    method: str = field(init=False)
    request_id: str = field(init=False)
    has_unread_body: bool = field(init=False)

    def __post_init__(self) -> None:
        headers = Headers(scope=self.outer_scope)
        self.request_id = request_id_from(headers)
        self.method = self.outer_scope["method"]
        self.has_unread_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
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
        if self.has_unread_body and not message.get("more_body", False):
            await self.outer_send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self.outer_send(message)

    async def _send_start(self, message: Message) -> None:
        self.status = message["status"]
        headers = MutableHeaders(raw=list(message.get("headers", [])))
        headers[REQUEST_ID_HEADER] = self.request_id
        headers.setdefault("X-Content-Type-Options", "nosniff")
        if self.has_unread_body:
            headers["Connection"] = "close"
        await self.outer_send({**message, "headers": headers.raw})

    async def _linger(self) -> None:
        dropped = 0
        try:
            async with asyncio.timeout(LINGER_S):
                while self.has_unread_body and dropped < LINGER_BYTES:
                    dropped += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return
