"""A client's share of what the server has: what it holds and costs, and what happens at the limit.

At a limit, what has not been used for the longest time makes room: of the client's own where that is more than few,
else of the client that has most. What is in use does not go: the client is told when to come back, 429 where it has its
share, 503 where others have the rest. What takes long waits for its turn (server/asgi/turns.py). All of it is used on
the event loop's thread only.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from starlette.types import Scope

from server.asgi.problems import ProblemError, retry_after, unavailable

# Up to this part of all is few.
FEW = 1 / 16
# How much of a mean its newest value is.
SMOOTHING = 0.1
Clock = Callable[[], float]


def client_of(scope: Scope) -> str:
    """The client's address, as limits go by it."""
    return network_of(scope["client"][0]) if scope.get("client") else ""


def network_of(host: str) -> str:
    """What limits for an address go by: an IPv6 address by its /64, of which a client has all."""
    if ":" not in host:
        return host
    try:
        address = IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, 64), strict=False))


@dataclass(eq=False)
class Holding:
    """What a client holds: `size` units. evict: ends it, to make room; None while it is in use, and stays."""

    shares: Shares
    client: str
    size: int
    evict: Callable[[], None] | None
    since_s: float

    def touch(self) -> None:
        """It is used now."""
        self.shares._touch(self)

    def grow(self, size: int) -> None:
        """Hold so many units more, where it is not over; it is used now. Raises ProblemError 429 or 503."""
        self.shares._grow(self, size)

    def release(self) -> None:
        """Hold nothing any more; again does nothing."""
        self.shares._release(self)


