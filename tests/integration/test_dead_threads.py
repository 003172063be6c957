"""Every thread of a server process in turn ends by an error: health says which, and the process ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest
from helpers import killable_server
from helpers.acestep_client import wav_file
from helpers.http_harness import eventually
from helpers.killable_server import KILL_AT, kill_at, threads_at
from helpers.mcp_client import connected, facts
from websockets.sync.client import connect

from profiling.server_process import ServerProcess, server_process
from runtime.commands.terminal import EXIT_ENGINE

# Threads that serve no other call than their own, or for which others wait that are watched; a plan's ends its session.
UNWATCHED = re.compile(r"MainThread|killer|AnyIO worker thread|asyncio_\d+|live-plan_0|step-noise_0")
# A name that is missing here is not used, or does not exist, any more.
WATCHED = {"tick", "live", "live-words", "live-compose", "live-encode", "codec-decode", "session-store"}
WATCHED |= {"mcp-live"}


@contextmanager
def killable(config: Path, folder: Path) -> Iterator[tuple[ServerProcess, str]]:
    folder.mkdir()
    address = str(folder / "kill")
    settings = {KILL_AT: address, "TICKRT_STATE": str(folder / "state")}
    with server_process(config, settings, program=[killable_server.__file__]) as server:
        yield server, address


def use(url: str) -> None:
    """Let every thread that the server has for clients do something."""
    with httpx.Client(base_url=url, timeout=20) as client:
        source = client.post("/v1/sources", content=wav_file(3.0), headers={"content-type": "audio/wav"}).json()["id"]
        assert client.post("/v1/audio/generations", json={"prompt": "pads", "seconds": 1}).status_code == 200
    with connect(url.replace("http", "ws", 1) + "/v1/live", subprotocols=["tickrt.live.v1"]) as websocket:  # type: ignore[list-item]

        def tell(kind: str, **members: Any) -> None:
            websocket.send(json.dumps({"type": kind, **members}))

        tell("open", mode="extend", prompts=[{"text": "pads"}])
        eventually(lambda: isinstance(websocket.recv(20), bytes))
        tell("prompts", seq=1, items=[{"text": "drums"}])
        tell("source", seq=2, id=source)
    asyncio.run(assist(url))


async def assist(url: str) -> None:
    async with asyncio.timeout(20), connected(url) as client:
        facts(await client.call_tool("live_open", {}))


def kill(url: str, address: str, name: str) -> None:
    """Again and again until the thread dies of it: inside of a unit of work, the error is that unit's alone.

    It takes one while the server is used; of a pool, any thread may.
    """
    while not is_not_live(url):
        with suppress(Exception):
            kill_at(address, name)
            use(url)


@pytest.mark.slow
def test_every_thread_that_serves_many_is_watched_and_its_end_ends_the_process(
    demo_config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with killable(demo_config, tmp_path / "all") as (server, address):
        use(server.url)
        eventually(lambda: {name.removesuffix("_0") for name in watched(threads_at(address))} == WATCHED)
        threads = threads_at(address)
    unwatched = [name for name, is_watched in threads.items() if not is_watched]
    assert not [name for name in unwatched if not UNWATCHED.fullmatch(name)], threads
    for name in watched(threads):
        with killable(demo_config, tmp_path / name) as (server, address):
            use(server.url)
            eventually(lambda: name in threads_at(address))  # noqa: B023
            Thread(target=kill, args=(server.url, address, name), daemon=True).start()
            eventually(lambda: is_not_live(server.url))
            assert psutil.Process(server.pid).wait(30) == EXIT_ENGINE
        assert f"the thread {name.removesuffix('_0')!r} has ended" in capfd.readouterr().err


def watched(threads: dict[str, bool]) -> list[str]:
    """Of each pool the first thread."""
    return [name for name, is_watched in threads.items() if is_watched and not re.search("_[1-9]", name)]


def is_not_live(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/live", timeout=5).status_code == 503
    except httpx.HTTPError:
        return True
