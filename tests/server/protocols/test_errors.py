from __future__ import annotations

import asyncio
import json
from typing import Any

from helpers.http_harness import Serve, problem, refused_websocket
from helpers.lyria_client import PATH as LYRIA
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message

from server.asgi.problems import MEDIA_TYPE, ProblemError, problem_response
from server.protocols.errors import ErrorShapeMiddleware


def answer_of(app: ASGIApp, path: str) -> tuple[int, Headers, bytes]:
    """Status, headers and body of `path` where all that begins with /theirs/ has another shape."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b""}

    async def send(message: Message) -> None:
        sent.append(message)

    def shape(problem: dict[str, Any]) -> dict[str, Any]:
        return {"error": problem["detail"]}

    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "state": {"request_id": "id"}}
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


def test_an_error_in_plain_text_is_a_problem() -> None:
    response = PlainTextResponse("Range header: end must be greater", 416, {"content-range": "bytes */100"})
    status, headers, body = answer_of(response, "/ours")
    assert (status, headers["content-type"], headers["content-range"]) == (416, MEDIA_TYPE, "bytes */100")
    found = json.loads(body)
    assert found["code"] == "range_not_satisfiable"
    assert (found["detail"], found["instance"]) == ("Range header: end must be greater", "urn:tickrt:request:id")
    assert headers["content-length"] == str(len(body))
    assert answer_of(response, "/theirs/x")[2] == b'{"error": "Range header: end must be greater"}'
    assert answer_of(PlainTextResponse("", 404), "/ours")[2].startswith(b'{"type":"urn:tickrt:problem:not_found"')
    assert answer_of(PlainTextResponse("fine"), "/ours")[2] == b"fine"


def test_other_responses_stay() -> None:
    status, headers, body = answer_of(JSONResponse({"a": 1}, status_code=418), "/theirs/x")
    assert (status, headers["content-type"], body) == (418, "application/json", b'{"a":1}')


def test_other_servers_do_not_answer_where_they_are_switched_off(serve: Serve) -> None:
    served = serve(clients=())
    for path in ("/release_task", "/mcp"):
        problem(served.send("POST", path, json={}), 404, "not_found")
    problem(served.get("/health"), 404, "not_found")
    assert refused_websocket(served, LYRIA) == (404, "not_found")
