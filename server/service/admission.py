"""Admission control: capacity, memory of responses, places, limits per client, draining. Event loop's thread only."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.asgi.problems import ProblemError, draining, retry_after, unavailable
from server.config import MIB


@dataclass
class Admission:
    """Admits up to `capacity` generations that need the tick loop, as long as responses need at most `memory_bytes`.

    One client gets `client_limit` generations (None: half of the capacity; 0: no limit) and, where there is a limit,
    half of the memory. A generation counts from admission until it needs no more ticks, also between its segments, so
    that a later segment is never refused for lack of capacity. ticks_s: the projected time in which all slots
    together do that many steps. wait_elsewhere_s: the shortest wait at another replica.
    """

    capacity: int
    client_limit: int | None = None
    memory_bytes: int = 512 * MIB
    is_draining: bool = False
    permits: set[Permit] = field(default_factory=set)
    num_pending: int = 0
    reserved_bytes: int = 0
    _clients: Counter[str] = field(default_factory=Counter)
    ticks_s: Callable[[int], float] = lambda num_ticks: 0.0
    wait_elsewhere_s: Callable[[], float] = lambda: math.inf
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def places_per_client(self) -> int:
        """How many generations and uploads one client may have in flight; 0 is no limit."""
        return max(1, self.capacity // 2) if self.client_limit is None else self.client_limit

    def admit(self, client: str) -> Permit:
        """Admit a generation. Raises ProblemError 429 or 503, both with Retry-After."""
        self._check_client(client)
        if self.num_pending >= self.capacity:
            what = f"all {self.capacity} slots and queue places are taken"
            raise unavailable("queue_full", what, retry_after_s=min(self.projected_wait_s(), self.wait_elsewhere_s()))
        permit = Permit(self, client)
        self.num_pending += 1
        self._clients[client] += 1
        self.permits.add(permit)
        self._empty.clear()
        return permit

    @contextmanager
    def limit_client(self, client: str) -> Iterator[None]:
        """Count work without ticks against the client's limit. Raises ProblemError 429 or 503."""
        self._check_client(client)
        self._clients[client] += 1
        try:
            yield
        finally:
            self._remove_client(client)

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

    def _check_client(self, client: str) -> None:
        if self.is_draining:
            raise draining()
        limit = self.places_per_client
        if limit and self._clients[client] >= limit:
            raise ProblemError(
                429,
                "too_many_requests",
                f"this client has {limit} generations or uploads in flight, the limit per client",
                headers={"Retry-After": retry_after(self.projected_wait_s(client))},
            )

    def _reserve(self, client: str, size_bytes: int) -> None:
        share_bytes = self.memory_bytes if self.client_limit == 0 else self.memory_bytes // 2
        if size_bytes > share_bytes:
            raise ProblemError(
                422,
                "response_too_large",
                f"the response needs {size_bytes / MIB:.0f} MiB of memory, the limit is {share_bytes / MIB:.0f} MiB",
                fix='set "stream": true, ask for fewer seconds, or raise [server] response_budget_bytes',
            )
        of_client = sum(permit.reserved_bytes for permit in self.permits if permit.client == client)
        if of_client + size_bytes > share_bytes or self.reserved_bytes + size_bytes > self.memory_bytes:
            raise unavailable("busy", "responses that are being made or read use up the server's memory for them")
        self.reserved_bytes += size_bytes

    def _remove_client(self, client: str, places: int = 1) -> None:
        self._clients[client] -= places
        if not self._clients[client]:
            del self._clients[client]

    def _remove(self, permit: Permit) -> None:
        self.permits.discard(permit)
        self.reserved_bytes -= permit.reserved_bytes
        self._remove_client(permit.client, 1 + permit._more_places)
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
    abort: asyncio.Event = field(default_factory=asyncio.Event)
    remaining_steps: int = 0
    reserved_bytes: int = 0
    _needs_ticks: bool = True
    _num_requests: int = 0
    _more_places: int = 0
    _is_released: bool = False
    _is_pending: bool = True

    def reserve(self, size_bytes: int) -> None:
        """Reserve memory for the response until `release`. Raises ProblemError 422 or 503."""
        self.admission._reserve(self.client, size_bytes)
        self.reserved_bytes += size_bytes

    def take_places(self, wanted: int) -> int:
        """Take up to so many more places, of those that are free and that its client may have; returns how many.

        It is to have as many more requests in flight. They are given back with the rest.
        """
        admission, limit = self.admission, self.admission.places_per_client
        free = admission.capacity - admission.num_pending
        if limit:
            free = min(free, limit - admission._clients[self.client])
        taken = max(0, min(wanted, free))
        admission.num_pending += taken
        admission._clients[self.client] += taken
        self._more_places += taken
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
        if not self._is_released:
            self._is_released = True
            self.admission._remove(self)

    def _update(self) -> None:
        if self._is_pending and not self._needs_ticks and not self._num_requests:
            self._is_pending = False
            self.admission.num_pending -= 1 + self._more_places
