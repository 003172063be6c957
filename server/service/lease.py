"""What a replica says of itself to the others and to the edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A replica that has not renewed its lease for so long is gone; how often it does.
LEASE_S, RENEW_S = 3.0, 1.0

# ready: takes all work. full: its sessions go on, no new ones. draining: hands its sessions over.
ReplicaState = Literal["loading", "ready", "full", "draining"]


@dataclass(frozen=True)
class Lease:
    """What a replica says of itself. address: "HOST:PORT" for the edge; url: for clients, "" where they use an edge.

    sessions of capacity: live sessions that have a client, and the most that it takes; those that are kept make room.
    queue_wait_s: how long the generations that wait will take. session_wait_s: when a place for a session becomes free,
    as far as that is known; 0 where there is one. model, precision: the bundle's name and the precision of its engines,
    "" while it is loading.
    """

    name: str
    address: str
    url: str
    state: ReplicaState
    sessions: int
    capacity: int
    queue_wait_s: float
    session_wait_s: float = 0.0
    model: str = ""
    precision: str = ""

    @property
    def takes_work(self) -> bool:
        """Whether it takes generations, and sessions where it has room."""
        return self.state in ("ready", "full")

    @property
    def has_room(self) -> bool:
        """Whether it takes a session that is opened now."""
        return self.state == "ready" and self.sessions < self.capacity
