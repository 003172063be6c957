"""How often a client may do something, and the error of one that keeps to no protocol."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from runtime.errors import RequestError


class ViolationError(RequestError):
    """The client does not keep to the protocol: its connection ends. `reason`: the reason in `closed`."""

    code = "protocol_violation"

    def __init__(self, what: str, *, reason: str = "violation", fix: str = "") -> None:
        super().__init__(what, fix=fix)
        self.reason = reason


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
