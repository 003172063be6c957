from __future__ import annotations

import asyncio
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message

from server.asgi.problems import ProblemError, problem_response
from server.compat.errors import ErrorShapeMiddleware


def answer_of(app: ASGIApp, path: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body of `path` where all that begins with /theirs/ has another shape."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    def shape(problem: dict[str, Any]) -> dict[str, Any]:
        return {"error": problem["detail"]}

    scope = {"type": "http", "method": "GET", "path": path, "headers": []}
    asyncio.run(ErrorShapeMiddleware(app, {"/theirs/": shape, "/one": shape})(scope, receive, send))
    body = b"".join(message["body"] for message in sent[1:])
    return sent[0]["status"], Headers(raw=sent[0]["headers"]), body


def refused() -> Response:
    return problem_response(ProblemError(429, "too_many", "too many", headers={"Retry-After": "3"}), "id")


def test_a_problem_has_the_clients_shape() -> None:
    for path in ("/theirs/x", "/one"):
        status, headers, body = answer_of(refused(), path)
        assert (status, body) == (429, b'{"error": "too many"}')
        assert headers["content-type"] == "application/json"
        assert headers["content-length"] == str(len(body))
        assert headers["retry-after"] == "3"


def test_problems_of_other_paths_stay() -> None:
    for path in ("/ours", "/one/x", "/theirs"):
        status, headers, body = answer_of(refused(), path)
        assert status == 429
        assert headers["content-type"] == "application/problem+json"
        assert b"urn:tickrt:problem:too_many" in body


def test_other_responses_stay() -> None:
    status, headers, body = answer_of(JSONResponse({"a": 1}, status_code=418), "/theirs/x")
    assert (status, headers["content-type"], body) == (418, "application/json", b'{"a":1}')
