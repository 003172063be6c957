"""What a replica sends to the others, and what it makes of their answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import starlette.requests

from server.asgi.problems import ProblemError
from server.service.forwarding import FORWARDED_HEADER, ask_all, ask_owner
from server.service.lease import Lease

KEY = (b"x-api-key", b"secret")


@contextmanager
def replica(
    name: str, status: int, body: bytes = b"", missing_bytes: int = 0
) -> Iterator[tuple[Lease, list[tuple[str, Message]]]]:
    """A server that answers everything so, its lease, and the requests that it got. missing_bytes: it ends before."""
    asked: list[tuple[str, Message]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) + missing_bytes))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Lease(name, f"127.0.0.1:{server.server_port}", "", "ready", 0, 1, 0.0), asked
        server.shutdown()


def request(*headers: tuple[bytes, bytes]) -> starlette.requests.Request:
    return starlette.requests.Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/v1/sessions/a b",
            "query_string": b"key=secret",
            "headers": [(b"host", b"edge"), (b"origin", b"http://edge"), *headers],
        }
    )


GONE = Lease("gone", "127.0.0.1:1", "", "ready", 0, 1, 0.0)


def test_the_one_that_has_it_answers_also_while_another_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with replica("one", 404) as (one, _), replica("two", 200, b"it") as (two, asked):
        assert asyncio.run(ask_owner(request(KEY), [one, GONE, two])) == b"it"
        ((path, headers),) = asked
    assert path == "/v1/sessions/a%20b"
    assert (headers["x-api-key"], headers[FORWARDED_HEADER], headers["origin"]) == ("secret", "1", None)


def test_what_is_passed_on_is_not_passed_on_again() -> None:
    passed_on = request((FORWARDED_HEADER.lower().encode(), b"1"))
    assert asyncio.run(ask_owner(passed_on, [GONE])) is None
    assert asyncio.run(ask_all(passed_on, [GONE])) == []


def test_one_that_does_not_answer_or_fails_is_named() -> None:
    with replica("one", 404) as (one, _), replica("two", 500) as (two, _), replica("cut", 200, b"{", 9) as (cut, _):
        assert asyncio.run(ask_owner(request(), [one])) is None
        for silent in (GONE, two, cut):
            for ask in (ask_owner, ask_all):
                with pytest.raises(ProblemError, match=f"replica {silent.name}") as error:
                    asyncio.run(ask(request(), [one, silent]))
                assert (error.value.status, error.value.headers["Retry-After"]) == (503, "3")


def test_a_list_has_what_every_replica_has() -> None:
    with replica("one", 200, b"1") as (one, _), replica("two", 200, b"2") as (two, _):
        assert asyncio.run(ask_all(request(), [one, two])) == [b"1", b"2"]
