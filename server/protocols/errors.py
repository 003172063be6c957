"""Errors in the shape that another server's client expects, for the paths of that server; else as problem documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.asgi.problems import MEDIA_TYPE, http_problem

# JSON-RPC's code of a request that is refused as such.
INVALID_REQUEST = -32600
# A problem document -> the JSON body that the client expects. The status stays.
ErrorBody = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class ErrorShapeMiddleware:
    """Rewrites problem documents of the paths in `shapes` (a path, or a prefix that ends with a slash).

    Errors in plain text, as Starlette has them for ranges of a file and for CORS, are problem documents first. It is
    outside of routing and access control, so that all their errors have the client's shape.
    """

    app: ASGIApp
    shapes: Mapping[str, ErrorBody]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Process one request."""
        if scope["type"] in ("http", "websocket"):
            send = _ShapedSend(self._shape_of(scope["path"]), scope["state"]["request_id"], send)
        await self.app(scope, receive, send)

    def _shape_of(self, path: str) -> ErrorBody | None:
        for key, shape in self.shapes.items():
            if path == key or (key.endswith("/") and path.startswith(key)):
                return shape
        return None


@dataclass
class _ShapedSend:
    """Sends a response; the body of an error, which is one message, goes out in another shape. None: as a document."""

    shape: ErrorBody | None
    request_id: str
    send: Send
    start: Message | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"].endswith("http.response.start"):  # "websocket.http.response.start": a refused handshake
            kind = MutableHeaders(raw=message["headers"]).get("content-type", "")
            is_plain = message["status"] >= 400 and kind.startswith("text/plain")
            if is_plain or (self.shape is not None and kind.startswith(MEDIA_TYPE)):
                self.start = message
                return
        elif self.start is not None:
            start, self.start = self.start, None
            message = await self._send_start(start, message)
        await self.send(message)

    async def _send_start(self, start: Message, message: Message) -> Message:
        headers = MutableHeaders(raw=list(start["headers"]))
        content, kind = message["body"], MEDIA_TYPE
        if not headers["content-type"].startswith(MEDIA_TYPE):
            problem = http_problem(HTTPException(start["status"], content.decode()))
            content = problem.document(self.request_id).model_dump_json(exclude_none=True).encode()
        if self.shape is not None:
            content, kind = json.dumps(self.shape(json.loads(content))).encode(), "application/json"
        headers["content-type"], headers["content-length"] = kind, str(len(content))
        await self.send({**start, "headers": headers.raw})
        return {**message, "body": content}


def problem_text(document: Mapping[str, Any], retry_after: str = "") -> str:
    """A problem document as lines. retry_after: seconds, as in the header."""
    what, findings = document["detail"], document.get("errors") or []
    lines = [f"{document['title']}: {what}"]
    lines += [f"- {item['pointer']}: {item['detail']}" for item in findings if item["detail"] not in what]
    lines += [f"Fix: {document['fix']}"] if document.get("fix") else []
    lines += [f"Try again in {retry_after} s."] if retry_after else []
    return "\n".join(lines)


def json_rpc_error(document: dict[str, Any]) -> dict[str, Any]:
    """The body of a request to /mcp that is refused: the SDKs of clients show the error of a JSON-RPC answer alone."""
    error = {"code": INVALID_REQUEST, "message": problem_text(document), "data": document}
    return {"jsonrpc": "2.0", "id": None, "error": error}
