"""tickrt-mcp as an assistant starts it: a process, whose standard output has nothing but the protocol."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.factories import tiny_deployment
from helpers.http_harness import TIMEOUT_S
from helpers.mcp_client import ERAS, PROGRAM, environment, facts, link_of, over_stdio, problem_of, stdio
from mcp.client import Client

from runtime.config.deployment import Deployment
from runtime.requests.request import MAX_STEPS

pytestmark = pytest.mark.shipped
PIPE = subprocess.PIPE


@pytest.fixture
def command(built: Callable[..., Deployment], tmp_path: Path) -> list[str]:
    return stdio(built(max_rows=16).path, tmp_path / "my music")


@contextmanager
def told(command: list[str], *lines: str) -> Iterator[subprocess.Popen[str]]:
    """The process, to which these lines were written."""
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=environment()) as process:
        assert process.stdin is not None
        process.stdin.write("".join(lines))
        process.stdin.flush()
        yield process


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.anyio
async def test_files_are_made_in_the_folder_and_are_sources(command: list[str], tmp_path: Path, era: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), Client(over_stdio(command), mode=era) as client:
        result = await client.call_tool("generate", {"prompt": "a", "seconds": 1, "seed": 1})
        made = facts(result)
        path = Path(made["path"])
        assert path.parent == tmp_path / "my music"
        assert path.stat().st_size == made["bytes"] == link_of(result).size
        for source in (made["path"], path.as_uri(), made["uri"]):
            covered = facts(await client.call_tool("cover", {"prompt": "b", "source_id": source, "seed": 1}))
            assert 1.0 <= covered["seconds"] < 1.1
        endless = {"prompt": "a", "seconds": 600, "steps": MAX_STEPS}
        begun = asyncio.Event()

        async def note(done: float, total: float | None, text: str | None) -> None:
            begun.set()

        call = asyncio.create_task(client.call_tool("generate", endless, progress_callback=note))
        await asyncio.wait([call, asyncio.create_task(begun.wait())], return_when=asyncio.FIRST_COMPLETED)
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        missing = await client.call_tool("cover", {"prompt": "b", "source_id": str(tmp_path / "no.wav")})
        assert "cannot be read: No such file" in problem_of(missing, "file_error")
        endless_file = await client.call_tool("cover", {"prompt": "b", "source_id": os.devnull})
        assert "cannot be read: it is a device" in problem_of(endless_file, "file_error")
        session = facts(await client.call_tool("live_open", {"prompts": [{"text": "a"}]}))["session"]
        passage = facts(await client.call_tool("live_record", {"session": session, "seconds": 1}))
        assert Path(passage["path"]).is_file()
    assert sorted(file.suffix for file in (tmp_path / "my music").iterdir()) == [".wav"] * 5


def line(method: str, number: int | None = None, **params: object) -> str:
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(message if number is None else {**message, "id": number}) + "\n"


def test_standard_output_has_nothing_but_the_protocol(command: list[str]) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    lines = [line("initialize", 1, **about), line("notifications/initialized"), line("tools/list", 2)]
    with told(command, *lines) as process:
        answers = [answer(process) for _ in range(2)]
        # It ends once standard input does.
        rest, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert rest == ""
    assert [answer["id"] for answer in answers] == [1, 2]
    assert "generate" in {tool["name"] for tool in answers[1]["result"]["tools"]}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_standard_input_is_open(command: list[str], number: int) -> None:
    with told(command, line("ping", 1)) as process:
        answer(process)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 130


@pytest.mark.anyio
async def test_engines_that_are_missing_are_said_by_the_tools(tmp_path: Path) -> None:
    """The protocol is answered all the same, so that the assistant can tell why."""
    command = stdio(tiny_deployment(tmp_path), tmp_path / "my music")
    async with asyncio.timeout(TIMEOUT_S), Client(over_stdio(command)) as client:
        text = problem_of(await client.call_tool("generate", {"prompt": "a"}), "failed")
        assert "Fix: tickrt-build" in text


@pytest.mark.parametrize("home", [None, "/proc/none"])
def test_without_a_folder_for_music_it_says_what_to_give(command: list[str], home: str | None) -> None:
    """In a container: no user of this number, or a home that cannot be written."""
    variables = {name: value for name, value in environment().items() if name not in ("HOME", "XDG_MUSIC_DIR")}
    no_user = "import pwd; pwd.getpwuid = {}.__getitem__; "
    program = [command[0], "-c", no_user + PROGRAM, command[3]]
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": TIMEOUT_S}
    done = subprocess.run(program, env=variables | ({} if home is None else {"HOME": home}), check=False, **options)
    words = "no home folder" if home is None else "/proc/none/Music/TickRT cannot be written"
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert words in done.stderr
    assert "fix: --out FOLDER" in done.stderr
