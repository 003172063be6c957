"""The published schemas, and whether the server conforms to them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from helpers.factories import tiny_bundle
from helpers.http_harness import GENERATIONS, Served

from runtime.audio.formats import ARCHIVE, FORMATS
from runtime.config.bundle import load_bundle
from server.asgi.openapi import body_model, body_schema, problem_responses

Serve = Callable[..., Served]


def document(served: Served) -> dict[str, Any]:
    with served.client() as client:
        result: dict[str, Any] = client.get("/openapi.json").json()
    return result


def test_the_body_has_the_servers_limit_on_seconds_and_describes_every_field() -> None:
    schema = body_schema(body_model(30.0))
    assert all(item.get("description") for item in schema["properties"].values())
    assert schema["required"] == ["prompt"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["seconds"]["anyOf"][0]["maximum"] == 30.0


def test_the_schema_of_one_model_changes_that_of_no_other(tmp_path: Path) -> None:
    before = body_schema(body_model(30.0))
    bundle = load_bundle(tiny_bundle(tmp_path, codec=False, text_encoder=False))
    schema = body_schema(body_model(30.0, bundle))["properties"]
    assert (schema["response_format"]["enum"], "prompt" in schema) == (["latents"], False)
    assert schema["steps"]["default"] == bundle.sampler.steps
    assert body_schema(body_model(30.0)) == before


def test_the_published_formats_are_those_that_are_written() -> None:
    assert set(body_schema(body_model(1.0))["properties"]["response_format"]["enum"]) == set(FORMATS)


def test_the_schema_accepts_what_the_server_accepts(served: Served) -> None:
    with served.client() as client:
        response = client.get("/v1/schema")
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
    assert "Retry-After" in responses["503"]["headers"]


def operations(served: Served) -> dict[str, dict[str, Any]]:
    """Every operation by its id."""
    methods = [item for path in document(served)["paths"].values() for item in path.values()]
    return {item["operationId"]: item for item in methods}


def test_operation_ids_are_verbs_with_their_object(served: Served) -> None:
    assert set(operations(served)) == {
        "create_generation", "create_source", "list_sources", "get_source", "delete_source", "list_models", "get_model",
        "list_adapters", "get_schema", "get_live_schema", "get_live", "get_ready", "get_metrics", "list_sessions",
        "get_session", "get_stems", "end_session", "leave_session",
    }  # fmt: skip


def test_the_examples_of_a_generation_work(served: Served) -> None:
    examples = operations(served)["create_generation"]["requestBody"]["content"]["application/json"]["examples"]
    assert "text" in examples
    for example in examples.values():
        assert served.post(**{"seed": 1, **example["value"]}).status_code == 200


def test_the_document_is_made_once(served: Served) -> None:
    assert served.app.openapi() is served.app.openapi()


def test_openapi_references_are_defined(served: Served) -> None:
    text = json.dumps(document(served))
    names = set(document(served)["components"]["schemas"])
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= names
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
include-path-regex = "^/v1/(sources|sessions)"
warnings = false
"""


def run_schemathesis(served: Served, folder: Path, examples: int, *flags: str, more: str = "") -> str:
    """Run every check in every phase, or those that `flags` select; fail on findings."""
    config = folder / "schemathesis.toml"
    config.write_text(SCHEMATHESIS + more)
    command = Path(sys.executable).parent / "schemathesis"
    described = folder / "openapi.json"
    described.write_text(json.dumps(served.app.openapi()))
    arguments = ["run", described, "--url", served.url, "--max-examples", str(examples), "--seed", "1", "--no-color"]
    done = subprocess.run(
        [command, "--config-file", config, *arguments, *flags],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    with served.client() as client:
        assert client.get("/health/live").status_code == 200
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


def test_a_problem_that_passes_says_when_to_ask_again() -> None:
    found = problem_responses(404, 429, 503)
    assert {status: "headers" in entry for status, entry in found.items()} == {404: False, 429: True, 503: True}
