"""Which session may have a slot of the tick loop next, and how long a refresh takes when all of them want one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

RESERVED_SLOTS = 1  # for generations over HTTP
SMOOTHING = 0.1


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
