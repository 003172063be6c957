"""Work in other threads; which streams wait for their first audio. Event loop's thread only."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


async def run_to_end(future: Future[T]) -> T:
    """The result of work in another thread. On cancellation its end is waited for: it uses its arguments until then."""
    done = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if not future.cancel():
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
