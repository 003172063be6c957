"""MCP with the demo: the SDK's client over both transports, and the protocol's own inspector."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.http_harness import TIMEOUT_S, Served
from helpers.mcp_client import connected, environment, facts, over_stdio, stdio, text_of
from helpers.paths import DEMO, ROOT
from mcp.client import Client

pytestmark = pytest.mark.clients
INSPECTOR = ROOT / "build" / "clients" / "node_modules" / ".bin" / "mcp-inspector"


def key_of(served: Served) -> str:
    assert served.service.settings.api_key is not None
    return served.service.settings.api_key.get_secret_value()


@asynccontextmanager
async def opened(transport: str, served: Served, folder: Path) -> AsyncIterator[Client]:
    if transport == "http":
        async with connected(served.url, headers={"authorization": f"Bearer {key_of(served)}"}) as client:
            yield client
        return
    async with Client(over_stdio(stdio(DEMO, folder))) as client:
        yield client


async def sound(client: Client, found: dict[str, Any]) -> tuple[np.ndarray[Any, Any], float]:
    """What a file has: samples that are not silent, and its length."""
    (contents,) = (await client.read_resource(found["uri"])).contents
    samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(contents.blob)), always_2d=True)  # type: ignore[union-attr]
    assert np.sqrt(np.mean(samples**2)) > 0.02
    return samples, len(samples) / rate_hz


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_music_is_made_covered_and_played(demo_server: Served, tmp_path: Path, transport: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(2 * TIMEOUT_S), opened(transport, demo_server, tmp_path) as client:
            words = facts(await client.call_tool("vocabulary", {"text": "calm melodey and drams in D minor"}))
            assert words["plays"][0].endswith("melodey played as melody")
            assert words["unknown"] == ["drams"]
            assert "drums" in words["near"]["drams"]
            asked = {"prompt": "calm melody in D minor", "seconds": 4, "seed": 1}
            made = facts(await client.call_tool("generate", asked))
            assert "D minor" in made["plays"][0]
            assert abs((await sound(client, made))[1] - 4) < 0.1
            cover = {"prompt": "techno, drums", "source_id": made["uri"], "denoise": 0.6}
            covered = facts(await client.call_tool("cover", cover))
            assert abs((await sound(client, covered))[1] - 4) < 0.1
            song = {"prompt": "fast techno", "seconds": 12, "plan": True, "seed": 1}
            planned = facts(await client.call_tool("generate", song))
            name = planned["uri"].rpartition("/")[2]
            (contents,) = (await client.read_resource(f"tickrt://plans/{name}")).contents
            assert [item["kind"] for item in json.loads(contents.text)["sections"]]  # type: ignore[union-attr]
            live = {"mode": "extend", "prompts": [{"text": "fast techno"}], "plan": True}
            session = facts(await client.call_tool("live_open", live))["session"]
            passage = {"session": session, "seconds": 3}
            first = facts(await client.call_tool("live_record", passage))
            plan = facts(await client.call_tool("live_plan", {"session": session}))["plan"]
            start_s = plan["sections"][-1]["start_s"]
            section = {"kind": "break", "layers": ["pad", "melody"], "bars": 8}
            changed = {"session": session, "start_s": start_s, "sections": [section]}
            after = facts(await client.call_tool("live_plan", changed))["plan"]
            assert (start_s, "break") in {(item["start_s"], item["kind"]) for item in after["sections"]}
            (contents,) = (await client.read_resource(f"tickrt://plans/{session}")).contents
            assert json.loads(contents.text)["sections"] == after["sections"]  # type: ignore[union-attr]
            later = await client.call_tool("live_plan", {**changed, "start_s": after["sections"][-1]["end_s"] + 99})
            assert "Fix: the earliest is" in text_of(later)
            blend = [{"text": "fast techno", "weight": 0.5}, {"text": "calm melody", "weight": 0.5}]
            facts(await client.call_tool("live_prompts", {"session": session, "items": blend}))
            second = facts(await client.call_tool("live_record", passage))
            assert second["from_s"] == first["to_s"]
            assert not np.array_equal((await sound(client, first))[0], (await sound(client, second))[0])
            facts(await client.call_tool("live_close", {"session": session}))

    asyncio.run(run())


def inspected(target: list[str], *arguments: str) -> dict[str, Any]:
    """What the inspector prints of one request."""
    command = [str(INSPECTOR), "--cli", *target, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment())
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.skipif(not INSPECTOR.exists(), reason="npm has not installed the inspector (make test-clients)")
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_the_inspector_lists_and_calls(demo_server: Served, tmp_path: Path, transport: str) -> None:
    key = ["--transport", "http", "--header", f"Authorization: Bearer {key_of(demo_server)}"]
    target = [f"{demo_server.url}/mcp", *key] if transport == "http" else stdio(DEMO, tmp_path)
    tools = {tool["name"]: tool for tool in inspected(target, "--method", "tools/list")["tools"]}
    assert {"generate", "cover", "repaint", "live_open"} <= set(tools)
    call = ["--method", "tools/call", "--tool-name", "generate"]
    made = inspected(target, *call, "--tool-arg", "prompt=calm melody", "--tool-arg", "seconds=1")
    assert not made.get("isError")
    assert made["structuredContent"]["seconds"] == 1.0
    if transport == "http":  # over stdio each request opens the model
        uris = {item["uri"] for item in inspected(target, "--method", "resources/list")["resources"]}
        assert made["structuredContent"]["uri"] in uris
        assert inspected(target, "--method", "prompts/list")["prompts"]
