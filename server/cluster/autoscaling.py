"""How many replicas a model needs: from its live sessions, and from how long its generations wait."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

# Of a replica's places for sessions: what is free is for those of a replica that ends.
SESSION_SHARE = 0.7
MAX_QUEUE_WAIT_S = 2.0


@dataclass(frozen=True)
class Load:
    """What a replica reports. places: the most live sessions that it takes. queue_wait_s: how long generations wait."""

    sessions: float
    places: float
    queue_wait_s: float

    def metrics(self) -> dict[str, float]:
        """The values by name, as Ray Serve collects them."""
        return asdict(self)


class PolicyContext(Protocol):
    """What Ray Serve tells a policy: the replicas that it wants now, and each metric's values of each replica."""

    target_num_replicas: int

    @property
    def raw_metrics(self) -> Mapping[str, Mapping[Any, Sequence[Any]]] | None:
        """Metric -> replica -> its values over time, the latest last."""


def wanted_replicas(loads: Sequence[Load]) -> int:
    """The replicas that hold all sessions in SESSION_SHARE of their places.

    One more than there are where every queue is longer than MAX_QUEUE_WAIT_S, and as many as there are until a queue is
    shorter than a quarter of that.
    """
    shortest_s = min(load.queue_wait_s for load in loads)
    for_generations = len(loads) + 1 if shortest_s > MAX_QUEUE_WAIT_S else len(loads)
    if shortest_s < MAX_QUEUE_WAIT_S / 4:
        for_generations = 1
    places = sum(load.places for load in loads) / len(loads)
    return max(math.ceil(sum(load.sessions for load in loads) / (SESSION_SHARE * places)), for_generations)


def latest_loads(metrics: Mapping[str, Mapping[Any, Sequence[Any]]]) -> list[Load]:
    """The latest values of the replicas that have reported all of them."""
    names = [field.name for field in fields(Load)]
    reported = [{replica for replica, values in metrics.get(name, {}).items() if values} for name in names]
    return [
        Load(*(metrics[name][replica][-1].value for name in names))
        for replica in sorted(set.intersection(*reported), key=str)
    ]


def policy(context: PolicyContext) -> tuple[int, dict[str, Any]]:
    """Ray Serve's AutoscalingPolicy: the wanted replicas, within the bounds that its configuration sets."""
    loads = latest_loads(context.raw_metrics or {})
    return (wanted_replicas(loads) if loads else context.target_num_replicas), {}
