"""The official SDK's client, connected to a server of a test or to a command over stdio."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from helpers.http_harness import NO_CERTIFICATES, TIMEOUT_S, Served
from helpers.paths import ROOT
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import AudioContent, CallToolResult, ResourceLink, TextContent

T = TypeVar("T")
# Both eras of the protocol: with `initialize` and sessions, and without.
ERAS = ("legacy", "auto")
PROGRAM = "from server.protocols.mcp.cli import main; main()"


def stdio(deployment: Path, folder: Path) -> list[str]:
    """The command that serves a deployment over standard input and output, with its files in a folder."""
    return [sys.executable, "-c", PROGRAM, str(deployment), "--out", str(folder)]


def environment() -> dict[str, str]:
    """Of a process with the checkout's packages."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "runtime" / "api")])}


def over_stdio(command: list[str]) -> StdioServerParameters:
    """What the SDK's client starts a process with."""
    return StdioServerParameters(command=command[0], args=command[1:], env=environment())


@asynccontextmanager
async def connected(url: str, era: str = "auto", headers: dict[str, str] | None = None) -> AsyncIterator[Client]:
    """A client of the server at `url`."""
    async with httpx2.AsyncClient(headers=headers, timeout=TIMEOUT_S, verify=NO_CERTIFICATES) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=era, read_timeout_seconds=TIMEOUT_S) as client:
            yield client


def talk(
    served: Served, steps: Callable[[Client], Awaitable[T]], era: str = "auto", headers: dict[str, str] | None = None
) -> T:
    """What `steps` gives with a client of a server."""

    async def run() -> T:
        async with asyncio.timeout(TIMEOUT_S), connected(served.url, era, headers) as client:
            return await steps(client)

    try:
        return asyncio.run(run())
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            (error,) = error.exceptions
        raise error from None


def facts(result: CallToolResult) -> dict[str, Any]:
    """What a tool answered, as JSON in its first text."""
    assert not result.is_error, text_of(result)
    found: dict[str, Any] = json.loads(text_of(result))
    assert found == result.structured_content
    return found


def text_of(result: CallToolResult) -> str:
    """The text that a tool answered."""
    assert isinstance(result.content[0], TextContent)
    return result.content[0].text


def problem_of(result: CallToolResult, code: str) -> str:
    """The text of a problem, after checking its document."""
    assert result.is_error
    document = result.structured_content
    assert document["code"] == code, document
    assert document["type"] == f"urn:tickrt:problem:{code}"
    assert document["detail"] in text_of(result)
    return text_of(result)


def link_of(result: CallToolResult) -> ResourceLink:
    """The link to the file that a tool made."""
    (link,) = (item for item in result.content if isinstance(item, ResourceLink))
    return link


def audio_of(result: CallToolResult) -> AudioContent | None:
    """The audio that a tool sent, if it did."""
    return next((item for item in result.content if isinstance(item, AudioContent)), None)