class Shares:
    """`limit` units of something, of which one client has at most the part `client_share` in use (0: no limit), or one
    holding that is larger.

    what: it, in messages: "this server {what}". wait_s: when the client may come back, or any client for None; else
    that follows from how long things were held.
    """

    def __init__(
        self,
        what: str,
        limit: float,
        client_share: float = 0.5,
        *,
        wait_s: Callable[[str | None], float] | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.what, self.limit = what, limit
        self.client_limit = max(1.0, client_share * limit // 1) if client_share else math.inf
        self.used = 0
        self._wait_s, self._clock = wait_s or self._usual_wait_s, clock
        self._held: dict[Holding, None] = {}  # what was used last at the end, as in the others
        self._by_client: dict[str, dict[Holding, None]] = {}
        self._used: dict[str, int] = {}
        self._many: set[str] = set()  # the clients that have more than few
        self._mean_s = 0.0

    def used_by(self, client: str) -> int:
        """The units that a client holds."""
        return self._used.get(client, 0)

    def take(self, client: str, size: int = 1, evict: Callable[[], None] | None = None) -> Holding:
        """Hold units from now on. Raises ProblemError 429 or 503, both with Retry-After; nothing has gone then."""
        self._make_room(client, size)
        holding = Holding(self, client, 0, evict, self._clock())
        self._held[holding] = self._by_client.setdefault(client, {})[holding] = None
        self._count(holding, size)
        return holding

    @contextmanager
    def hold(self, client: str, size: int = 1) -> Iterator[Holding]:
        """Hold units inside of the block. Raises ProblemError 429 or 503."""
        holding = self.take(client, size)
        try:
            yield holding
        finally:
            holding.release()

    def _touch(self, holding: Holding) -> None:
        of_client = self._by_client.get(holding.client, {})
        if holding in of_client:
            for held in (self._held, of_client):
                held[holding] = held.pop(holding)

    def _grow(self, holding: Holding, size: int) -> None:
        if holding in self._held:
            self._touch(holding)
            self._make_room(holding.client, size, holding)
            self._count(holding, size)

    def _release(self, holding: Holding) -> None:
        if holding not in self._held:
            return
        self._count(holding, -holding.size)
        of_client = self._by_client[holding.client]
        del self._held[holding], of_client[holding]
        if not of_client:
            del self._by_client[holding.client], self._used[holding.client]
        held_s = self._clock() - holding.since_s
        self._mean_s += (SMOOTHING if self._mean_s else 1.0) * (held_s - self._mean_s)

    def evict(self, client: str | None = None, staying: Holding | None = None) -> bool:
        """End what makes room next, for `client` where one is given, but not `staying`; whether there was something."""
        many = client if client in self._many else max(self._many, key=self._used.__getitem__, default="")
        return _evict_first(self._by_client.get(many, ()), staying) or _evict_first(self._held, staying)

    def _count(self, holding: Holding, size: int) -> None:
        holding.size += size
        self.used += size
        used = self._used[holding.client] = self._used.get(holding.client, 0) + size
        (self._many.add if used > max(1, FEW * self.limit) else self._many.discard)(holding.client)

    def _make_room(self, client: str, size: int, staying: Holding | None = None) -> None:
        """Evict until there is room for `size` more. Raises ProblemError, before anything goes, where there is none."""
        own_size = 0 if staying is None else staying.size
        in_use = _in_use(self._by_client.get(client, ()), staying)
        if in_use > 0 and in_use + own_size + size > self.client_limit:
            what = f"this server {self.what}, {self.client_limit:.0f} at a time for one client"
            headers = {"Retry-After": retry_after(self._wait_s(client))}
            raise ProblemError(429, "too_many_requests", what, headers=headers)
        if self.used + size > self.limit and _in_use(self._held, staying) + own_size + size > self.limit:
            what = f"this server {self.what}, {self.limit:.0f} at a time"
            raise unavailable("busy", what, retry_after_s=self._wait_s(None))
        while self.used + size > self.limit and self.evict(client, staying):
            pass

    def _usual_wait_s(self, client: str | None) -> float:
        """Each of what is held ends after the mean time: of several, one sooner."""
        return self._mean_s / max(1, len(self._held if client is None else self._by_client.get(client, {})))


def _in_use(held: Iterable[Holding], staying: Holding | None) -> int:
    return sum(holding.size for holding in held if holding.evict is None and holding is not staying)


def _evict_first(held: Iterable[Holding], staying: Holding | None) -> bool:
    for holding in held:
        if holding.evict is not None and holding is not staying:
            holding.release()
            holding.evict()
            return True
    return False


class RateLimit:
    """At most `count` events in any `period_s`."""

    def __init__(self, count: int, period_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._period_s = period_s
        self._clock = clock
        self._times: deque[float] = deque(maxlen=count)

    def take(self, num_events: int = 1) -> bool:
        """Count events, unless they would have to wait; whether they were counted."""
        now_s, count = self._clock(), self._times.maxlen or 0
        while self._times and self._times[0] + self._period_s <= now_s:
            self._times.popleft()
        if len(self._times) + num_events > count:
            return False
        self._times.extend([now_s] * num_events)
        return True

    def wait_s(self, num_events: int = 1) -> float:
        """Count events; how long the last one has to wait to keep to the limit."""
        now_s, wait_s = self._clock(), 0.0
        for _ in range(num_events):
            is_full = len(self._times) == self._times.maxlen
            wait_s = max(0.0, self._times[0] + self._period_s - now_s) if is_full else 0.0
            self._times.append(now_s + wait_s)
        return wait_s


class Budget:
    """What may be used: `rate` a second; after a quiet time `burst` at once. A debt is paid by a pause.

    max_debt: keeps the pause short. clock: seconds.
    """

    def __init__(self, rate: float, burst: float, max_debt: float = math.inf, clock: Clock = time.monotonic) -> None:
        self._rate, self._burst, self._max_debt, self._clock = rate, burst, max_debt, clock
        self._left, self._at_s = burst, 0.0

    def charge(self, used: float) -> None:
        """Count what is used."""
        self._left = max(-self._max_debt, self._left - used)

    def pause_s(self) -> float:
        """How long it takes until something may be used again."""
        now_s = self._clock()
        self._left = min(self._burst, self._left + self._rate * (now_s - self._at_s))
        self._at_s = now_s
        return max(0.0, -self._left / self._rate)
