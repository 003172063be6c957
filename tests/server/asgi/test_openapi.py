"""The published schemas, whether the server conforms to them, and which routes an app has."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from fastapi.testclient import TestClient
from helpers.factories import tiny_bundle
from helpers.http_harness import GENERATIONS, Serve, Served

from runtime.audio.formats import ARCHIVE, FORMATS
from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.config.deployment import Deployment
from runtime.pipeline.pipeline import Pipeline, open_pipeline
from server.app import create_app
from server.asgi.openapi import EXAMPLES, body_model, body_schema, problem_responses
from server.config import ServerSettings


def document(served: Served) -> dict[str, Any]:
    result: dict[str, Any] = served.get("/openapi.json").json()
    return result


def test_the_body_has_the_servers_limit_on_seconds_and_describes_every_field() -> None:
    schema = body_schema(body_model(30.0))
    assert all(item.get("description") for item in schema["properties"].values())
    assert schema["required"] == ["prompt"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["seconds"]["anyOf"][0]["maximum"] == 30.0
    assert set(schema["properties"]["response_format"]["enum"]) == set(FORMATS)


def test_the_schema_of_one_model_changes_that_of_no_other(tmp_path: Path) -> None:
    before = body_schema(body_model(30.0))
    bundle = load_bundle(tiny_bundle(tmp_path, codec=False, text_encoder=False))
    schema = body_schema(body_model(30.0, bundle))["properties"]
    assert (schema["response_format"]["enum"], "prompt" in schema) == (["latents"], False)
    assert schema["steps"]["default"] == bundle.sampler.steps
    assert body_schema(body_model(30.0)) == before


def test_the_schema_accepts_what_the_server_accepts(served: Served) -> None:
    response = served.get("/v1/schema")
    assert response.headers["content-type"] == "application/schema+json"
    schema = jsonschema_rs.validator_for(response.json())
    body = {"prompt": "a", "guidance": [1.0, 2.0], "seconds": 1.0, "dcw": {"mode": "low", "low": 0.1}}
    assert schema.is_valid(body)
    assert served.post(**body).status_code == 200
    for bad in ({"steps": 0}, {"nonsense": 1}, {"guidance": []}, {"guidance": "2"}, {"dcw": {"mode": "x"}}):
        assert not schema.is_valid({**body, **bad})
        assert served.post(**{**body, **bad}).status_code == 422


def test_openapi_describes_binary_responses_and_problems(served: Served) -> None:
    responses = document(served)["paths"][GENERATIONS]["post"]["responses"]
    assert set(responses["200"]["content"]) == {item.media_type for item in (*FORMATS.values(), ARCHIVE)}
    for status in ("400", "401", "403", "404", "408", "413", "415", "422", "429", "500", "503", "504"):
        assert list(responses[status]["content"]) == ["application/problem+json"]
    found = {status: "headers" in entry for status, entry in problem_responses(404, 429, 503).items()}
    assert found == {404: False, 429: True, 503: True}, "a problem that passes says when to ask again"
    assert "Retry-After" in responses["503"]["headers"]


def operations(served: Served) -> dict[str, dict[str, Any]]:
    """Every operation by its id."""
    methods = [item for path in document(served)["paths"].values() for item in path.values()]
    return {item["operationId"]: item for item in methods}


def test_operation_ids_are_verbs_with_their_object(served: Served) -> None:
    assert set(operations(served)) == {
        "create_generation", "create_source", "list_sources", "get_source", "delete_source", "list_models", "get_model",
        "list_adapters", "get_schema", "get_live_schema", "get_live", "get_ready", "get_metrics", "list_sessions",
        "get_session", "get_stems", "end_session", "leave_session", "get_generation",
        # ACE-Step's
        "get_health", "get_models", "init_model", "get_stats", "release_task", "query_result", "get_audio",
        "get_lora_status",
    }  # fmt: skip


def document_of(**settings: Any) -> dict[str, Any]:
    return create_app(refuse, ServerSettings(**settings)).openapi()


def admin_document() -> dict[str, Any]:
    """The document of a server with every operation."""
    return document_of(admin_key="a")


def refuse() -> Pipeline:
    raise ConfigError("no deployment")


def shown_json(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Where JSON is asked or answered, and each parameter: its place, its schema, its examples."""
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        name = operation["operationId"]
        bodies = [("body", operation.get("requestBody", {}).get("content", {}))]
        bodies += [(code, answer.get("content", {})) for code, answer in operation["responses"].items() if code < "300"]
        for place, content in bodies:
            for media_type, entry in content.items():
                if media_type.endswith("json"):
                    values = [example["value"] for example in entry.get("examples", {}).values()]
                    yield f"{name} {place}", entry["schema"], [entry["example"]] if "example" in entry else values
        for parameter in operation.get("parameters", ()):
            values = [parameter["example"]] if "example" in parameter else []
            yield f"{name} {parameter['name']}", parameter["schema"], values


