"""What is sent as a header is valid for h11, made of any text."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest
from helpers.http_harness import (
    GENERATIONS,
    Serve,
    Served,
    connected,
    eventually,
    exchange,
    open_websocket,
    problem,
    raw_request,
    read_all,
    sent_head,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.types import Message

from runtime.base import errors
from runtime.base.errors import (
    EngineDeadError,
    EngineMismatchError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    ShapeError,
    TickError,
)
from server.asgi.middleware import MAX_BYTES, VALUE_BYTES, RequestContextMiddleware, sendable
from server.asgi.problems import ProblemError, as_problem, http_problem, pointer, problem_response
from server.config import MAX_ADDRESSES
from server.service.generation_cards import fitting, percent_encoded
from server.service.metrics import Metrics


@settings(max_examples=50)
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_can_be_sent(value: bytes) -> None:
    for header in sendable([(b"x-a", value)]):
        assert b": ".join(header) in sent_head([header]).split(b"\r\n")


def test_what_can_be_sent_is_sent_as_it_is_and_what_is_too_long_is_not() -> None:
    headers = [(b"a", b'inline; filename="a%20b.wav"'), (b"b", b"x" * VALUE_BYTES)]
    others = [(b"c", b"x" * (VALUE_BYTES + 1)), (b"d", b" \tjazz ")]
    assert sendable([*headers, *others]) == [*headers, (b"d", b"%09jazz")]


@settings(max_examples=50)
@given(st.text(), st.integers(0, 40))
def test_texts_are_cut_at_whole_characters(text: str, num_bytes: int) -> None:
    encoded = percent_encoded(text, num_bytes)
    assert len(encoded) <= num_bytes
    assert percent_encoded(text).startswith(encoded)
    sent_head([(b"x-a", encoded.strip().encode())])


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(1, ""), (2, ""), (3, "{a}"), (6, "{a}"), (7, "{a, bb}"), (9, "{a, bb}"), (10, "{a, bb, c}")],
)
def test_as_many_parts_as_fit_are_taken_whole(num_bytes: int, text: str) -> None:
    assert fitting(iter(["a", "bb", "c"]), num_bytes, ends="{}") == text


@pytest.mark.parametrize("value", ["caf\xe9 \x7f", " a ", "a\tb\r\nX-Evil: 1"])
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_every_response_of_the_app_passes_there(kind: str, value: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        start = "http.response.start" if kind == "http" else "websocket.http.response.start"
        await send({"type": start, "status": 200, "headers": [(b"x-a", value.encode("latin-1"))]})

    async def send(message: Message) -> None:
        messages.append(message)

    messages: list[Message] = []
    middleware, nothing = RequestContextMiddleware(app, Metrics().requests), None
    scope = {"type": kind, "method": "GET", "path": "/", "headers": []}
    asyncio.run(middleware(scope, nothing, send))  # type: ignore[arg-type]
    assert b"X-Evil" not in (head := sent_head(messages[0]["headers"]).split(b"\r\n"))
    assert head[1].startswith(b"x-a: ")


def test_no_url_of_a_client_makes_headers_that_are_too_long(served: Served) -> None:
    with served.client() as client:
        for path in ("/v1/models/?" + "a" * 5000, "/v1/models/?a=%0d%0a" + "%c3%a9" * 100, "/x" + "%e2%82%ac" * 500):
            answer = client.get(path, headers={"X-Request-ID": "x" * 128})
            assert answer.status_code in (307, 404)
            assert sum(len(name) + len(value) + 4 for name, value in answer.headers.raw) < MAX_BYTES


def test_as_many_edges_as_there_may_be_fit_into_the_pages_policy(serve: Serve) -> None:
    edges = [f"http://{number:05}" for number in range(MAX_ADDRESSES // 12)]
    with serve(edges=edges).client() as client:
        headers = client.get("/", headers={"X-Request-ID": "x" * 128}).headers
    assert headers["content-security-policy"].count("ws://") == len(edges)
    assert sum(len(name) + len(value) + 4 for name, value in headers.raw) < MAX_BYTES


def test_runtime_errors_become_problems() -> None:
    family = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, TickError)]
    statuses = {cls: cls.status for cls in family}
    assert len(family) > 10
    assert set(statuses.values()) <= {404, 409, 415, 422, 500, 503, 504}
    expected = {RequestError: 422, ShapeError: 422, QueueFullError: 503, EngineDeadError: 503, TickError: 500}
    assert statuses.items() >= expected.items()
    for error in (cls("no") for cls in (*expected, EngineMismatchError)):
        document = as_problem(error).document("id")
        assert (document.status, document.code, document.detail) == (error.status, error.code, "no")


def test_a_problem_has_the_field_the_fix_and_when_to_ask_again() -> None:
    document = as_problem(RequestError("too big", field="dcw.low", fix="make it smaller")).document()
    assert document.errors is not None
    assert (document.errors[0].pointer, document.fix) == ("/dcw/low", "make it smaller")
    assert (pointer(["a/b", "c~d", 0]), pointer([])) == ("/a~1b/c~0d/0", "")
    assert as_problem(QueueFullError("full", retry_after_s=2.3)).headers["Retry-After"] == "3"
    assert as_problem(QueueTimeoutError("late")).headers["Retry-After"] == "1"
    assert as_problem(EngineDeadError("no")).headers["Retry-After"] == "1", "as all that may be over later"
    assert as_problem(EngineMismatchError("no")).headers == as_problem(RequestError("no")).headers == {}
    response = problem_response(ProblemError(400, "bad", "has \ud800"), "id")
    assert response.body.count(rb"has \\ud800") == 1, "lone surrogates do not break the document"


def test_an_error_of_starlette_says_what_it_says_itself_or_what_its_status_means() -> None:
    for detail, expected in (("", "no route has this path"), ("Not Found", "no route has this path"), ("gone", "gone")):
        document = http_problem(HTTPException(404, detail)).document()
        assert (document.code, document.detail) == ("not_found", expected)
        assert document.fix == "GET /openapi.json lists every route"
    document = http_problem(HTTPException(426)).document()
    assert (document.code, document.detail, document.fix) == ("upgrade_required", "Upgrade Required", None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 415, 426, 501])
def test_starlettes_errors_become_problems(status: int) -> None:
    document = http_problem(HTTPException(status, headers={"X-A": "b"})).document()
    assert document.status == status
    assert document.detail
    assert document.code.replace("_", "").isalpha()


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
    head, get = served.send("HEAD", path), served.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "BREW"])
def test_other_methods_are_refused_with_the_allowed_ones(served: Served, method: str) -> None:
    response = served.send(method, GENERATIONS)
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
    with connected(served, raw_request(b'{"prompt": "a"}')) as first:
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
    answer = exchange(served, raw_request(bytes(2 * 2**20), path="/nowhere"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"connection: close" in answer.lower()


def test_an_early_response_does_not_wait_for_the_whole_body(served: Served) -> None:
    with connected(served, raw_request(bytes(1000), path="/nowhere")[:-500]) as connection:
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
    response: httpx.Response = served.get("/metrics")
    document = problem(response, 500, "internal_error")
    assert "secret" not in str(document)
    assert response.headers["x-request-id"] in caplog.text
