from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from helpers.http_harness import (
    GENERATIONS,
    Serve,
    Served,
    connected,
    exchange,
    handshake,
    problem,
    raw_request,
    read_all,
    refused_websocket,
    serving,
)
from starlette.types import Scope

from runtime.config.deployment import Deployment
from server.asgi.access_control import is_allowed_host, is_allowed_origin, is_open, take_query_keys
from server.config import ServerSettings
from server.protocols.acestep import routes as acestep

KEY = "correct-horse"
LOOPBACK = ServerSettings(allowed_origins=("https://studio.example",))
PUBLIC = ServerSettings(host="0.0.0.0", api_key="k")
WITH_TLS = ServerSettings(host="0.0.0.0", api_key="k", certificate="cert.pem")


@pytest.fixture(scope="module")
def served_with_key(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny(), api_key=KEY) as server:
        yield server


# Groups of operations whose errors have the shape of another server's.
THEIRS = {"ACE-Step"}


def described(app: FastAPI) -> list[tuple[str, str, bool]]:
    """(method, path, whether it is another server's) of every operation."""
    items = (
        (path, method, operation) for path, item in app.openapi()["paths"].items() for method, operation in item.items()
    )
    return [
        (method.upper(), re.sub(r"\{.*?\}", "x", path), bool(THEIRS & set(operation["tags"])))
        for path, method, operation in items
    ]


def their_routes(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every operation of other servers."""
    return [(method, path) for method, path, is_theirs in described(app) if is_theirs]


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every route that is not another server's."""
    ours = [(method, path) for method, path, is_theirs in described(app) if not is_theirs]
    hidden = [("GET", route.path) for route in app.routes if not isinstance(route, APIRoute) and hasattr(route, "path")]
    return ours + [(method, re.sub(r"\{.*?\}", "x", path)) for method, path in hidden]


def test_the_key_is_needed_on_every_route_but_live(serve: Serve) -> None:
    served = serve(api_key=KEY)
    routes = every_route(served.app)
    assert ("POST", GENERATIONS) in routes
    with served.client() as client:
        for method, path in [*routes, ("GET", "/openapi.json"), ("GET", "/nowhere"), ("OPTIONS", GENERATIONS)]:
            response = client.request(method, path, json={"prompt": "a"} if method == "POST" else None)
            if path == "/health/live":
                assert response.status_code == 200
            else:
                problem(response, 401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"
        for method, path in their_routes(served.app):
            assert client.request(method, path, json={} if method == "POST" else None).status_code == 401, path


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ({"authorization": f"Bearer {KEY}"}, True),
        ({"authorization": f"bearer  {KEY}"}, True),
        ({"x-api-key": KEY}, True),
        ({"x-goog-api-key": KEY}, True),
        ({"xi-api-key": KEY}, True),
        ({"authorization": "Bearer wrong", "x-api-key": KEY}, False),
        ({"authorization": KEY}, False),
        ({"authorization": f"Basic {KEY}"}, False),
        ({"authorization": f"Bearer {KEY}x"}, False),
        ({"authorization": f"Bearer {KEY[:-1]}"}, False),
        ({"authorization": "Bearer"}, False),
        ({"x-api-key": ""}, False),
        ({"authorization": "Bearer schl\xfcssel".encode("latin-1")}, False),
    ],
)
def test_only_the_exact_key_is_accepted(served_with_key: Served, headers: dict[str, str], is_accepted: bool) -> None:
    response = served_with_key.get("/v1/models", headers=headers)
    assert response.status_code == (200 if is_accepted else 401)


@pytest.mark.parametrize(
    ("settings", "origin", "host", "allowed"),
    [
        (LOOPBACK, "http://127.0.0.1:8000", "127.0.0.1:8000", True),
        (LOOPBACK, "http://localhost:8000", "localhost:8000", True),
        (LOOPBACK, "http://[::1]:8000", "[::1]:8000", True),
        (LOOPBACK, "http://localhost:3000", "localhost:8000", False),
        (LOOPBACK, "https://evil.example", "127.0.0.1:8000", False),
        (LOOPBACK, "http://evil.example:8000", "evil.example:8000", False),
        (LOOPBACK, "null", "127.0.0.1:8000", False),
        (LOOPBACK, "", "127.0.0.1:8000", False),
        (LOOPBACK, "http://[", "127.0.0.1:8000", False),
        (LOOPBACK, "http://127.0.0.1:99999999", "127.0.0.1:8000", False),
        (LOOPBACK, "http://127.0.0.1:8000", "", False),
        (LOOPBACK, "https://studio.example", "127.0.0.1:8000", True),
        (LOOPBACK, "https://studio.example.evil", "127.0.0.1:8000", False),
        (PUBLIC, "http://music.example", "music.example", True),
        (PUBLIC, "http://evil.example", "music.example", False),
        (PUBLIC, "http://music.example:80", "music.example", True),
        (PUBLIC, "http://music.example", "music.example:80", True),
        (PUBLIC, "http://music.example:81", "music.example", False),
        (WITH_TLS, "https://music.example", "music.example", True),
        (WITH_TLS, "http://music.example", "music.example", False),
        (WITH_TLS, "https://music.example:443", "music.example", True),
        (WITH_TLS, "https://music.example", "music.example:443", True),
        (WITH_TLS, "https://music.example:444", "music.example", False),
    ],
)
def test_origins(settings: ServerSettings, origin: str, host: str, allowed: bool) -> None:
    assert is_allowed_origin(origin, host, settings) is allowed


