from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from runtime.base.errors import ConfigError
from runtime.config.deployment import Deployment
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from server.app import create_app
from server.config import ServerSettings


def refuse() -> Pipeline:
    raise ConfigError("no deployment")


def paths_of(**settings: object) -> set[str]:
    return set(create_app(refuse, ServerSettings(**settings)).openapi()["paths"])


def test_the_admin_routes_exist_only_with_an_admin_key() -> None:
    public = paths_of()
    assert {"/v1/audio/generations", "/v1/models", "/v1/schema", "/health/live", "/health/ready", "/metrics"} <= public
    assert paths_of(admin_key="k") - public == {"/admin/adapters", "/admin/drain", "/admin/profile"}


@pytest.mark.parametrize("has_key", [True, False])
def test_the_openapi_document_requires_the_api_key_where_one_is_set(has_key: bool) -> None:
    document = create_app(refuse, ServerSettings(api_key="k" if has_key else None)).openapi()
    assert document.get("security") == ([{"bearer": []}, {"header": []}] if has_key else None)
    assert document["paths"]["/health/live"]["get"].get("security") == ([] if has_key else None)


def test_every_admin_route_requires_the_admin_key_and_one_form_of_the_api_key() -> None:
    document = create_app(refuse, ServerSettings(api_key="k", admin_key="a")).openapi()
    for path in ("/admin/adapters", "/admin/drain", "/admin/profile"):
        assert document["paths"][path]["post"]["security"] == [{"admin": [], "bearer": []}, {"admin": [], "header": []}]
    assert document["components"]["securitySchemes"].keys() == {"admin", "bearer", "header"}


def test_a_refused_preflight_is_a_problem() -> None:
    settings = ServerSettings(allowed_origins=("https://studio.example",))
    asked = {"origin": "https://studio.example", "access-control-request-method": "PATCH"}
    with TestClient(create_app(refuse, settings), base_url="http://localhost") as client:
        refused = client.options("/v1/audio/generations", headers=asked)
    assert (refused.status_code, refused.headers["content-type"]) == (400, "application/problem+json")
    assert refused.json()["detail"] == "Disallowed CORS method"


def test_the_lifespan_opens_the_pipeline_and_closes_it(tiny: Callable[..., Deployment]) -> None:
    opened: list[Pipeline] = []

    def start() -> Pipeline:
        opened.append(open_pipeline(tiny()))
        opened[0].start()
        return opened[0]

    app = create_app(start, ServerSettings())
    with TestClient(app, base_url="http://localhost") as client:
        assert client.portal is not None
        client.portal.call(app.state.service.opened)
        assert client.get("/health/ready").status_code == 200
    assert len(opened) == 1
    assert not opened[0].loop.stats().is_alive
