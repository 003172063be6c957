"""Live sessions of assistants: opened, changed, recorded and closed."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile
from helpers.http_harness import TIMEOUT_S, Served, eventually
from helpers.mcp_client import ERAS, facts, problem_of, talk
from mcp.client import Client

from runtime.base.errors import RequestError
from server.protocols.mcp import live

Serve = Callable[..., Served]


def recorded(served: Served, found: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    with served.client() as http:
        samples, rate_hz = soundfile.read(io.BytesIO(http.get(found["url"]).content), always_2d=True)
    assert rate_hz == 8000
    return samples  # type: ignore[no-any-return]


@pytest.mark.parametrize("era", ERAS)
def test_music_is_opened_changed_and_recorded(served: Served, era: str) -> None:
    async def steps(client: Client) -> None:
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

    talk(served, steps, era)


def test_what_a_session_does_not_take_is_said(served: Served) -> None:
    async def steps(client: Client) -> None:
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

    talk(served, steps)


def test_sessions_have_the_servers_limits_and_end_when_they_are_not_used(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(client_sessions=1)

    async def steps(client: Client) -> None:
        session = facts(await client.call_tool("live_open", {}))["session"]
        assert (await client.call_tool("live_open", {})).is_error
        monkeypatch.setattr(live, "IDLE_S", 0.0)
        await client.call_tool("live_set", {"session": session, "values": {}})
        while served.service.live_host().sessions():
            await asyncio.sleep(0.01)
        gone = await client.call_tool("live_set", {"session": session, "values": {}})
        assert "live_open" in problem_of(gone, "unknown_session")

    talk(served, steps)


@pytest.mark.parametrize("era", ERAS)
def test_a_recording_is_cancelled_and_the_session_plays_on(serve: Serve, era: str) -> None:
    served = serve(max_seconds=600.0)

    async def steps(client: Client) -> None:
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

    talk(served, steps, era)


@pytest.mark.parametrize("era", ERAS)
def test_a_session_whose_opening_is_cancelled_is_not_kept(
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

    async def steps(client: Client) -> None:
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

    talk(served, steps, era)


def test_a_session_that_ends_elsewhere_says_so(served: Served) -> None:
    async def steps(client: Client) -> None:
        session = facts(await client.call_tool("live_open", {}))["session"]
        with served.client() as http:
            assert http.delete(f"/v1/sessions/{session}").status_code == 204
        eventually(lambda: session not in {info.id for info in served.service.live_host().sessions()})
        text = problem_of(await client.call_tool("live_record", {"session": session, "seconds": 1}), "unknown_session")
        assert "it has ended: deleted" in text

    talk(served, steps)


def test_a_fix_names_the_tool_in_place_of_the_message() -> None:
    told = live._as_told(RequestError("it is planned anew", field="start_s", fix="wait for the message plan"))
    assert (told.what, told.fix) == ("start_s: it is planned anew", "ask for the plan again with live_plan")
    other = RequestError("no", field="start_s", fix="the earliest is 2 s")
    assert live._as_told(other).fix == "the earliest is 2 s"
