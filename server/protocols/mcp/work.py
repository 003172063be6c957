"""Who calls a tool, and its work in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

# How often it is looked at how far work is.
PROGRESS_S = 0.1
T = TypeVar("T")
# Gets how much is done, of how much, and a line about it.
Report = Callable[[float, float, str], Awaitable[None]]


@dataclass(frozen=True)
class ToolClient:
    """Who calls a tool: the address that limits go by, the URL of this server as it is called there, and its progress.

    url: "" over stdio.
    """

    address: str
    url: str
    report: Report


@dataclass
class ToolProgress:
    """How far work is: `done` of `total`, and a line about it. The work changes it."""

    done: float = 0.0
    total: float = 1.0
    text: str = ""


@dataclass
class ToolTasks:
    """Tasks of tools. The SDK cancels a handler again at each of its awaits; a task of its own is cancelled once.

    So it ends what it has begun. Event loop's thread.
    """

    _tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    async def run(self, work: Coroutine[Any, Any, T], progress: ToolProgress, report: Report) -> T:
        """The result of `work`; tells how far it is, each time more than before. Cancelled with its caller."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        reported = 0.0
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=PROGRESS_S)
                if reported < progress.done < progress.total:
                    reported = progress.done
                    await report(reported, progress.total, progress.text)
        finally:
            task.cancel()
        result = task.result()
        await report(progress.total, progress.total, "done")
        return result

    async def close(self) -> None:
        """End all of it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who waited for it has it, or has gone
