"""How many replicas so many listeners need, from what one session was measured to take: linear in the sessions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

LISTENERS = (10, 1_000, 10_000)
# How much of a replica, or of an edge's cores, is planned for; the rest is for what comes in bursts.
PLANNED_SHARE = 0.7
# Replicas beside those that are needed, so that the sessions of one that fails have a place.
SPARE_REPLICAS = 1


@dataclass(frozen=True)
class SessionCost:
    """What one live session takes.

    replica_share: of a replica: of its tick loop's time or of its cores, the larger one. edge_cores: CPU of HAProxy, in
    cores, beside what its checks of the replicas take. audio_kbit_per_s: to the client. store_bytes_per_s: what Redis
    receives.
    """

    replica_share: float
    edge_cores: float
    audio_kbit_per_s: float
    store_bytes_per_s: float

    @classmethod
    def of(cls, run: Mapping[str, float], idle_edge_cores: float, sessions: int, replicas: int, cores: float) -> Self:
        """From a run of the cluster bench. cores: those of one replica."""
        busy = max(run["ticks_share"], run["server_cpu"] / cores)
        edge_cores = max(0.0, run["edge_cores"] - idle_edge_cores)
        return cls(
            round(busy * replicas / sessions, 5), round(edge_cores / sessions, 5),
            run["kbit_per_s_per_session"], run["store_bytes_per_s_per_session"],
        )  # fmt: skip

    @property
    def listeners_per_replica(self) -> int:
        """How many sessions a replica is planned for."""
        return max(1, math.floor(round(PLANNED_SHARE / self.replica_share, 6)))

    def needs(self, listeners: int) -> dict[str, Any]:
        """What so many listeners need; replicas with the spare one."""
        return {
            "listeners": listeners,
            "replicas": math.ceil(listeners / self.listeners_per_replica) + SPARE_REPLICAS,
            "edge_cores": round(listeners * self.edge_cores / PLANNED_SHARE, 2),
            "audio_mbit_per_s": round(listeners * self.audio_kbit_per_s / 1e3, 1),
            "store_mb_per_s": round(listeners * self.store_bytes_per_s / 1e6, 2),
        }

    def as_json(self) -> dict[str, Any]:
        """The cost, and what LISTENERS need."""
        points = [self.needs(listeners) for listeners in LISTENERS]
        return {**asdict(self), "listeners_per_replica": self.listeners_per_replica, "points": points}
