"""Places: how much the server does at a time, and which share of it one address gets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from server.asgi.problems import ProblemError, retry_after, unavailable


@dataclass
class Places:
    """How much of something the server does at a time, `limit`, and which share of it one address gets (0: no limit).

    what: it, in messages.
    """

    what: str
    limit: int
    client_share: float
    taken: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def take(self, client: str) -> Iterator[None]:
        """Take one place. Raises ProblemError 429 or 503, both with Retry-After."""
        if self.taken.total() >= self.limit:
            raise unavailable("busy", f"this server {self.what}, {self.limit} at a time")
        client_limit = max(1, int(self.client_share * self.limit))
        if self.client_share and self.taken[client] >= client_limit:
            what = f"this server {self.what}, {client_limit} at a time for one address"
            raise ProblemError(429, "too_many_requests", what, headers={"Retry-After": retry_after(1.0)})
        self.taken[client] += 1
        try:
            yield
        finally:
            self.taken[client] -= 1
            if not self.taken[client]:
                del self.taken[client]
