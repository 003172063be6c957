"""Admission control: capacity, per-client limit, draining. Event loop's thread only."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.asgi.problems import ProblemError, draining, retry_after, unavailable


@dataclass
class Admission:
    """Admits up to `capacity` generations that need the tick loop, `client_limit` per client (0: no limit).

    A generation counts from admission until it needs no more ticks, also between its segments, so that a later segment
    is never refused for lack of capacity. ticks_s: the projected time in which all slots together do that many steps.
    """

    capacity: int
    client_limit: int = 0
    is_draining: bool = False
    permits: set[Permit] = field(default_factory=set)
    num_pending: int = 0
    _clients: Counter[str] = field(default_factory=Counter)
    ticks_s: Callable[[int], float] = lambda num_ticks: 0.0
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def admit(self, client: str) -> Permit:
        """Admit a generation. Raises ProblemError 429 or 503, both with Retry-After."""
        self._check_client(client)
        if self.num_pending >= self.capacity:
            what = f"all {self.capacity} slots and queue places are taken"
            raise unavailable("queue_full", what, retry_after_s=self.projected_wait_s())
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
        if self.client_limit and self._clients[client] >= self.client_limit:
            raise ProblemError(
                429,
                "too_many_requests",
                f"this client has {self.client_limit} generations or uploads in flight, the limit per client",
                headers={"Retry-After": retry_after(self.projected_wait_s(client))},
            )

    def _remove_client(self, client: str) -> None:
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    def _remove(self, permit: Permit) -> None:
        self.permits.discard(permit)
        self._remove_client(permit.client)
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
    _needs_ticks: bool = True
    _num_requests: int = 0
    _is_released: bool = False
    _is_pending: bool = True

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
            self.admission.num_pending -= 1
