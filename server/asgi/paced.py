"""Work that holds the interpreter, at a bounded pace."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool

# Of the time, that work in threads may hold the interpreter.
HELD_SHARE = 0.25
T = TypeVar("T")


@dataclass
class Paced:
    """Work in threads that holds the interpreter, which ticks and the event loop need, too: one at a time, and in at
    most HELD_SHARE of the time.
    """

    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _free_s: float = -math.inf
    _shared: asyncio.Task[Any] | None = None

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """What `work` gives."""
        async with self._lock:
            await asyncio.sleep(max(0.0, self._free_s - time.monotonic()))
            return await run_in_threadpool(self._timed, partial(work, *arguments))

    async def share(self, work: Callable[[], T]) -> T:
        """As run; those that ask before it begins get one result."""
        if self._shared is None:
            self._shared = asyncio.create_task(self.run(self._begin, work))
        result: T = await asyncio.shield(self._shared)
        return result

    def _begin(self, work: Callable[[], T]) -> T:
        self._shared = None
        return work()

    def _timed(self, work: Callable[[], T]) -> T:
        started_s = time.thread_time()
        try:
            return work()
        finally:
            self._free_s = time.monotonic() + (time.thread_time() - started_s) * (1.0 / HELD_SHARE - 1.0)
