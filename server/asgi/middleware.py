"""ASGI middleware: request ids and counting; origin and API key checks. None of it buffers a response."""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi.openapi import OPEN_PATH
from server.asgi.problems import REQUEST_ID_HEADER, ProblemError, problem_response, unavailable
from server.config import ServerSettings, is_loopback_host
from server.metrics import Metrics

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
LINGER_S = 1.0
LINGER_BYTES = 16 * 2**20


@dataclass
class RequestContextMiddleware:
    """The outermost layer: request ids, HEAD as GET without a body, request count, limit on concurrent requests.

    A response sent before the request's body was read closes the connection, but reads and drops the rest of the body
    for up to LINGER_S first: a client that is still sending can then read the response.
    """

    app: ASGIApp
    metrics: Metrics
    max_connections: int
    active: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = TrackedExchange(scope, receive, send)
        is_complete = False
        self.active += 1
        try:
            await self._forward(exchange, scope)
            is_complete = True
        finally:
            self.active -= 1
            self._count(exchange, "499" if is_complete else "500")

    async def _forward(self, exchange: TrackedExchange, scope: Scope) -> None:
        if self.active > self.max_connections:
            problem = unavailable("busy", f"this server answers {self.max_connections} requests at a time")
            await problem_response(problem, exchange.request_id)(scope, exchange.receive, exchange.send)
            return
        await self.app(exchange.scope, exchange.receive, exchange.send)

    def _count(self, exchange: TrackedExchange, status_if_none: str) -> None:
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
        given = headers.get(REQUEST_ID_HEADER, "")
        self.request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
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


@dataclass
class AuthMiddleware:
    """Refuses web pages of other origins (403) and, where an API key is set, requests without it (401)."""

    app: ASGIApp
    settings: ServerSettings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        problem = self._refusal(Headers(scope=scope), scope)
        if problem is None:
            await self.app(scope, receive, send)
            return
        await problem_response(problem, scope["state"]["request_id"])(scope, receive, send)

    def _refusal(self, headers: Headers, scope: Scope) -> ProblemError | None:
        origin = headers.get("origin")
        if origin is not None and not is_allowed_origin(origin, headers.get("host", ""), self.settings):
            return ProblemError(
                403,
                "origin_not_allowed",
                "this server does not accept requests from pages of this origin",
                fix="add the page's origin to [server] allowed_origins",
            )
        is_preflight = scope.get("method") == "OPTIONS" and "access-control-request-method" in headers
        if scope["path"] == OPEN_PATH or is_preflight or self._has_key(headers):
            return None
        return ProblemError(
            401,
            "unauthorized",
            "this server needs an API key",
            fix="send Authorization: Bearer KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _has_key(self, headers: Headers) -> bool:
        if self.settings.api_key is None:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        return hmac.compare_digest(given.encode(), self.settings.api_key.get_secret_value().encode())


def is_allowed_origin(origin: str, host: str, settings: ServerSettings) -> bool:
    """Whether a page of `origin` may call: a configured origin, or the server's own.

    A server on a loopback address accepts only a Host header with a loopback address as its own origin: this prevents
    DNS rebinding.
    """
    if "*" in settings.allowed_origins or origin in settings.allowed_origins:
        return True
    own = _authority("//" + host)
    if own is None or (settings.is_loopback and not is_loopback_host(own[0])):
        return False
    return _authority(origin) == own


def _authority(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)
