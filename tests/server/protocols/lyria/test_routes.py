"""Lyria's path: both versions, the doubled slash, keys, errors before the handshake in Google's shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers.http_harness import Served, open_websocket
from helpers.lyria_client import PATH, lyria
from websockets.exceptions import InvalidStatus

from server.asgi.problems import unavailable
from server.protocols.lyria.routes import error_body


def refused(served: Served, path: str, **options: object) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as error, open_websocket(served, path, **options):
        pass
    response = error.value.response
    assert response.headers["content-type"] == "application/json"
    return response.status_code, json.loads(response.body)


@pytest.mark.parametrize("path", [PATH, f"/{PATH}", PATH.replace("v1alpha", "v1beta"), f"/{PATH}?key=a"])
def test_every_way_to_the_path(served: Served, path: str) -> None:
    with lyria(served, path):
        pass


def test_a_key_comes_in_the_header_or_the_query(serve: Callable[..., Served]) -> None:
    served = serve(api_key="secret")
    with lyria(served, additional_headers={"x-goog-api-key": "secret"}), lyria(served, f"/{PATH}?key=secret"):
        pass
    for path, headers in ((PATH, {"x-goog-api-key": "no"}), (f"/{PATH}?key=no", {})):
        status, body = refused(served, path, additional_headers=headers)
        message = "this server needs an API key; send Authorization: Bearer KEY"
        assert (status, body) == (401, {"error": {"code": 401, "message": message, "status": "UNAUTHENTICATED"}})


def test_pages_of_allowed_origins_only(serve: Callable[..., Served]) -> None:
    served = serve(allowed_origins=("https://page.example",))
    with lyria(served, origin="https://page.example"):
        pass
    status, body = refused(served, PATH, origin="https://other.example")
    assert (status, body["error"]["status"]) == (403, "PERMISSION_DENIED")


def test_while_the_engines_are_opened_it_is_unavailable(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.service, "pipeline", None)
    status, body = refused(served, PATH)
    assert (status, body["error"]["code"], body["error"]["status"]) == (503, 503, "UNAVAILABLE")


def test_a_server_that_does_not_answer_these_clients_has_no_such_path(serve: Callable[..., Served]) -> None:
    with pytest.raises(InvalidStatus) as error, open_websocket(serve(clients=()), PATH):
        pass
    assert error.value.response.status_code == 404


@pytest.mark.parametrize(("status", "name"), [(422, "INVALID_ARGUMENT"), (503, "UNAVAILABLE"), (500, "INTERNAL")])
def test_a_problem_is_googles_error(status: int, name: str) -> None:
    body = error_body({"status": status, "detail": "what", "fix": None})
    assert body == {"error": {"code": status, "message": "what", "status": name}}


def test_a_full_replica_refuses_the_handshake_so_that_an_edge_asks_another_one(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise unavailable("sessions_full", "another one has room")

    monkeypatch.setattr(served.service, "check_room", refuse)
    status, body = refused(served, PATH)
    assert (status, body["error"]["status"], body["error"]["message"]) == (503, "UNAVAILABLE", "another one has room")
