"""What is sent as a header is valid for h11, made of any text."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from helpers.http_harness import Served, sent_head
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from server.asgi.headers import MAX_BYTES, VALUE_BYTES, fitting, percent_encoded, sendable
from server.asgi.middleware import RequestContextMiddleware
from server.config import MAX_ADDRESSES
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


def test_as_many_edges_as_there_may_be_fit_into_the_pages_policy(serve: Callable[..., Served]) -> None:
    edges = [f"http://{number:05}" for number in range(MAX_ADDRESSES // 12)]
    with serve(edges=edges).client() as client:
        headers = client.get("/", headers={"X-Request-ID": "x" * 128}).headers
    assert headers["content-security-policy"].count("ws://") == len(edges)
    assert sum(len(name) + len(value) + 4 for name, value in headers.raw) < MAX_BYTES
