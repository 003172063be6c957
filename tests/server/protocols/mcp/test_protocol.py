"""/mcp with the SDK's own client: both eras of the protocol, keys, origins and limits."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import logging
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from helpers.http_harness import Serve, Served, eventually, problem, raw_request
from helpers.http_harness import connected as connected_socket
from helpers.mcp_client import ERAS, audio_of, connected, facts, link_of, problem_of, talk, text_of
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS

from server.asgi.problems import MAX_FINDINGS, ProblemError
from server.protocols.mcp import endpoint
from server.protocols.mcp.protocol import MAX_ARGUMENT, PROMPTS
from server.protocols.mcp.schemas import FILE_OPTIONS

pytestmark = pytest.mark.anyio

NESTED: list[Any] = []
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}
ACCEPT = {"accept": "application/json, text/event-stream"}


def test_an_argument_that_looks_like_a_place_for_another_stays_as_it_is() -> None:
    text = PROMPTS["cover"].filled({"file": "{style}" * 200, "style": "x" * MAX_ARGUMENT})
    assert "{style}{style}" in text
    assert text.count("x" * MAX_ARGUMENT) == 1


def test_wrong_arguments_are_named_up_to_a_limit() -> None:
    with pytest.raises(ProblemError, match="/arguments/a0: is not known") as caught:
        PROMPTS["song"].filled({f"a{index}": "" for index in range(1000)})
    assert len(caught.value.errors) == MAX_FINDINGS
    with pytest.raises(ProblemError, match="/arguments/about: has more than 2000 characters"):
        PROMPTS["song"].filled({"about": "x" * 2001})
    with pytest.raises(ProblemError, match="/arguments/style: is missing"):
        PROMPTS["cover"].filled({"file": "a"})


for _ in range(50):
    NESTED = [NESTED]
WRONG: tuple[Any, ...] = (None, -1, 1e308, "\0../../etc/passwd", "x" * 3000, [None], NESTED)


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
        assert talk(served, steps, "legacy") > 170
    assert [record.getMessage() for record in caplog.records] == []


def samples(data: bytes) -> np.ndarray[Any, np.dtype[np.float64]]:
    found, rate_hz = soundfile.read(io.BytesIO(data), always_2d=True)
    assert rate_hz == 8000
    return found  # type: ignore[no-any-return]


def refused(response: httpx.Response, status: int, code: str) -> str:
    """The text of a JSON-RPC error, after checking the problem in it."""
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    body = response.json()
    assert (body["jsonrpc"], body["id"]) == ("2.0", None)
    assert (body["error"]["data"]["status"], body["error"]["data"]["code"]) == (status, code)
    return str(body["error"]["message"])


async def read_file(client: Client, uri: str) -> bytes:
    (contents,) = (await client.read_resource(uri)).contents
    return base64.b64decode(contents.blob)  # type: ignore[union-attr]


@pytest.mark.parametrize("era", ERAS)
async def test_a_file_is_made_and_read(served: Served, era: str) -> None:
    async with connected(served.url, era) as client:
        arguments = {"prompt": "a", "seconds": 1, "seed": 7}
        result = await client.call_tool("generate", arguments)
        found, link = facts(result), link_of(result)
        assert (found["seed"], found["seconds"], found["media_type"]) == (7, 1.0, "audio/wav")
        assert found["options"] == arguments
        assert audio_of(result) is None
        assert (link.uri, link.size, link.mime_type) == (found["uri"], found["bytes"], "audio/wav")
        data = await read_file(client, found["uri"])
        assert len(data) == found["bytes"]
        assert np.abs(samples(data)).max() > 0.05
        fetched = served.get(found["url"])
        assert (fetched.headers["content-type"], fetched.content) == ("audio/wav", data)
        again = await client.call_tool("generate", {**arguments, "return_audio": True})
        sent = audio_of(again)
        assert sent is not None
        assert sent.mime_type == "audio/wav"
        assert np.array_equal(samples(base64.b64decode(sent.data)), samples(data))
        listed = {resource.uri: resource for resource in (await client.list_resources()).resources}
        assert listed[found["uri"]].size == found["bytes"]


@pytest.mark.parametrize("era", ERAS)
async def test_long_work_reports_how_far_it_is(serve: Serve, era: str) -> None:
    served, reports = serve(), list[tuple[float, float | None, str | None]]()
    served.tick_s = 0.15

    async def note(done: float, total: float | None, text: str | None) -> None:
        reports.append((done, total, text))

    async with connected(served.url, era) as client:
        await client.call_tool("generate", {"prompt": "a", "seconds": 1, "steps": 6}, progress_callback=note)
        while not reports or reports[-1][0] < 6:
            await asyncio.sleep(0.01)
    assert [done for done, _, _ in reports] == sorted({done for done, _, _ in reports})
    assert {total for _, total, _ in reports} == {6.0}
    assert len(reports) > 2
    assert reports[0][2] == f"step {reports[0][0]:g} of 6"


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancelled_call_ends_its_generation(serve: Serve, era: str) -> None:
    served = serve()

    async with connected(served.url, era) as client:
        served.pause()
        call = asyncio.create_task(client.call_tool("generate", {"prompt": "a", "seconds": 1}))
        while not served.metrics()["tickrt_generations_in_flight"]:
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        while served.service.admission.permits:
            await asyncio.sleep(0.01)
        served.resume()
    eventually(lambda: served.metrics()["tickrt_generations_total{outcome=cancelled}"] == 1)
    assert served.metrics()["tickrt_generations_in_flight"] == 0
    assert served.app.state.mcp.endpoint.tools.files.of("127.0.0.1") == []


@pytest.mark.parametrize("era", ERAS)
async def test_errors_are_problems_that_say_what_to_do(served: Served, era: str) -> None:
    async with connected(served.url, era) as client:

        async def problem(code: str, **arguments: Any) -> str:
            return problem_of(await client.call_tool("generate", arguments), code)

        text = await problem("invalid_request", prompt="a", guidance=-1, steps=0)
        assert "/guidance" in text
        assert "- /steps: " in text
        assert "Fix: " in text
        assert "did you mean seconds?" in await problem("invalid_request", prompt="a", second=2)
        assert "/prompt: is missing" in await problem("invalid_request")
        assert "/return_audio: expected true or false" in await problem("invalid_request", prompt="a", return_audio="x")
        assert "names neither" in await problem("source_not_found", prompt="a", source_id="/etc/passwd")
        with pytest.raises(MCPError, match=r"did you mean generate\?"):
            await client.call_tool("generat", {})
        with pytest.raises(MCPError, match="there is no file") as error:
            await client.read_resource("tickrt://files/x.wav")
        assert error.value.data["code"] == "file_not_found"
        for uri in ("tickrt://other", "tickrt://plans/", "tickrt://plans/x", "tickrt://files/../../etc/passwd", "x"):
            with pytest.raises(MCPError):
                await client.read_resource(uri)
        with pytest.raises(MCPError, match="/arguments/about: is missing"):
            await client.get_prompt("song", {})
        with pytest.raises(MCPError, match="/arguments/other: is not known"):
            await client.get_prompt("song", {"about": "x", "other": "y"})


async def test_limits_and_admission_are_those_of_http(serve: Serve) -> None:
    served = serve(depth=1, queue=1, client_in_flight=1, max_seconds=5.0)

    async with connected(served.url) as client:
        too_long = await client.call_tool("generate", {"prompt": "a", "seconds": 6})
        assert "/seconds" in problem_of(too_long, "invalid_request")
        served.pause()
        async with connected(served.url) as other:
            call = asyncio.create_task(other.call_tool("generate", {"prompt": "a", "seconds": 1}))
            while not served.service.admission.permits:
                await asyncio.sleep(0.01)
            text = problem_of(await client.call_tool("generate", {"prompt": "a"}), "too_many_requests")
            assert "Try again in " in text
            served.resume()
            facts(await call)
        served.service.admission.drain()


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_the_key_and_the_origin_are_checked(serve: Serve, method: str) -> None:
    served = serve(api_key="secret", allowed_origins=("https://studio.example",))
    with served.client() as http:

        def ask(**headers: str) -> httpx.Response:
            return http.request(method, "/mcp", json=INITIALIZE, headers={**ACCEPT, **headers})

        key = {"authorization": "Bearer secret"}
        refused(ask(), 401, "unauthorized")
        refused(ask(authorization="Bearer other"), 401, "unauthorized")
        refused(ask(**key, origin="https://elsewhere.example"), 403, "origin_not_allowed")
        refused(ask(**key, host="elsewhere.example"), 403, "host_not_allowed")
        allowed = 200 if method == "POST" else 404  # there is no session to end
        assert ask(**key, origin="https://studio.example").status_code == allowed
        assert ask(**key, origin=served.url).status_code == allowed
        problem(http.get("/mcp/files/x.wav"), 401, "unauthorized")
        problem(http.get("/mcp/files/x.wav", headers=key), 404, "file_not_found")
    with pytest.raises(MCPError, match="Fix: send Authorization: Bearer KEY"):
        talk(served, lambda client: client.list_tools())

    async def names(client: Client) -> set[str]:
        return {tool.name for tool in (await client.list_tools()).tools}

    assert "generate" in talk(served, names, headers={"x-api-key": "secret"})


def test_a_page_of_an_allowed_origin_may_send_the_headers_of_the_protocol(serve: Serve) -> None:
    served = serve(allowed_origins=("https://studio.example",))
    headers = {
        "origin": "https://studio.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type,mcp-protocol-version,mcp-session-id",
    }
    assert served.send("OPTIONS", "/mcp", headers=headers).status_code == 200
    answer = served.send("POST", "/mcp", json=INITIALIZE, headers={**ACCEPT, "origin": "https://studio.example"})
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"].lower()


def test_a_body_of_many_members_is_refused_before_the_sdk_reads_it(serve: Serve) -> None:
    body = {**INITIALIZE, "params": {**INITIALIZE["params"], **{f"a{number}": 1 for number in range(1200)}}}  # type: ignore[dict-item]
    with serve().client(headers=ACCEPT) as http:
        assert "more than 1100 members" in refused(http.post("/mcp", json=body), 400, "malformed_json")


def test_sessions_are_limited_and_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_SESSIONS", 2)
    monkeypatch.setattr(endpoint, "SESSIONS_SHARE", 1.0)
    served = serve(client_in_flight=8)
    with served.client(headers=ACCEPT) as http:

        def begin() -> str:
            return http.post("/mcp", json=INITIALIZE).headers["mcp-session-id"]

        def ping(session: str) -> httpx.Response:
            body = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            return http.post("/mcp", json=body, headers={"mcp-session-id": session})

        first, second = begin(), begin()
        assert ping(first).status_code == 200
        third = begin()
        eventually(lambda: set(served.app.state.mcp.endpoint._sessions.open) == {first, third})
        assert "Fix: send initialize" in refused(ping(second), 404, "session_not_found")
        assert http.delete("/mcp", headers={"mcp-session-id": third}).status_code == 200
        eventually(lambda: set(served.app.state.mcp.endpoint._sessions.open) == {first})
        refused(ping(third), 404, "session_not_found")
        monkeypatch.setattr(endpoint, "IDLE_S", 0.0)
        assert ping(first).status_code == 200
        eventually(lambda: not served.app.state.mcp.endpoint._sessions.open)


async def test_a_request_has_a_bound(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_REQUESTS", 4)
    served = serve(client_in_flight=2)
    with served.client(headers=ACCEPT) as http:
        large = {**INITIALIZE, "params": {"x": "x" * endpoint.MAX_BODY_BYTES}}
        refused(http.post("/mcp", json=large), 413, "content_too_large")
        for body in (b"[" * 100_000, b"{}", b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}'):
            assert http.post("/mcp", content=body, headers={"content-type": "application/json"}).status_code == 400
        eventually(lambda: not served.app.state.mcp.endpoint._sessions.open)
        assert http.post("/mcp", json=INITIALIZE).status_code == 200
        refused(http.get("/mcp"), 405, "method_not_allowed")

    served.pause()
    async with connected(served.url) as other:
        call = asyncio.create_task(other.call_tool("generate", {"prompt": "a", "seconds": 1}))
        while not served.service.admission.permits:
            await asyncio.sleep(0.01)
        with served.client(headers=ACCEPT) as http:
            refused(await asyncio.to_thread(http.post, "/mcp", json=INITIALIZE), 429, "too_many_requests")
        served.resume()
        await call


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_a_client_that_does_not_read_is_left(serve: Serve, version: str) -> None:
    served = serve(send_timeout_s=0.1, send_buffer_bytes=4096)
    with served.client(headers=ACCEPT) as http:
        session = http.post("/mcp", json=INITIALIZE).headers["mcp-session-id"]
    asked = {"name": "generate", "arguments": {"prompt": "a", "seconds": 30, "steps": 1, "return_audio": True}}
    names = ("protocolVersion", "clientCapabilities")
    about = dict(zip((f"io.modelcontextprotocol/{name}" for name in names), (version, {}), strict=True))
    params = asked if version in HANDSHAKE_PROTOCOL_VERSIONS else {**asked, "_meta": about}
    body = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}).encode()
    headers = f"accept: {ACCEPT['accept']}\r\nmcp-protocol-version: {version}\r\n"
    headers += (
        f"mcp-session-id: {session}\r\n" if params is asked else "mcp-method: tools/call\r\nmcp-name: generate\r\n"
    )
    places = served.app.state.mcp.endpoint._places
    with connected_socket(served) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(raw_request(body, path="/mcp", headers=headers))
        assert client.recv(12) == b"HTTP/1.1 200"
        assert places.used == 1
        eventually(lambda: places.used == 0)
        received = 12
        with suppress(ConnectionResetError):
            while data := client.recv(2**16):
                received += len(data)
    (file,) = served.app.state.mcp.endpoint.tools.files.of("127.0.0.1")
    assert received < file.size_bytes


def test_a_server_that_drains_refuses_and_ends_what_is_in_flight(serve: Serve) -> None:
    served = serve(depth=1, drain_s=0.2)

    async def steps(client: Client) -> str:
        served.tick_s = 0.05
        call = asyncio.create_task(client.call_tool("generate", {"prompt": "a", "seconds": 60}))
        while not served.service.admission.permits:
            await asyncio.sleep(0.01)
        served.server.drain()
        with served.client(headers=ACCEPT) as http:
            refused(await asyncio.to_thread(http.post, "/mcp", json=INITIALIZE), 503, "draining")
        return text_of(await call)

    assert "shutting down" in talk(served, steps)


def test_without_the_sdk_one_sentence_says_what_to_install(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.protocols.mcp.routes.find_spec", lambda name: None)
    served = serve()
    assert "pip install 'tickrt[mcp]'" in refused(served.send("POST", "/mcp", json=INITIALIZE), 501, "not_available")


async def test_prompts_and_schemas_are_there(served: Served) -> None:
    async with connected(served.url) as client:
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        assert set(prompts) == {"song", "cover", "fix_a_part", "jam"}
        message = (await client.get_prompt("song", {"about": "rain"})).messages[0]
        assert "10 seconds of music: rain" in message.content.text  # type: ignore[union-attr]
        with served.client() as http:
            for uri, path in (("tickrt://schema", "/v1/schema"), ("tickrt://schema/live", "/v1/schema/live")):
                (contents,) = (await client.read_resource(uri)).contents
                assert json.loads(contents.text) == http.get(path).json()  # type: ignore[union-attr]
        templates = (await client.list_resource_templates()).resource_templates
        assert {item.uri_template for item in templates} == {"tickrt://files/{name}", "tickrt://plans/{name}"}
        assert client.server_info is not None
        assert client.server_info.name == "tickrt"