def test_every_operation_has_a_sentence_and_examples_that_are_valid() -> None:
    document = admin_document()
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    assert {operation["operationId"] for operation in operations} == set(EXAMPLES)
    for operation in operations:
        assert operation["description"].replace("`", "").startswith(operation["summary"]), operation["operationId"]
        assert " " in operation["summary"]
        assert not operation["summary"].endswith(".")
    places = list(shown_json(document))
    assert {"create_generation body", "merge_adapters body", "release_task body"} <= {place for place, _, _ in places}
    for place, schema, examples in places:
        assert examples, place
        # A reference of the body's own schema, or of the document's.
        whole = {**schema, "components": document["components"]}
        for example in examples:
            jsonschema_rs.validator_for(whole).validate(example)
        if place.endswith(" body"):
            found = (
                schema if "properties" in schema else document["components"]["schemas"][schema["$ref"].split("/")[-1]]
            )
            assert [name for name, item in found["properties"].items() if not item.get("description")] == [], place


def test_answers_have_the_members_of_their_examples(served: Served) -> None:
    with served.client() as client:
        for path, item in document(served)["paths"].items():
            example = EXAMPLES[item["get"]["operationId"]].get("answer") if "get" in item else None
            if example is None or "{" in path:
                continue
            response = client.get(path)
            assert response.status_code == 200
            if isinstance(example, str):
                assert example.partition(" ")[0] in response.text
            elif "schema" not in path:
                assert members(response.json()) <= members(example), path


def members(value: Any) -> set[str]:
    """Names of the members of objects within JSON, but those of engines and of what is not one of a fixed set."""
    if isinstance(value, list):
        return set().union(*map(members, value))
    if not isinstance(value, dict):
        return set()
    inner = (members(item) for name, item in value.items() if name != "engines")
    return set(value).union(*inner)


def test_examples_of_other_people_s_clients_are_taken(served: Served) -> None:
    with served.client() as client:
        for path, name in (("/v1/init", "init_model"), ("/query_result", "query_result")):
            body = {name: value for name, value in EXAMPLES[name]["body"].items() if name != "model"}
            assert client.post(path, json=body).json()["code"] == 200


def test_the_documentation_links_to_the_websocket_protocol(served: Served) -> None:
    found = document(served)
    assert "docs/live" in found["info"]["description"]
    assert found["externalDocs"]["url"] == "docs/live"
    assert {tag["name"] for tag in found["tags"]} >= {
        name for item in operations(served).values() for name in item["tags"]
    }
    with served.client() as client:
        for name, text in (("live", "# The live protocol"), ("clients", "## ACE-Step 1.5")):
            answer = client.get(f"/docs/{name}")
            assert answer.headers["content-type"] == "text/plain; charset=utf-8"
            assert text in answer.text
        assert client.get("/docs/missing").status_code == 404


def test_the_examples_of_a_generation_work(served: Served) -> None:
    examples = operations(served)["create_generation"]["requestBody"]["content"]["application/json"]["examples"]
    assert "text" in examples
    for example in examples.values():
        assert served.post(**{"seed": 1, **example["value"]}).status_code == 200


def test_the_document_is_made_once_and_its_references_are_defined(served: Served) -> None:
    assert served.app.openapi() is served.app.openapi()
    text = json.dumps(document(served))
    names = set(document(served)["components"]["schemas"])
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
    # FastAPI's own form of errors, which no route answers with.
    assert "HTTPValidationError" not in used
    assert {"GenerationBody", "SourceCard", "ProblemDocument"} <= names


