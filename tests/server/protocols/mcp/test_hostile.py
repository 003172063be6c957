"""What no assistant should send: every tool answers with a problem, and none ends in an error of the server's own."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.http_harness import Served
from helpers.mcp_client import facts, talk
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from server.protocols.mcp.making import FILE_OPTIONS

NESTED: list[Any] = []
for _ in range(50):
    NESTED = [NESTED]
WRONG: tuple[Any, ...] = (None, True, -1, 1e308, 10**30, "", "\0../../etc/passwd", "x" * 3000, [], [None], {}, NESTED)


def wrong_arguments(names: list[str], given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a tool needs, with one value after the other that is of another type or out of range."""
    for name, value in itertools.product(names, WRONG):
        yield {**given, name: value}
    yield {**given, "__class__": 1}


OWN = {*FILE_OPTIONS, "return_audio", "prompt", "repaint"}
NEEDED: dict[str, dict[str, Any]] = {
    "generate": {"prompt": "a", "seconds": 0.2, "steps": 1},
    "cover": {"prompt": "a", "source_id": "0" * 64},
    "repaint": {"prompt": "a", "source_id": "0" * 64, "repaint": [{"start_s": 0, "end_s": 1}]},
    "live_set": {"values": {}},
    "live_prompts": {"items": []},
    "live_plan": {},
    "live_record": {"seconds": 0.1},
}


def test_wrong_arguments_are_problems(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    async def steps(client: Client) -> int:
        session, codes = facts(await client.call_tool("live_open", {}))["session"], set[str]()
        tools = {tool.name: list(tool.input_schema["properties"]) for tool in (await client.list_tools()).tools}
        num_calls = 0
        for name, needed in NEEDED.items():
            given = {**needed, "session": session} if name.startswith("live_") else needed
            # Those that are no tool's own are checked as over HTTP.
            own = [key for key in tools[name] if name.startswith("live_") or key in OWN]
            for arguments in wrong_arguments(own, given):
                result = await client.call_tool(name, arguments)
                num_calls += 1
                if result.is_error:
                    codes.add(result.structured_content["code"])
                    assert result.structured_content["status"] < 500, (name, arguments)
        await client.call_tool("live_close", {"session": session})
        assert "invalid_request" in codes
        return num_calls

    with caplog.at_level(logging.ERROR):
        assert talk(served, steps, "legacy") > 300
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("arguments", [{"name": "song"}, {"name": "song", "arguments": {"about": "x", "other": "y"}}])
def test_wrong_prompts_and_uris_are_errors_of_the_protocol(served: Served, arguments: dict[str, Any]) -> None:
    async def steps(client: Client) -> None:
        with pytest.raises(MCPError, match="/arguments/"):
            await client.get_prompt(**arguments)
        for uri in (
            "tickrt://files/../../etc/passwd",
            "tickrt://plans/",
            "tickrt://plans/x",
            "file:///etc/passwd",
            "x",
        ):
            with pytest.raises(MCPError):
                await client.read_resource(uri)

    talk(served, steps)
