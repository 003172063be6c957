"""Tools: drawn from the options of a generation and the messages of live sessions, and what they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers.http_harness import Served
from helpers.mcp_client import facts, problem_of, talk
from mcp.client import Client
from mcp.types import Tool

from runtime.live.protocol.messages import Open, SetControls, SetPlan, SetPrompts
from server.protocols.mcp.schemas import FILE_OPTIONS

Serve = Callable[..., Served]
LIVE = {"live_open": Open, "live_set": SetControls, "live_prompts": SetPrompts, "live_plan": SetPlan}


async def tools_of(client: Client) -> dict[str, Tool]:
    return {tool.name: tool for tool in (await client.list_tools()).tools}


def without_titles(node: Any) -> Any:
    if isinstance(node, list):
        return [without_titles(item) for item in node]
    if isinstance(node, dict):
        return {key: without_titles(item) for key, item in node.items() if key != "title" or not isinstance(item, str)}
    return node


def without_null(item: dict[str, Any]) -> dict[str, Any]:
    """An option of /v1/schema as tools have it: null is what is left out."""
    item = {key: value for key, value in without_titles(item).items() if key != "default" or value is not None}
    branches = [branch for branch in item.pop("anyOf", []) if branch != {"type": "null"}]
    return item | (branches[0] if len(branches) == 1 else {"anyOf": branches} if branches else {})


def test_options_are_those_of_http(served: Served) -> None:
    tools = talk(served, tools_of)
    with served.client() as http:
        known = http.get("/v1/schema").json()["properties"]
    properties = dict(tools["generate"].input_schema["properties"])
    assert properties.pop("return_audio")["type"] == "boolean"
    assert set(properties) == set(known) - {"stream"}
    for option in set(properties) - set(FILE_OPTIONS):
        assert properties[option] == without_null(known[option]), option
    for option in set(FILE_OPTIONS) & set(properties):
        assert properties[option]["description"].startswith(known[option]["description"])
    assert tools["generate"].input_schema["required"] == ["prompt"]


def test_tools_with_a_source_show_what_they_need(served: Served) -> None:
    tools = talk(served, tools_of)
    every = tools["generate"].input_schema["properties"]
    for name, needed in {"cover": ["prompt", "source_id"], "repaint": ["prompt", "source_id", "repaint"]}.items():
        schema = tools[name].input_schema
        assert schema["required"] == needed
        assert "denoise" in schema["properties"]
        assert not {"task", "mask", "seed"} & set(schema["properties"])
        assert all(item == every[option] for option, item in schema["properties"].items())
    assert "repaint" not in tools["cover"].input_schema["properties"]


def test_live_tools_take_what_messages_take(served: Served) -> None:
    tools = talk(served, tools_of)
    for name, message in LIVE.items():
        known, properties = message.model_json_schema()["properties"], tools[name].input_schema["properties"]
        assert set(properties) - {"session"} <= set(known)
    controls = tools["live_set"].input_schema["properties"]["values"]["properties"]
    assert served.service.host is not None
    assert set(controls) == set(served.service.live_host().model.defaults) | set(controls)
    assert "guidance" in controls


def test_every_definition_is_used_and_there(served: Served) -> None:
    for name, tool in talk(served, tools_of).items():
        text = json.dumps(tool.input_schema)
        for definition in tool.input_schema.get("$defs", {}):
            assert f'"#/$defs/{definition}"' in text, name
        assert text.count('"$ref"') == 0 or "$defs" in tool.input_schema
        assert tool.input_schema["type"] == "object"
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint == (name in ("vocabulary", "models"))


def test_what_was_made_is_covered_and_repainted(served: Served) -> None:
    async def steps(client: Client) -> None:
        made = facts(await client.call_tool("generate", {"prompt": "a", "seconds": 2, "seed": 1}))
        cover = {"prompt": "b", "source_id": made["uri"], "denoise": 0.5, "seed": 1}
        covered = facts(await client.call_tool("cover", cover))
        assert (covered["seconds"], covered["options"]["task"], covered["options"]["denoise"]) == (2.0, "cover", 0.5)
        part = {"prompt": "b", "source_id": covered["uri"], "repaint": [{"start_s": 1, "end_s": 2}]}
        repainted = facts(await client.call_tool("repaint", part))
        assert repainted["options"]["task"] == "repaint"
        missing = await client.call_tool("cover", {"prompt": "a"})
        assert "/source_id: is missing" in problem_of(missing, "invalid_request")
        masked = await client.call_tool("cover", {**cover, "mask": 1})
        assert "/mask: is not known" in problem_of(masked, "invalid_request")
        with served.client() as http:
            source = http.post("/v1/sources", files={"source": http.get(made["url"]).content}).json()["id"]
        assert facts(await client.call_tool("cover", {**cover, "source_id": source}))["seed"] == 1
        notes = facts(await client.call_tool("generate", {"prompt": "a", "seconds": 1, "response_format": "LATENTS"}))
        assert notes["media_type"] == "application/vnd.safetensors"

    talk(served, steps)


def test_models_and_words_are_told(served: Served) -> None:
    async def steps(client: Client) -> None:
        (model,) = facts(await client.call_tool("models", {}))["models"]
        with served.client() as http:
            (card,) = http.get("/v1/models").json()["data"]
        assert {name: model[name] for name in card if name != "vocabulary"} == {
            name: value for name, value in card.items() if name != "vocabulary"
        }
        assert model["live"]
        assert "cover" in model["tasks"]
        words = facts(await client.call_tool("vocabulary", {}))
        assert words["words"] == (card["vocabulary"] or [])
        told = facts(await client.call_tool("vocabulary", {"text": "a"}))
        assert set(told) == {"understood", "unknown", "near", "plays", "meaning"}
        assert "/text" in problem_of(await client.call_tool("vocabulary", {"text": 1}), "invalid_request")

    talk(served, steps)


def test_a_file_makes_room_and_expires(serve: Serve) -> None:
    served = serve(results_bytes=2**20, result_keep_s=600.0)

    async def steps(client: Client) -> None:
        long = {"prompt": "a", "seconds": 18, "steps": 1, "seed": 1}  # 576 kB
        first = facts(await client.call_tool("generate", long))
        facts(await client.call_tool("generate", long))
        uris = {resource.uri for resource in (await client.list_resources()).resources}
        assert first["uri"] not in uris
        with served.client() as http:
            assert http.get(first["url"]).status_code == 404
        too_long = await client.call_tool("generate", {**long, "seconds": 60})
        assert "the limit is 1 MiB" in problem_of(too_long, "results_too_large")

    talk(served, steps)


@pytest.mark.parametrize("seconds", [40])
def test_audio_that_is_too_large_for_a_message_is_linked(serve: Serve, monkeypatch: Any, seconds: int) -> None:
    monkeypatch.setattr("server.protocols.mcp.protocol.CONTENT_BYTES", 1000)
    monkeypatch.setattr("server.protocols.mcp.resources.CONTENT_BYTES", 1000)

    async def steps(client: Client) -> None:
        result = await client.call_tool("generate", {"prompt": "a", "seconds": 1, "return_audio": True})
        assert "only its link" in facts(result)["notice"]
        assert len(result.content) == 2
        with pytest.raises(Exception, match="/mcp/files/"):
            await client.read_resource(facts(result)["uri"])

    talk(serve(), steps)
