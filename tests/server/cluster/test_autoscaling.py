"""How many replicas are wanted, and what is read from Ray Serve's metrics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from server.cluster.autoscaling import Load, latest_loads, policy, wanted_replicas

IDLE = Load(sessions=0, places=10, queue_wait_s=0.0)


@pytest.mark.parametrize(
    ("sessions", "wanted"),
    [([0], 1), ([7], 1), ([8], 2), ([10, 4], 2), ([10, 5], 3), ([0, 0, 0], 1), ([7, 7, 7], 3), ([8, 7, 7], 4)],
)
def test_sessions_have_room_with_some_places_to_spare(sessions: list[int], wanted: int) -> None:
    assert wanted_replicas([Load(number, 10, 0.0) for number in sessions]) == wanted


@pytest.mark.parametrize(
    ("waits_s", "wanted"), [([2.5], 2), ([2.5, 3.0], 3), ([0.1, 9.0], 1), ([0.6, 0.6, 0.6], 3), ([1.9], 1)]
)
def test_a_replica_more_where_every_queue_is_long_and_none_less_until_one_is_short(
    waits_s: list[float], wanted: int
) -> None:
    assert wanted_replicas([Load(0, 10, wait_s) for wait_s in waits_s]) == wanted


def series(**values: float) -> dict[str, list[Any]]:
    """One metric: an old value and the latest one of each replica."""
    return {name: [SimpleNamespace(value=-1.0), SimpleNamespace(value=value)] for name, value in values.items()}


METRICS = {
    "sessions": series(a=8, b=3),
    "places": series(a=10, b=10),
    "queue_wait_s": series(a=0.5, b=0.25) | {"c": []},
    "running": series(a=1),
}


def test_the_latest_values_of_replicas_that_have_reported_all() -> None:
    assert latest_loads(METRICS) == [Load(8, 10, 0.5), Load(3, 10, 0.25)]
    assert latest_loads({**METRICS, "places": series(b=10)}) == [Load(3, 10, 0.25)]
    assert Load(8, 10, 0.5).metrics() == {"sessions": 8, "places": 10, "queue_wait_s": 0.5}


@pytest.mark.parametrize(("metrics", "wanted"), [(METRICS, 2), ({}, 3), (None, 3)])
def test_the_policy_keeps_what_there_is_until_a_replica_has_reported(metrics: Any, wanted: int) -> None:
    assert policy(SimpleNamespace(target_num_replicas=3, raw_metrics=metrics)) == (wanted, {})
