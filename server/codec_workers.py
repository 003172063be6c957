"""Queues for codec workers and for sources; which streams wait for their first audio. Event loop's thread only."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from typing import ParamSpec, TypeVar

from server.asgi.problems import unavailable

P = ParamSpec("P")
T = TypeVar("T")


class PriorityWorkers:
    """Hands out `size` workers by priority (0 first), first come, first served within a priority.

    Every stream acquires a worker per window, so streams of equal priority alternate. `limit` returns how many workers
    may be in use now; it is called whenever one could be handed out.
    """

    def __init__(self, size: int = 1, limit: Callable[[], int] | None = None) -> None:
        self._size = size
        self._limit = limit or (lambda: size)
        self._num_busy = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    @asynccontextmanager
    async def acquire(self, priority: int) -> AsyncIterator[None]:
        """Wait for a worker and hold it until the block ends."""
        await self._acquire(priority)
        try:
            yield
        finally:
            self._release()

    async def _acquire(self, priority: int) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._numbers), granted))
        self._hand_out()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._release()
            raise

    def _release(self) -> None:
        self._num_busy -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self._num_busy < min(self._size, max(1, self._limit())):
            _, _, granted = heapq.heappop(self._waiting)
            if not granted.done():
                self._num_busy += 1
                granted.set_result(None)


class SourceWorker:
    """One thread that reads sources, so that ticks keep their share of the CPU; `max_waiting` wait for it at most."""

    def __init__(self, max_waiting: int = 8) -> None:
        self._max_waiting = max_waiting
        self._num_waiting = 0
        self._lock = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, "sources")

    async def run(self, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Run `work` after what waits already. Raises ProblemError 503 where too many wait."""
        if self._num_waiting > self._max_waiting:
            raise unavailable("busy", "too many sources are being read", retry_after_s=5)
        self._num_waiting += 1
        try:
            async with self._lock:
                return await run_to_end(self._thread, work, *arguments, **options)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """Wait for what is being read."""
        self._thread.shutdown()


async def run_to_end(threads: Executor, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run `work` in one of `threads`. On cancellation it waits for the end: until then `work` uses its arguments."""
    done = asyncio.get_running_loop().run_in_executor(threads, partial(work, *arguments, **options))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        if not done.cancelled():
            done.exception()
        raise


@dataclass
class FirstAudioTracker:
    """Streams that were admitted and have sent no audio yet, in order of admission.

    A stream that is ahead of real time waits for the first audio of the streams it shares ticks with, at most `size`.
    """

    size: int
    _waiting: dict[str, None] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, stream: str) -> None:
        """A stream was admitted."""
        self._waiting[stream] = None

    def discard(self, stream: str) -> None:
        """A stream has sent its first audio or will send none; idempotent."""
        if stream in self._waiting:
            del self._waiting[stream]
            self._changed.set()
            self._changed = asyncio.Event()

    def peers(self, stream: str) -> frozenset[str]:
        """The streams that share, or will share, ticks with `stream` and still wait for their first audio."""
        return frozenset(islice((other for other in self._waiting if other != stream), self.size))

    async def wait_for(self, streams: frozenset[str], timeout_s: float) -> None:
        """Until all of `streams` have sent their first audio, at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not streams.isdisjoint(self._waiting):
                    await self._changed.wait()
        except TimeoutError:
            return
