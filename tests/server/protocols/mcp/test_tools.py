"""Tools: drawn from the options of a generation and the messages of live sessions, and what they do."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import soundfile
from helpers.http_harness import TIMEOUT_S, Serve, Served, eventually
from helpers.mcp_client import ERAS, connected, facts, problem_of, talk
from mcp.client import Client
from mcp.types import Tool

from runtime.base.errors import FileError, RequestError, StoreError
from runtime.live.protocol.messages import Open, SetControls, SetPlan, SetPrompts
from server.asgi.problems import ProblemError
from server.protocols.mcp import files, live
from server.protocols.mcp.files import FileStore, MadeFile
from server.protocols.mcp.schemas import FILE_OPTIONS
from server.protocols.mcp.work import ToolProgress, ToolTasks

pytestmark = pytest.mark.anyio

LIVE = {"live_open": Open, "live_set": SetControls, "live_prompts": SetPrompts, "live_plan": SetPlan}


def add(store: FileStore, size_bytes: int, client: str = "me") -> MadeFile:
    name = store.new_name("a title", ".wav")
    with store.room(client, size_bytes) as room:
        store.path_of(name).write_bytes(bytes(size_bytes))
        return store.add(name, "audio/wav", room, {}, {})


def test_names_have_the_title_and_are_not_guessed() -> None:
    store = FileStore(None, 100, 1.0)
    first, second = (store.new_name("Calm MELODY, in D/../minor\n", ".wav") for _ in range(2))
    assert first.startswith("calm-melody-in-d-minor-")
    assert first != second
    assert len(store.new_name("x" * 1000, ".mp3")) < 70
    assert store.new_name("日本", ".wav").startswith("audio-")
    store.close()


async def test_the_oldest_files_make_room() -> None:
    store = FileStore(None, 1000, 600.0)
    first, second = add(store, 400), add(store, 500, "other")
    assert store.of("me") == [first]
    assert first.read() == bytes(400)
    third = add(store, 450)
    with pytest.raises(FileError, match="cannot be read"):
        first.read()
    assert store.of("me") == [third]
    assert store.get(second.name) is second
    with pytest.raises(ProblemError, match="there is no file"):
        store.get(first.name)
    with store.room("other", 600):
        assert store.of("other") == []
        with pytest.raises(ProblemError) as caught, store.room("me", 500):
            pass
        assert caught.value.status == 503
    with pytest.raises(ProblemError) as caught, store.room("me", 1001):
        pass
    assert caught.value.code == "results_too_large"
    store.close()


async def test_files_of_a_temporary_folder_expire() -> None:
    store = FileStore(None, 1000, 0.0)
    file = add(store, 10)
    while file.path.exists():
        await asyncio.sleep(0.001)
    assert store.of("me") == []
    store.close()


async def test_files_of_a_given_folder_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 1)

    store = FileStore(tmp_path, 1, 0.0)
    first, second = add(store, 10), add(store, 20)
    assert store.of("me") == [second]
    assert first.path.exists()
    store.close()
    assert len(list(tmp_path.iterdir())) == 2


async def test_a_file_that_was_not_written_is_an_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path, 1, 0.0)
    with store.room("me", 1) as room, pytest.raises(StoreError, match="cannot be stored"):
        store.add("x.wav", "audio/wav", room, {}, {})
    store.discard("x.wav")
    assert store.find("x.wav") is None
    store.close()


async def _ignored(done: float, total: float, text: str) -> None:
    pass


async def test_a_cancelled_caller_leaves_work_time_to_end_what_it_has_begun() -> None:
    """anyio cancels again at each await of the caller."""
    ended, running = list[str](), ToolTasks()

    async def begin() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("all")

    with anyio.move_on_after(0.01):
        await running.run(begin(), ToolProgress(), _ignored)
    assert ended == []
    async with asyncio.timeout(10):
        while not ended:
            await asyncio.sleep(0.001)


async def test_what_is_left_ends_with_the_server() -> None:
    ended, running = list[str](), ToolTasks()

    async def begin() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("all")

    call = asyncio.create_task(running.run(begin(), ToolProgress(), _ignored))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await running.close()
    await asyncio.wait([call])
    assert ended == ["all"]


def recorded(served: Served, found: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    samples, rate_hz = soundfile.read(io.BytesIO(served.get(found["url"]).content), always_2d=True)
    assert rate_hz == 8000
    return samples  # type: ignore[no-any-return]


@pytest.mark.parametrize("era", ERAS)
async def test_music_is_opened_changed_and_recorded(served: Served, era: str) -> None:
    async with connected(served.url, era) as client:
        opened = facts(
            await client.call_tool("live_open", {"prompts": [{"text": "a"}], "seed": 3, "controls": {"guidance": 2}})
        )
        session = opened["session"]
        assert (opened["mode"], opened["seed"], opened["controls"]["guidance"]) == ("loop", 3, 2.0)
        assert opened["prompts"][0]["text"] == "a"
        first = facts(await client.call_tool("live_record", {"session": session, "seconds": 1}))
        assert (first["from_s"], first["to_s"], first["seconds"]) == (0.0, 1.0, 1.0)
        before = recorded(served, first)
        assert (len(before), np.abs(before).max() > 0.05) == (8000, True)
        changed = await client.call_tool("live_set", {"session": session, "values": {"guidance": 4}})
        assert facts(changed)["set"] == {"guidance": 4}
        words = facts(await client.call_tool("live_prompts", {"session": session, "items": [{"text": "b"}]}))
        assert words["prompts"][0]["text"] == "b"
        more = {"session": session, "seconds": 2.5, "response_format": "flac"}
        second = facts(await client.call_tool("live_record", more))
        assert (second["from_s"], second["to_s"], second["media_type"]) == (1.0, 3.5, "audio/flac")
        assert len(recorded(served, second)) == 20_000
        assert served.service.host is not None
        assert session in {info.id for info in served.service.host.sessions()}
        facts(await client.call_tool("live_close", {"session": session}))
        eventually(lambda: session not in {info.id for info in served.service.live_host().sessions()})
        text = problem_of(await client.call_tool("live_record", more), "unknown_session")
        assert "live_open" in text


async def test_what_a_session_does_not_take_is_said(served: Served) -> None:
    async with connected(served.url) as client:
        session = facts(await client.call_tool("live_open", {}))["session"]

        async def refused(tool: str, **arguments: Any) -> str:
            result = await client.call_tool(tool, {"session": session, **arguments})
            assert result.is_error
            return str(result.structured_content["detail"]) + str(result.structured_content["errors"])

        assert "/values/guidance" in await refused("live_set", values={"guidance": -3})
        assert "/ramp_ms" in await refused("live_set", values={}, ramp_ms=-1)
        assert "/items" in await refused("live_prompts", items="a")
        assert "/seconds" in await refused("live_record", seconds=0)
        assert "/response_format" in await refused("live_record", seconds=1, response_format="mid")
        assert "/values: is missing" in await refused("live_set")
        assert "has no plan" in await refused("live_plan")
        # The session plays on.
        assert facts(await client.call_tool("live_set", {"session": session, "values": {"guidance": 3}}))
        facts(await client.call_tool("live_close", {"session": session}))
        slots = problem_of(await client.call_tool("live_open", {"slots": 4}), "invalid_request")
        assert "/slots" in slots


async def test_sessions_have_the_servers_limits_and_end_when_they_are_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(client_sessions=1)

    async with connected(served.url) as client:
        session = facts(await client.call_tool("live_open", {}))["session"]
        assert (await client.call_tool("live_open", {})).is_error
        monkeypatch.setattr(live, "IDLE_S", 0.0)
        await client.call_tool("live_set", {"session": session, "values": {}})
        while served.service.live_host().sessions():
            await asyncio.sleep(0.01)
        gone = await client.call_tool("live_set", {"session": session, "values": {}})
        assert "live_open" in problem_of(gone, "unknown_session")


@pytest.mark.parametrize("era", ERAS)
async def test_a_recording_is_cancelled_and_the_session_plays_on(serve: Serve, era: str) -> None:
    served = serve(max_seconds=600.0)

    async with connected(served.url, era) as client:
        session = facts(await client.call_tool("live_open", {"prompts": [{"text": "a"}]}))["session"]
        asked = {"session": session, "seconds": 600}
        begun = asyncio.Event()

        async def note(done: float, total: float | None, text: str | None) -> None:
            assert total == 600
            begun.set()

        call = asyncio.create_task(client.call_tool("live_record", asked, progress_callback=note))
        await begun.wait()
        busy = await client.call_tool("live_record", asked)
        assert "being recorded" in problem_of(busy, "already_recording")
        call.cancel()
        await asyncio.wait([call])
        while (result := await client.call_tool("live_record", {"session": session, "seconds": 0.5})).is_error:
            problem_of(result, "already_recording")
            await asyncio.sleep(0.01)
        assert 0 < facts(result)["from_s"] < 600
        assert len(served.app.state.mcp.endpoint.tools.files.of("127.0.0.1")) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_session_whose_opening_is_cancelled_is_not_kept(
    serve: Serve, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, go, opened = serve(), threading.Event(), list[str]()
    host = served.service.live_host()
    really_open = host.open

    def slow(*arguments: Any, **options: Any) -> str:
        go.wait(TIMEOUT_S)
        opened.append(really_open(*arguments, **options))
        return opened[0]

    monkeypatch.setattr(host, "open", slow)

    async with connected(served.url, era) as client:
        call = asyncio.create_task(client.call_tool("live_open", {}))
        while not served.app.state.mcp.endpoint or not served.app.state.mcp.endpoint.tools.work._tasks:
            await asyncio.sleep(0.01)
        (opening,) = served.app.state.mcp.endpoint.tools.work._tasks
        call.cancel()
        await asyncio.wait([call])
        while not opening.cancelling():
            await asyncio.sleep(0.01)
        go.set()
        while not opened or host.sessions():
            await asyncio.sleep(0.01)


async def test_a_session_that_ends_elsewhere_says_so(served: Served) -> None:
    async with connected(served.url) as client:
        session = facts(await client.call_tool("live_open", {}))["session"]
        assert served.send("DELETE", f"/v1/sessions/{session}").status_code == 204
        eventually(lambda: session not in {info.id for info in served.service.live_host().sessions()})
        text = problem_of(await client.call_tool("live_record", {"session": session, "seconds": 1}), "unknown_session")
        assert "it has ended: deleted" in text


def test_a_fix_names_the_tool_in_place_of_the_message() -> None:
    told = live._as_told(RequestError("it is planned anew", field="start_s", fix="wait for the message plan"))
    assert (told.what, told.fix) == ("start_s: it is planned anew", "ask for the plan again with live_plan")
    other = RequestError("no", field="start_s", fix="the earliest is 2 s")
    assert live._as_told(other).fix == "the earliest is 2 s"


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
    known = served.get("/v1/schema").json()["properties"]
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


async def test_what_was_made_is_covered_and_repainted(served: Served) -> None:
    async with connected(served.url) as client:
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
        source = served.send("POST", "/v1/sources", files={"source": served.get(made["url"]).content}).json()["id"]
        assert facts(await client.call_tool("cover", {**cover, "source_id": source}))["seed"] == 1
        notes = facts(await client.call_tool("generate", {"prompt": "a", "seconds": 1, "response_format": "LATENTS"}))
        assert notes["media_type"] == "application/vnd.safetensors"


async def test_models_and_words_are_told(served: Served) -> None:
    async with connected(served.url) as client:
        (model,) = facts(await client.call_tool("models", {}))["models"]
        (card,) = served.get("/v1/models").json()["data"]
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


async def test_a_file_makes_room_and_expires(serve: Serve) -> None:
    served = serve(results_bytes=2**20, result_keep_s=600.0)

    async with connected(served.url) as client:
        long = {"prompt": "a", "seconds": 18, "steps": 1, "seed": 1}  # 576 kB
        first = facts(await client.call_tool("generate", long))
        facts(await client.call_tool("generate", long))
        uris = {resource.uri for resource in (await client.list_resources()).resources}
        assert first["uri"] not in uris
        assert served.get(first["url"]).status_code == 404
        too_long = await client.call_tool("generate", {**long, "seconds": 60})
        assert "the limit is 1 MiB" in problem_of(too_long, "results_too_large")


async def test_audio_that_is_too_large_for_a_message_is_linked(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.protocols.mcp.protocol.CONTENT_BYTES", 1000)
    async with connected(serve().url) as client:
        result = await client.call_tool("generate", {"prompt": "a", "seconds": 1, "return_audio": True})
        assert "only its link" in facts(result)["notice"]
        assert len(result.content) == 2
        with pytest.raises(Exception, match="/mcp/files/"):
            await client.read_resource(facts(result)["uri"])