def test_options_that_need_a_source_are_marked_and_refused_without_one(served: Served) -> None:
    properties = document(served)["components"]["schemas"]["GenerationBody"]["properties"]
    needs_source = {name for name, item in properties.items() if item.get("x-needs-source")}
    assert {"denoise", "mask", "repaint", "target_curve"} < needs_source
    for name in needs_source:
        value = [{"start_s": 0.0, "end_s": 0.5}] if name == "repaint" else 0.5
        assert served.post(**{name: value}).status_code == 422


def test_lists_with_one_value_per_channel_have_that_length(served: Served) -> None:
    branches = document(served)["components"]["schemas"]["GenerationBody"]["properties"]["channel_gain"]["anyOf"]
    lengths = [(branch.get("minItems"), branch.get("maxItems")) for branch in branches]
    assert lengths == [(None, None), (8, 8), (1, 4096), (None, None)]
    assert (branches[2]["items"]["minItems"], branches[2]["items"]["maxItems"]) == (8, 8)


# JSON Schema cannot express an order of two values, a text's number of tokens, or that bytes are audio.
SCHEMATHESIS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "404", "415", "422"]

# Nearly every generated file is no audio, and every generated id unknown.
[[operations]]
include-path-regex = "^/v1/(sources|sessions|audio/generations/)"
warnings = false
"""


def run_schemathesis(served: Served, folder: Path, examples: int, *flags: str, more: str = "") -> str:
    """Run every check in every phase, or those that `flags` select; fail on findings."""
    config = folder / "schemathesis.toml"
    config.write_text(SCHEMATHESIS + more)
    command = Path(sys.executable).parent / "schemathesis"
    described = folder / "openapi.json"
    described.write_text(json.dumps(served.app.openapi()))
    theirs = ["--exclude-tag", "ACE-Step"]  # it is as other servers have them
    options = ["--url", served.url, "--max-examples", str(examples), "--seed", "1", "--no-color", *flags]
    words = [command, "--config-file", config, "run", described, *theirs, *options]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert served.get("/health/live").status_code == 200
    return done.stdout


@pytest.mark.shipped
def test_schemathesis_finds_nothing(serve: Serve, tmp_path: Path) -> None:
    """Without its phase "coverage", 1,600 requests, which the test of many examples has."""
    found = run_schemathesis(serve(max_seconds=2.0), tmp_path, 10, "--phases", "examples,fuzzing,stateful")
    assert "No issues found" in found


@pytest.mark.slow
def test_schemathesis_finds_nothing_with_a_key(serve: Serve, tmp_path: Path) -> None:
    served, key = serve(max_seconds=2.0, api_key="k"), '[auth.openapi.header]\napi_key = "k"'
    found = run_schemathesis(served, tmp_path, 5, "--phases", "fuzzing,stateful", more=key)
    assert "No issues found" in found


@pytest.mark.slow
def test_schemathesis_finds_nothing_in_many_examples(serve: Serve, tmp_path: Path) -> None:
    assert "No issues found" in run_schemathesis(serve(max_seconds=2.0), tmp_path, 500)


def test_the_admin_routes_exist_only_with_an_admin_key() -> None:
    public = set(document_of()["paths"])
    assert {"/v1/audio/generations", "/v1/models", "/v1/schema", "/health/live", "/health/ready", "/metrics"} <= public
    assert set(document_of(admin_key="k")["paths"]) - public == {"/admin/adapters", "/admin/drain", "/admin/profile"}


@pytest.mark.parametrize("has_key", [True, False])
def test_the_openapi_document_requires_the_api_key_where_one_is_set(has_key: bool) -> None:
    document = document_of(api_key="k" if has_key else None)
    assert document.get("security") == ([{"bearer": []}, {"header": []}] if has_key else None)
    assert document["paths"]["/health/live"]["get"].get("security") == ([] if has_key else None)


def test_every_admin_route_requires_the_admin_key_and_one_form_of_the_api_key() -> None:
    document = document_of(api_key="k", admin_key="a")
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
