"""Whose turn it is: the codec's work, and who has not heard anything yet. Event loop's thread only."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, islice


class Turns:
    """A lock that is handed on by priority (0 first), and first come, first served among equals.

    Every stream asks for one turn per window, so streams of equal priority take turns.
    """

    def __init__(self) -> None:
        self._line: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._is_taken = False

    @asynccontextmanager
    async def turn(self, priority: int) -> AsyncIterator[None]:
        """Wait for the turn; it ends with the block."""
        await self._take(priority)
        try:
            yield
        finally:
            self._hand_on()

    async def _take(self, priority: int) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._line, (priority, next(self._numbers), called))
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._line:
            _, _, called = heapq.heappop(self._line)
            if not called.done():
                called.set_result(None)
                return
        self._is_taken = False


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
