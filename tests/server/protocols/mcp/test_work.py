"""Work of tools: what it tells of itself, and its end."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from server.protocols.mcp import work
from server.protocols.mcp.work import Progress, Work


async def _ignored(done: float, total: float, text: str) -> None:
    pass


def test_each_report_is_more_than_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "PROGRESS_S", 0.0)
    progress, reports = Progress(total=4), list[tuple[float, float, str]]()

    async def count() -> str:
        for done, text in ((1, "one"), (1, "one again"), (3, "three"), (4, "four")):
            progress.done, progress.text = done, text
            for _ in range(20):
                await asyncio.sleep(0)
        return "made"

    async def report(done: float, total: float, text: str) -> None:
        reports.append((done, total, text))

    assert asyncio.run(Work().run(count(), progress, report)) == "made"
    assert reports == [(1, 4, "one"), (3, 4, "three"), (4, 4, "done")]


def test_an_error_of_the_work_is_the_callers() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(Work().run(fail(), Progress(), _ignored))


def test_a_cancelled_caller_leaves_work_time_to_end_what_it_has_begun() -> None:
    """anyio cancels again at each await of the caller."""
    ended, running = list[str](), Work()

    async def begin() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("all")

    async def call() -> None:
        with anyio.move_on_after(0.01):
            await running.run(begin(), Progress(), _ignored)
        assert ended == []
        async with asyncio.timeout(10):
            while not ended:
                await asyncio.sleep(0.001)

    asyncio.run(call())


def test_what_is_left_ends_with_the_server() -> None:
    ended, running = list[str](), Work()

    async def begin() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("all")

    async def close() -> None:
        call = asyncio.create_task(running.run(begin(), Progress(), _ignored))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await running.close()
        await asyncio.wait([call])

    asyncio.run(close())
    assert ended == ["all"]
