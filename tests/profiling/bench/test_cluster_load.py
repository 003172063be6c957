"""What makes two runs of the cluster bench comparable."""

from __future__ import annotations

from profiling.bench.cluster_load import ClusterLoad
from profiling.bench.live.script import Script


def test_the_shape_of_a_run() -> None:
    load = ClusterLoad(4, Script("extend", 2.0, 30.0))
    assert load.kind == "cluster"
    assert load.shape() == {"replicas": 2, "sessions": 4, "mode": "extend", "interval_s": 2.0, "minutes": 0.5}
