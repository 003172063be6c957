"""Access control: host names, the origins of pages, and the API key."""

from __future__ import annotations

import hmac
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.base.untrusted import quoted
from server.asgi.openapi import OPEN_PATH
from server.asgi.problems import ProblemError, problem_response
from server.asgi.request_body import UNCOUNTED_BYTES, deadline
from server.asgi.shares import Shares, client_of
from server.config import ServerSettings, is_loopback_host

# The pages hold no data; they ask for the key where the server needs one.
PAGE_PATHS = ("/", "/docs", "/docs/live", "/docs/clients")
PAGE_FILES = "/page/"
KEY_HEADERS = ("x-api-key", "x-goog-api-key", "xi-api-key")
KEY_QUERY = "key"
HEADER_FIX = "send Authorization: Bearer KEY"
KEY_IN_BODY = "key_in_body"
# Bodies that may have the key: how long they may take to arrive, and how many are read and checked at a time.
KEY_BODY_TIMEOUT_S, MAX_KEY_BODIES = 2.0, 64


@dataclass
class AuthMiddleware:
    """Refuses requests for other hosts and web pages of other origins (403), and requests without the API key (401).

    The key comes as `Authorization: Bearer`, as one of KEY_HEADERS or, because a browser can do no other, as `?key=` of
    a WebSocket. `body_key_paths`: whose small bodies may have the key; their endpoints call check_body_key. Such a body
    is read here, so that an endpoint does not wait for it.
    """

    app: ASGIApp
    settings: ServerSettings
    body_key_paths: Container[str] = ()
    key_bodies: Shares = field(default_factory=lambda: Shares("reads bodies for their key", MAX_KEY_BODIES, 0.125))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        problem = self._refusal(Headers(scope=scope), scope)
        if problem is None and scope["state"].get(KEY_IN_BODY):
            try:
                receive = await self._read_ahead(client_of(scope), receive)
            except ProblemError as error:
                problem = error
        if problem is None:
            await self.app(scope, receive, send)
            return
        await problem_response(problem, scope["state"]["request_id"])(scope, receive, send)

    def _refusal(self, headers: Headers, scope: Scope) -> ProblemError | None:
        keys = [*_header_keys(headers), *(take_query_keys(scope) if scope["type"] == "websocket" else ())]
        host, origin = headers.get("host"), headers.get("origin")
        if host is not None and not is_allowed_host(host, self.settings):
            return ProblemError(
                403,
                "host_not_allowed",
                f"this server is not called {quoted(host)}: it listens on {self.settings.host}",
                fix="use localhost; behind a proxy, add https://NAME to [server] allowed_origins",
            )
        if origin is not None and not is_allowed_origin(origin, host or "", self.settings):
            return ProblemError(
                403,
                "origin_not_allowed",
                "this server does not accept requests from pages of this origin",
                fix="add the page's origin to [server] allowed_origins",
            )
        if is_open(scope) or is_key(self.settings, *keys[:1]):
            return None
        if not keys and scope["path"] in self.body_key_paths and _has_small_body(headers):
            scope["state"][KEY_IN_BODY] = True
            return None
        return _unauthorized()

    async def _read_ahead(self, client: str, receive: Receive) -> Receive:
        """`receive` after the whole body has arrived. Raises ProblemError 408, 429 or 503."""
        messages: list[Message] = []
        async with deadline(KEY_BODY_TIMEOUT_S, HEADER_FIX) as end:
            reading = self.key_bodies.take(client, evict=end)
            try:
                while not messages or messages[-1].get("more_body", False):
                    messages.append(await receive())
                    reading.touch()
            finally:
                reading.release()

        async def receive_again() -> Message:
            return messages.pop(0) if messages else await receive()

        return receive_again


def is_key(settings: ServerSettings, given: str | None = None) -> bool:
    """Whether a request with this key may pass."""
    if settings.api_key is None:
        return True
    expected = settings.api_key.get_secret_value()
    return given is not None and hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def check_body_key(request: Request, settings: ServerSettings, given: str) -> None:
    """Check the key in a body where no header had one. Raises ProblemError 401."""
    if request.scope["state"].get(KEY_IN_BODY) and not is_key(settings, given):
        raise _unauthorized()


def _unauthorized() -> ProblemError:
    return ProblemError(
        401,
        "unauthorized",
        "this server needs an API key",
        fix=HEADER_FIX,
        headers={"WWW-Authenticate": "Bearer"},
    )


def _has_small_body(headers: Headers) -> bool:
    """Whether it may be read before its key is checked: no budget counts it."""
    length = headers.get("content-length", "")
    return re.fullmatch("[0-9]{1,5}", length) is not None and int(length) <= UNCOUNTED_BYTES


def is_open(scope: Scope) -> bool:
    """Whether a request needs no key: liveness, the static files of the page, and preflights."""
    path: str = scope["path"]
    if scope.get("method") == "OPTIONS" and "access-control-request-method" in Headers(scope=scope):
        return True
    is_page = path in PAGE_PATHS or path.startswith(PAGE_FILES)
    return path == OPEN_PATH or (is_page and scope.get("method") in ("GET", "HEAD"))


def _header_keys(headers: Headers) -> Iterator[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield token.strip()
    yield from (headers[name] for name in KEY_HEADERS if name in headers)


def take_query_keys(scope: Scope) -> list[str]:
    """The API keys in a query string; the scope's is left without them, because servers log it."""
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    others = [(name, value) for name, value in pairs if name != KEY_QUERY]
    scope["query_string"] = urlencode(others).encode()
    return [value for name, value in pairs if name == KEY_QUERY]


def is_allowed_host(host: str, settings: ServerSettings) -> bool:
    """Whether the server answers to `host`, a Host header.

    A server on a loopback address answers to loopback names and to the hosts of allowed origins: a page of another name
    that resolves to this machine (DNS rebinding) could read every answer.
    """
    if not settings.is_loopback or "*" in settings.allowed_origins:
        return True
    own = _authority(f"{settings.scheme}://{host}")
    if own is None:
        return False
    named = [_authority(origin) for origin in settings.allowed_origins]
    return is_loopback_host(own[0]) or own[0] in [authority[0] for authority in named if authority]


def is_allowed_origin(origin: str, host: str, settings: ServerSettings) -> bool:
    """Whether a page of `origin` may call: a configured origin, or the server's own, which is that of `host`."""
    if "*" in settings.allowed_origins or origin in settings.allowed_origins:
        return True
    own = _authority(f"{settings.scheme}://{host}")
    return own is not None and is_allowed_host(host, settings) and _authority(origin) == own


def _authority(url: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname:
        return None
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)