@pytest.mark.parametrize(
    ("settings", "host", "allowed"),
    [
        (LOOPBACK, "127.0.0.1:8000", True),
        (LOOPBACK, "127.0.0.2", True),
        (LOOPBACK, "LOCALHOST:1", True),
        (LOOPBACK, "[::1]:8000", True),
        (LOOPBACK, "studio.example", True),
        (LOOPBACK, "evil.example:8000", False),
        (LOOPBACK, "localhost.evil.example", False),
        (LOOPBACK, "192.168.0.1", False),
        (LOOPBACK, "0.0.0.0:8000", False),
        (LOOPBACK, "", False),
        (LOOPBACK, "[", False),
        (PUBLIC, "music.example", True),
        (ServerSettings(allowed_origins=("*",)), "music.example", True),
    ],
)
def test_hosts(settings: ServerSettings, host: str, allowed: bool) -> None:
    assert is_allowed_host(host, settings) is allowed


def test_no_route_of_a_loopback_server_answers_to_a_foreign_host(serve: Serve) -> None:
    served = serve()
    foreign = {"host": f"evil.example:{served.port}"}
    with served.client() as client:
        for method, path in every_route(served.app):
            problem(client.request(method, path, headers=foreign), 403, "host_not_allowed")
        for method, path in their_routes(served.app):
            assert client.request(method, path, headers=foreign).status_code == 403, path
    for request, status in ((handshake(host="evil.example"), b"403"), (b"GET /health/live HTTP/1.0\r\n\r\n", b"200")):
        with connected(served, request) as connection:
            assert read_all(connection)[9:12] == status


def test_pages_of_other_origins_are_refused(serve: Serve) -> None:
    served = serve(allowed_origins=("https://studio.example",))
    body = {"prompt": "a"}
    with served.client() as client:
        problem(client.post(GENERATIONS, json=body, headers={"origin": "https://evil.example"}), 403)
        preflight = {"origin": "https://evil.example", "access-control-request-method": "POST"}
        problem(client.options(GENERATIONS, headers=preflight), 403)
        mine = client.post(GENERATIONS, json=body, headers={"origin": "https://studio.example"})
        assert mine.status_code == 200
        assert mine.headers["access-control-allow-origin"] == "https://studio.example"
        assert "X-Seed" in mine.headers["access-control-expose-headers"]
        preflight["origin"] = "https://studio.example"
        answer = client.options(GENERATIONS, headers=preflight)
        assert answer.status_code == 200
        assert "POST" in answer.headers["access-control-allow-methods"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", True),
        ("OPTIONS", "/v1/models", False),
        ("HEAD", "/page/app.js", True),
        ("POST", "/", False),
        ("GET", "/page", False),
        ("GET", "/v1/page/", False),
        ("GET", "/health/live", True),
        ("GET", "/health/ready", False),
    ],
)
def test_the_page_and_liveness_need_no_key(method: str, path: str, expected: bool) -> None:
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": []}
    assert is_open(scope) is expected
    assert not is_open({"type": "websocket", "path": "/"})


def body_before_the_key(path: str = "/query_result") -> bytes:
    """A request whose body may have the key, and the first byte of that."""
    return raw_request(bytes(60_000), path=path)[:-59_999]


@pytest.mark.parametrize("path", acestep.BODY_KEY_PATHS)
def test_a_body_that_may_have_the_key_arrives_soon(
    served_with_key: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.asgi.access_control.KEY_BODY_TIMEOUT_S", 0.1)
    answer = exchange(served_with_key, body_before_the_key(path))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"send Authorization: Bearer KEY" in answer


def test_bodies_that_may_have_the_key_take_no_place_and_make_room(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.asgi.access_control.KEY_BODY_TIMEOUT_S", 600.0)
    served = serve(api_key=KEY, max_connections=8, body_timeout_s=600.0)
    with ExitStack() as stack:
        waiting = [stack.enter_context(connected(served)) for _ in range(16)]
        for connection in waiting:
            connection.sendall(body_before_the_key())
        with served.client(headers={"x-api-key": KEY}) as client:
            assert client.get("/v1/models").status_code == 200
            assert client.get("/health/live").status_code == 200
            assert client.post("/query_result", json={"task_id_list": []}).status_code == 200
        for _ in range(16):
            stack.enter_context(connected(served))
        assert read_all(waiting[0]) == b""


@pytest.mark.parametrize(
    ("query", "keys", "left"),
    [
        (b"", [], b""),
        (b"key=a", ["a"], b""),
        (b"x=1&key=a%26b&y=2", ["a&b"], b"x=1&y=2"),
        (b"k%65y=a&key=", ["a", ""], b""),
        (b"keys=a", [], b"keys=a"),
    ],
)
def test_the_key_is_taken_out_of_a_query_string(query: bytes, keys: list[str], left: bytes) -> None:
    scope: Scope = {"query_string": query}
    assert take_query_keys(scope) == keys
    assert scope["query_string"] == left


def test_websockets_need_the_key_and_an_allowed_origin(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    served = serve(api_key=KEY)
    assert refused_websocket(served, "/v1/nothing") == (401, "unauthorized")
    assert refused_websocket(served, "/v1/nothing?key=wrong") == (401, "unauthorized")
    assert refused_websocket(served, f"/v1/nothing?key={KEY}") == (404, "not_found")
    assert refused_websocket(served, "/v1/nothing", headers={"xi-api-key": KEY}) == (404, "not_found")
    evil = {"origin": "https://evil.example"}
    assert refused_websocket(served, f"/v1/nothing?key={KEY}", headers=evil) == (403, "origin_not_allowed")
    own = {"origin": served.url}
    assert refused_websocket(served, f"/v1/nothing?key={KEY}", headers=own) == (404, "not_found")
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("websockets.client")]
    assert any("/v1/nothing" in message for message in logged)
    assert not any(KEY in message for message in logged)
