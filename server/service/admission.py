"""Admission control: capacity, memory of responses, places, limits per client, draining; which streams wait for their
first audio. Event loop's thread only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from server.asgi.problems import ProblemError, draining, unavailable
from server.asgi.shares import Holding, Shares
from server.config import MIB

T = TypeVar("T")


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


class Admission:
    """Admits up to `capacity` generations that need the tick loop, as long as responses need at most `memory_bytes`.

    One client gets `client_limit` generations and uploads (None: half of the capacity; 0: no limit) and, where there is
    a limit, half of the memory. A generation counts from admission until it needs no more ticks, also between its
    segments, so that a later segment is never refused for lack of capacity. ticks_s: the projected time in which all
    slots together do that many steps. wait_elsewhere_s: the shortest wait at another replica.
    """

    def __init__(
        self,
        capacity: int,
        client_limit: int | None = None,
        memory_bytes: int = 512 * MIB,
        ticks_s: Callable[[int], float] = lambda num_ticks: 0.0,
    ) -> None:
        self.capacity, self.client_limit = capacity, client_limit
        self.ticks_s = ticks_s
        self.wait_elsewhere_s: Callable[[], float] = lambda: math.inf
        self.is_draining = False
        self.permits: set[Permit] = set()
        self.num_pending = 0
        self.memory = Shares("keeps bytes of responses", memory_bytes, 0 if client_limit == 0 else 0.5)
        self._in_flight = Shares("has generations and uploads in flight", math.inf, 0, wait_s=self.projected_wait_s)
        self._empty = asyncio.Event()

    @property
    def places_per_client(self) -> int:
        """How many generations and uploads one client may have in flight; 0 is no limit."""
        return max(1, self.capacity // 2) if self.client_limit is None else self.client_limit

    def admit(self, client: str) -> Permit:
        """Admit a generation. Raises ProblemError 429 or 503, both with Retry-After."""
        with self.limit_client(client):  # as long as it is not admitted
            if self.num_pending >= self.capacity:
                what = f"all {self.capacity} slots and queue places are taken"
                wait_s = min(self.projected_wait_s(), self.wait_elsewhere_s())
                raise unavailable("queue_full", what, retry_after_s=wait_s)
        permit = Permit(self, client, self._in_flight.take(client), self.memory.take(client, 0))
        self.num_pending += 1
        self.permits.add(permit)
        self._empty.clear()
        return permit

    @contextmanager
    def limit_client(self, client: str) -> Iterator[None]:
        """Count work without ticks against the client's limit. Raises ProblemError 429 or 503."""
        if self.is_draining:
            raise draining()
        self._in_flight.client_limit = self.places_per_client or math.inf
        with self._in_flight.hold(client):
            yield

    def projected_wait_s(self, client: str | None = None) -> float:
        """How long the steps that are left take, of all generations or of one client's."""
        permits = [permit for permit in self.permits if client in (None, permit.client)]
        return self.ticks_s(sum(permit.remaining_steps for permit in permits))

    def drain(self) -> None:
        """Refuse everything from now on."""
        self.is_draining = True

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until every permit is released; False after `timeout_s`."""
        if not self.permits:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _remove(self, permit: Permit) -> None:
        self.permits.discard(permit)
        if not self.permits:
            self._empty.set()


@dataclass(eq=False)
class Permit:
    """The permission of one generation; `abort` is set when the server ends it. `remaining_steps`: until its end.

    It counts against the capacity until `finish_ticks` was called and every request that was added has ended in the
    tick loop: a cancelled generation holds its slot until the loop has released it.
    """

    admission: Admission
    client: str
    places: Holding
    memory: Holding
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    remaining_steps: int = 0
    _needs_ticks: bool = True
    _num_requests: int = 0
    _num_places: int = 1
    _is_pending: bool = True

    def reserve(self, size_bytes: int) -> None:
        """Reserve memory for the response until `release`. Raises ProblemError 422, 429 or 503."""
        limit = min(self.memory.shares.limit, self.memory.shares.client_limit)
        if size_bytes > limit:
            raise ProblemError(
                422,
                "response_too_large",
                f"the response needs {size_bytes / MIB:.0f} MiB of memory, the limit is {limit / MIB:.0f} MiB",
                fix='set "stream": true, ask for fewer seconds, or raise [server] response_budget_bytes',
            )
        self.memory.grow(size_bytes)

    def take_places(self, wanted: int) -> int:
        """Take up to so many more places, of those that are free and that its client may have; returns how many.

        It is to have as many more requests in flight. They are given back with the rest.
        """
        admission, shares = self.admission, self.places.shares
        free = admission.capacity - admission.num_pending
        if limit := admission.places_per_client:
            free = min(free, limit - shares.used_by(self.client))
        taken = max(0, min(wanted, free))
        admission.num_pending += taken
        self.places.grow(taken)
        self._num_places += taken
        return taken

    def add_request(self) -> None:
        """The tick loop took one of its requests."""
        self._num_requests += 1

    def end_request(self, num_steps: int = 0) -> None:
        """The tick loop published the end of one of its requests, which had `num_steps`."""
        self._num_requests -= 1
        self.remaining_steps -= num_steps
        self._update()

    def finish_ticks(self) -> None:
        """Its last request has been submitted; idempotent."""
        self._needs_ticks = False
        self._update()

    def release(self) -> None:
        """The generation is over; idempotent."""
        self.finish_ticks()
        self.places.release()
        self.memory.release()
        self.admission._remove(self)

    def _update(self) -> None:
        if self._is_pending and not self._needs_ticks and not self._num_requests:
            self._is_pending = False
            self.admission.num_pending -= self._num_places
