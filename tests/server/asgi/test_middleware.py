from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

import httpx
import pytest
from helpers.http_harness import (
    GENERATIONS,
    Served,
    connected,
    eventually,
    open_websocket,
    problem,
    raw_request,
    read_all,
)
from starlette.types import Message

from server.asgi.middleware import RequestContextMiddleware
from server.service.metrics import Metrics

Serve = Callable[..., Served]


def test_valid_request_ids_are_returned_and_others_replaced(served: Served) -> None:
    with served.client() as client:
        assert client.get("/health/live", headers={"x-request-id": "my-id.1"}).headers["x-request-id"] == "my-id.1"
        made = {client.get("/health/live").headers["x-request-id"] for _ in range(3)}
        assert len(made) == 3
        for bad in ("a b", "x" * 129, "a\tb", "<script>"):
            answer = client.get("/nowhere", headers={"x-request-id": bad})
            assert answer.headers["x-request-id"] != bad
            assert bad not in answer.text


@pytest.mark.parametrize(
    "path", ["/health/live", "/health/ready", "/metrics", "/v1/models", "/v1/schema", "/openapi.json"]
)
def test_head_is_get_without_a_body(served: Served, path: str) -> None:
    with served.client() as client:
        head, get = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "BREW"])
def test_other_methods_are_refused_with_the_allowed_ones(served: Served, method: str) -> None:
    with served.client() as client:
        response = client.request(method, GENERATIONS)
        assert (response.status_code, response.headers["allow"]) == (405, "POST, OPTIONS")
        if method != "HEAD":
            assert problem(response, 405, "method_not_allowed")["fix"] == "see the Allow header"


def test_options_lists_the_allowed_methods(served: Served) -> None:
    with served.client() as client:
        for path, allow in ((GENERATIONS, "POST, OPTIONS"), ("/v1/models", "GET, HEAD, OPTIONS")):
            response = client.options(path)
            assert (response.status_code, response.headers["allow"], response.content) == (204, allow, b"")
        problem(client.options("/nowhere"), 404)
        assert "allow" not in client.get("/nowhere").headers


def test_requests_beyond_the_limit_are_refused(serve: Serve) -> None:
    served = serve(max_connections=1)
    served.pause()
    with connected(served) as first:
        first.sendall(raw_request(b'{"prompt": "a"}'))
        while not served.service.admission.num_pending:
            pass
        with served.client() as client:
            busy = client.get("/v1/models")
            assert {client.get(path).status_code for path in ("/health/live", "/", "/page/main.js")} == {200}
        problem(busy, 503, "busy")
        assert int(busy.headers["retry-after"]) >= 1
        served.resume()
        assert first.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_is_still_sending_gets_an_early_response(served: Served) -> None:
    """The client sends two MiB to an unknown path; it gets the response before the connection ends."""
    with connected(served) as connection:
        connection.sendall(raw_request(bytes(2 * 2**20), path="/nowhere"))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in answer.lower()


def test_an_early_response_does_not_wait_for_the_whole_body(served: Served) -> None:
    with connected(served) as connection:
        connection.sendall(raw_request(bytes(1000), path="/nowhere")[:-500])
        assert read_all(connection).startswith(b"HTTP/1.1 404 ")


def test_an_exception_in_the_app_counts_as_500() -> None:
    metrics = Metrics()

    async def broken(*_: object) -> None:
        raise LookupError

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(_: Message) -> None: ...

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    with pytest.raises(LookupError):
        asyncio.run(RequestContextMiddleware(broken, metrics.requests)(scope, receive, send))
    assert metrics.requests.labels("GET", "unmatched", "500")._value.get() == 1


def access_lines(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """(level, message) of the access log."""
    return [(item.levelno, item.getMessage()) for item in caplog.records if item.name == "tickrt.access"]


def test_every_request_has_one_line_in_the_access_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "tickrt.access")
    body = served.post(response_format="pcm").content
    with served.client() as client:
        client.get("/nowhere%0aroot/" + "x" * 300, params={"key": "secret"}, headers={"x-request-id": "my-id"})
        client.get("/health/live")
        client.get("/metrics")
        client.head("/v1/models")
    eventually(lambda: len(access_lines(caplog)) == 5)
    levels, lines = zip(*access_lines(caplog), strict=True)
    assert levels == (logging.INFO, logging.INFO, logging.DEBUG, logging.DEBUG, logging.INFO)
    pattern = rf"127\.0\.0\.1 POST {GENERATIONS} 200 \d+\.\d{{3}} s {len(body)} bytes, request [0-9a-f]{{32}}"
    assert re.fullmatch(pattern, lines[0])
    assert re.fullmatch(r"127\.0\.0\.1 GET /nowhere%0Aroot/x{180,190} 404 .* bytes, request my-id", lines[1])
    assert "HEAD /v1/models 200" in lines[4]
    assert " 0 bytes" in lines[4]
    assert "secret" not in caplog.text


def test_a_websocket_has_one_line_when_it_has_ended(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tickrt.access")
    with open_websocket(served, "/v1/live?key=secret") as connection:
        connection.send("{}")
        sent = len(connection.recv())
    eventually(lambda: access_lines(caplog))
    ((_, line),) = access_lines(caplog)
    assert line.startswith("127.0.0.1 WEBSOCKET /v1/live 101 ")
    assert int(line.split()[6]) >= sent


def test_internal_errors_have_a_request_id_and_no_details(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise LookupError("secret detail")

    monkeypatch.setattr(served.service.metrics, "render", broken)
    with served.client() as client:
        response: httpx.Response = client.get("/metrics")
    document = problem(response, 500, "internal_error")
    assert "secret" not in str(document)
    assert response.headers["x-request-id"] in caplog.text
