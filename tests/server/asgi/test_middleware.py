from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from helpers.http_harness import GENERATIONS, Served, connected, problem, raw_request, read_all, serving
from starlette.types import Message

from runtime.config.deployment import Deployment
from server.asgi.middleware import RequestContextMiddleware, is_allowed_origin
from server.config import ServerSettings
from server.metrics import Metrics

Serve = Callable[..., Served]
KEY = "correct-horse"


@pytest.fixture(scope="module")
def served_with_key(tiny: Callable[..., Deployment]) -> Iterator[Served]:
    with serving(tiny(), api_key=KEY) as server:
        yield server


def every_route(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every route."""
    document = app.openapi()
    described = [(method.upper(), path) for path, item in document["paths"].items() for method in item]
    hidden = [("GET", route.path) for route in app.routes if not isinstance(route, APIRoute) and hasattr(route, "path")]
    return [(method, re.sub(r"\{.*?\}", "x", path)) for method, path in described + hidden]


def test_the_key_is_needed_on_every_route_but_live(serve: Serve) -> None:
    served = serve(api_key=KEY)
    routes = every_route(served.app)
    assert ("POST", GENERATIONS) in routes
    assert ("GET", "/openapi.json") in routes
    with served.client() as client:
        for method, path in [*routes, ("GET", "/nowhere"), ("OPTIONS", GENERATIONS)]:
            response = client.request(method, path, json={"prompt": "a"} if method == "POST" else None)
            if path == "/health/live":
                assert response.status_code == 200
            else:
                problem(response, 401, "unauthorized")
                assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ({"authorization": f"Bearer {KEY}"}, True),
        ({"authorization": f"bearer  {KEY}"}, True),
        ({"x-api-key": KEY}, True),
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
    with served_with_key.client() as client:
        response = client.get("/v1/models", headers=headers)
    assert response.status_code == (200 if is_accepted else 401)


def test_an_unauthorized_generation_is_not_admitted(served_with_key: Served) -> None:
    problem(served_with_key.post(), 401)
    assert served_with_key.service.admission.num_pending == 0


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://localhost:8000", "localhost:8000", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://localhost:3000", "localhost:8000", False),
        ("https://evil.example", "127.0.0.1:8000", False),
        ("http://evil.example:8000", "evil.example:8000", False),
        ("null", "127.0.0.1:8000", False),
        ("", "127.0.0.1:8000", False),
        ("http://[", "127.0.0.1:8000", False),
        ("http://127.0.0.1:99999999", "127.0.0.1:8000", False),
        ("http://127.0.0.1:8000", "", False),
        ("https://studio.example", "127.0.0.1:8000", True),
        ("https://studio.example.evil", "127.0.0.1:8000", False),
    ],
)
def test_origins(origin: str, host: str, allowed: bool) -> None:
    settings = ServerSettings(allowed_origins=("https://studio.example",))
    assert is_allowed_origin(origin, host, settings) is allowed


def test_a_public_server_accepts_pages_of_its_own_host_name() -> None:
    settings = ServerSettings(host="0.0.0.0", api_key="k")
    assert is_allowed_origin("http://music.example", "music.example", settings)
    assert not is_allowed_origin("http://evil.example", "music.example", settings)


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
            problem(response, 405, "method_not_allowed")


def test_options_lists_the_allowed_methods(served: Served) -> None:
    with served.client() as client:
        for path, allow in ((GENERATIONS, "POST, OPTIONS"), ("/v1/models", "GET, HEAD, OPTIONS")):
            response = client.options(path)
            assert (response.status_code, response.headers["allow"], response.content) == (204, allow, b"")
        problem(client.options("/nowhere"), 404)


def test_requests_beyond_the_limit_are_refused(serve: Serve) -> None:
    served = serve(max_connections=1)
    served.pause()
    with connected(served) as first:
        first.sendall(raw_request(b'{"prompt": "a"}'))
        while not served.service.admission.num_pending:
            pass
        with served.client() as client:
            busy = client.get("/health/live")
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
        asyncio.run(RequestContextMiddleware(broken, metrics, 10)(scope, receive, send))
    assert metrics.requests.labels("GET", "unmatched", "500")._value.get() == 1


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
