"""Errors in the shape that another server's client expects, for the paths of that server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi.problems import MEDIA_TYPE

# A problem document -> the JSON body that the client expects. The status stays.
ErrorBody = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class ErrorShapeMiddleware:
    """Rewrites problem documents of the paths in `shapes` (a path, or a prefix that ends with a slash).

    It is outside of routing and access control, so that all their errors have the client's shape.
    """

    app: ASGIApp
    shapes: Mapping[str, ErrorBody]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        shape = self._shape_of(scope["path"]) if scope["type"] in ("http", "websocket") else None
        await self.app(scope, receive, send if shape is None else _ShapedSend(shape, send))

    def _shape_of(self, path: str) -> ErrorBody | None:
        for key, shape in self.shapes.items():
            if path == key or (key.endswith("/") and path.startswith(key)):
                return shape
        return None


@dataclass
class _ShapedSend:
    """Sends a response; the body of a problem document, which is one message, goes out in another shape."""

    shape: ErrorBody
    send: Send
    start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"].endswith("http.response.start"):  # "websocket.http.response.start": a refused handshake
            headers = MutableHeaders(raw=message["headers"])
            if headers.get("content-type", "").startswith(MEDIA_TYPE):
                self.start = message
                return
        elif self.start is not None:
            start, self.start = self.start, None
            message = await self._send_start(start, message)
        await self.send(message)

    async def _send_start(self, start: Message, message: Message) -> Message:
        content = json.dumps(self.shape(json.loads(message["body"]))).encode()
        headers = MutableHeaders(raw=list(start["headers"]))
        headers["content-type"], headers["content-length"] = "application/json", str(len(content))
        await self.send({**start, "headers": headers.raw})
        return {**message, "body": content}
