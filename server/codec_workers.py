"""Whose turn it is: the codec's work, and who has not heard anything yet. Event loop's thread only."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Hands out `lanes` by priority (0 first), and first come, first served among equals.

    Every stream asks for one turn per window, so streams of equal priority take turns. `limit` says how many lanes may
    be in use at this moment; it is asked whenever one could be handed out.
    """

    def __init__(self, lanes: int = 1, limit: Callable[[], int] | None = None) -> None:
        self._lanes = lanes
        self._limit = limit or (lambda: lanes)
        self._free = list(range(lanes))
        self._line: list[tuple[int, int, asyncio.Future[int]]] = []
        self._numbers = count()

    @asynccontextmanager
    async def turn(self, priority: int) -> AsyncIterator[int]:
        """Wait for a lane, and have its number until the block ends."""
        lane = await self._take(priority)
        try:
            yield lane
        finally:
            self._give_back(lane)

    async def _take(self, priority: int) -> int:
        called: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (priority, next(self._numbers), called))
        self._hand_out()
        try:
            return await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._give_back(called.result())
            raise

    def _give_back(self, lane: int) -> None:
        self._free.append(lane)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._line and self._free and self._lanes - len(self._free) < max(1, self._limit()):
            _, _, called = heapq.heappop(self._line)
            if not called.done():
                called.set_result(self._free.pop())


async def finish_in(threads: Executor, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """`work` in one of `threads`. Cancelled, it waits for the end: what `work` uses is free only then."""
    done = asyncio.get_running_loop().run_in_executor(threads, partial(work, *arguments, **options))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        if not done.cancelled():
            done.exception()
        raise


@dataclass
class Audience:
    """Streams that have been admitted and have not had their first audio, in order of admission.

    A stream that is ahead of its listener lets those first who share its ticks: at most `size` of them.
    """

    size: int
    _waiting: dict[str, None] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def join(self, stream: str) -> None:
        """A stream was admitted."""
        self._waiting[stream] = None

    def leave(self, stream: str) -> None:
        """A stream has had its first audio, or will not have any; may be repeated."""
        if stream in self._waiting:
            del self._waiting[stream]
            self._changed.set()
            self._changed = asyncio.Event()

    def neighbours(self, stream: str) -> frozenset[str]:
        """The streams that share `stream`'s ticks, or are about to, and still wait for their first audio."""
        return frozenset(islice((other for other in self._waiting if other != stream), self.size))

    async def wait_for(self, streams: frozenset[str], timeout_s: float) -> None:
        """Until all of these have had their first audio, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not streams.isdisjoint(self._waiting):
                    await self._changed.wait()
        except TimeoutError:
            return
