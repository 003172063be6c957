"""How many sessions a host takes, which of them may have a slot of the tick loop next, and how long a refresh takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runtime.base.errors import SessionsFullError

RESERVED_SLOTS = 1  # for generations over HTTP
SMOOTHING = 0.1
# Nothing says when a listener leaves: a client asks again after so long.
RETRY_AFTER_S = 5.0


def live_capacity(depth: int) -> int:
    """Slots that live sessions may hold of a tick loop with `depth` slots."""
    return max(1, depth - RESERVED_SLOTS)


@dataclass(frozen=True, slots=True)
class Demand:
    """A session that holds `held` slots and has wanted one more since `wanted_s` (None: it wants no more).

    is_ending: what it plays ends soon without one.
    """

    session: str
    held: int
    wanted_s: float | None = None
    is_ending: bool = False


def next_session(demands: Iterable[Demand], capacity: int) -> str | None:
    """The session that gets the next free slot: the one that holds fewest, among equals the one that waits longest.

    So every session gets its first slot before any gets a second. But those whose audio ends soon come first: playing
    comes before changing. None where no slot is free or wanted.
    """
    demands = list(demands)
    if sum(demand.held for demand in demands) >= capacity:
        return None
    waiting = [
        (not demand.is_ending, demand.held, demand.wanted_s, demand.session)
        for demand in demands
        if demand.wanted_s is not None
    ]
    return min(waiting)[-1] if waiting else None


@dataclass
class TickTimes:
    """How long a tick takes, by the number of slots in it: running means.

    Noted on the tick thread, read on any.
    """

    _means_ms: dict[int, float] = field(default_factory=dict)

    def note(self, slots: int, tick_ms: float) -> None:
        """Take the time of one tick."""
        mean = self._means_ms.get(slots, tick_ms)
        self._means_ms[slots] = mean + SMOOTHING * (tick_ms - mean)

    def estimate_ms(self, slots: int) -> float:
        """The time of a tick with `slots` slots; 0 before the first tick.

        Where it was not measured: proportional to the nearest number that was, which is an upper bound for more slots.
        """
        means = self._means_ms.copy()
        if not means:
            return 0.0
        nearest = min(means, key=lambda measured: abs(measured - slots))
        return means[nearest] * max(1.0, slots / nearest)


def projected_refresh_s(num_sessions: int, capacity: int, steps: int, times: TickTimes) -> float:
    """How long the last of `num_sessions` waits for a generation of `steps` steps when all want one at once."""
    rounds = -(-num_sessions // capacity)
    return rounds * steps * times.estimate_ms(min(num_sessions, capacity)) / 1e3


@dataclass(frozen=True)
class HostLimits:
    """client_sessions: per client, 0 is no limit. keep_s: how long a session without a connection is kept.

    max_refresh_s: no session is added where all of them, changed at once, would take longer than this.
    message_share: what messages of all sessions may take of the host's thread, as much each; with many sessions more.
    """

    max_sessions: int = 64
    client_sessions: int = 4
    keep_s: float = 60.0
    max_refresh_s: float = 4.0
    message_share: float = 0.5

    def check(self, client: str, clients: Sequence[str], refresh_s: float) -> None:
        """Raise SessionsFullError where one more session of `client` is too many beside those of `clients`.

        refresh_s: how long a change of all would take then. What is kept without a client makes room: makes_room().
        """
        if len(clients) >= self.max_sessions:
            raise _full(f"{len(clients)} sessions are open, the limit")
        if self.client_sessions and clients.count(client) >= self.client_sessions:
            raise _full(
                f"this client has {self.client_sessions} sessions open, the limit per client", is_of_client=True
            )
        if refresh_s > self.max_refresh_s:
            raise _full(
                f"with one more session a change would take {refresh_s:.1f} s, the limit is {self.max_refresh_s:g} s"
            )

    def makes_room(self, client: str, playing: Sequence[str], kept: Sequence[str]) -> int | None:
        """Which of the kept sessions ends for one more session of `client`, by their clients; None: there is room.

        kept: the longest first. It is one of this client where that has its number, else of the client with most.
        """
        num_own = playing.count(client) + kept.count(client)
        if client in kept and self.client_sessions and num_own >= self.client_sessions:
            return kept.index(client)
        if not kept or len(playing) + len(kept) < self.max_sessions:
            return None
        return kept.index(max(kept, key=kept.count))


DEFAULT_LIMITS = HostLimits()


def _full(what: str, *, is_of_client: bool = False) -> SessionsFullError:
    return SessionsFullError(what, retry_after_s=RETRY_AFTER_S, is_of_client=is_of_client)
