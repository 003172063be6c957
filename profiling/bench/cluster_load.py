"""What the clients of the cluster bench do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiling.bench.live.script import Script

REPLICAS = 2
SESSIONS = 4


@dataclass(frozen=True)
class ClusterLoad:
    """Live sessions behind an edge with REPLICAS replicas, and what the client of each does."""

    sessions: int
    script: Script
    kind: str = "cluster"

    def shape(self) -> dict[str, Any]:
        """The properties that are known before it is measured."""
        script = self.script
        about = {"mode": script.mode, "interval_s": script.interval_s, "minutes": round(script.change_s / 60.0, 3)}
        return {"replicas": REPLICAS, "sessions": self.sessions, **about}
