"""Who may come in: places for generations, a share per client, and whether the house is closing.

Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from server.asgi.problems import ProblemError, retry_after, unavailable


@dataclass
class Gate:
    """`capacity` generations may need the tick loop at a time; `client_limit` of one client's (0: all of them).

    A generation holds its place from admission until it needs no more ticks, also between its segments, so that a
    segment that goes on is never refused for want of a place.
    """

    capacity: int
    client_limit: int = 0
    is_draining: bool = False
    tickets: set[Ticket] = field(default_factory=set)
    _places: int = 0
    _clients: Counter[str] = field(default_factory=Counter)
    _mean_s: float = 1.0
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    def enter(self, client: str) -> Ticket:
        """Take a place. Raises ProblemError 429 or 503, both with Retry-After."""
        if self.is_draining:
            raise unavailable("draining", "the server is shutting down and takes no new work", retry_after_s=10)
        if self.client_limit and self._clients[client] >= self.client_limit:
            raise ProblemError(
                429,
                "too_many_requests",
                f"this client has {self.client_limit} generations in flight, as many as it may",
                headers={"Retry-After": retry_after(self._mean_s)},
            )
        if self._places >= self.capacity:
            raise unavailable("queue_full", f"all {self.capacity} places are taken", retry_after_s=self._mean_s)
        ticket = Ticket(self, client)
        self._places += 1
        self._clients[client] += 1
        self.tickets.add(ticket)
        self._empty.clear()
        return ticket

    @property
    def places_taken(self) -> int:
        """Generations that need the tick loop now or later."""
        return self._places

    def note_duration(self, seconds: float) -> None:
        """Remember how long a generation took, for Retry-After."""
        self._mean_s += 0.2 * (min(seconds, 60.0) - self._mean_s)

    def drain(self) -> None:
        """Take nobody else."""
        self.is_draining = True

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until everybody has left; False when the time ran out first."""
        if not self.tickets:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _free_place(self) -> None:
        self._places -= 1

    def _forget(self, ticket: Ticket) -> None:
        self.tickets.discard(ticket)
        self._clients[ticket.client] -= 1
        if not self._clients[ticket.client]:
            del self._clients[ticket.client]
        if not self.tickets:
            self._empty.set()


@dataclass(eq=False)
class Ticket:
    """One generation's permission; `cut` is set when the server wants it gone.

    Its place is free again once it `needs_no_more_ticks` and the tick loop has told the end of everything that
    `entered_loop`: a cancelled generation holds its place until the loop has let go of it.
    """

    gate: Gate
    client: str
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    _needs_ticks: bool = True
    _in_loop: int = 0
    _is_inside: bool = True
    _has_place: bool = True

    def entered_loop(self) -> None:
        """The tick loop took one of its requests."""
        self._in_loop += 1

    def left_loop(self) -> None:
        """The tick loop told the end of one of its requests."""
        self._in_loop -= 1
        self._settle()

    def needs_no_more_ticks(self) -> None:
        """Its last request has been submitted; may be repeated."""
        self._needs_ticks = False
        self._settle()

    def leave(self) -> None:
        """The generation is over; may be repeated."""
        self.needs_no_more_ticks()
        if self._is_inside:
            self._is_inside = False
            self.gate._forget(self)

    def _settle(self) -> None:
        if self._has_place and not self._needs_ticks and not self._in_loop:
            self._has_place = False
            self.gate._free_place()
