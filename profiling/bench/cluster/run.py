"""Two replicas of a deployment behind HAProxy, with a Redis, on this machine: transport, failover, capacity."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from profiling.bench.cluster.capacity import SessionCost
from profiling.bench.cluster.failover import Replicas, measure_failover
from profiling.bench.cluster.transport import measure_transport
from profiling.bench.cluster_load import REPLICAS, ClusterLoad
from profiling.bench.live.script import Script
from profiling.provenance import provenance, this_commit
from runtime.base.errors import ConfigError
from runtime.commands.task_progress import TaskProgress
from runtime.config.deployment import Deployment, load_deployment
from runtime.engines.manifest import manifest_path, read_manifest
from server.cluster.local_cluster import LocalCluster, free_port, plain_cluster

DIRECT, EDGE, OPUS = "direct", "edge", "edge, opus"
FAILOVER_WEIGHT_S = 120.0


def measure_cluster(deployment: Deployment, load: ClusterLoad) -> dict[str, Any]:
    """Measure a deployment on its own target.

    Raises ConfigError where HAProxy or Redis is not installed, TickError where a replica does not start or answer.
    """
    this_commit()
    if deployment.target != load_deployment(deployment.path).target:
        raise ConfigError("--cluster serves the deployment's own target", fix="leave out --target")
    bundle, bind = deployment.loaded_bundle, f"127.0.0.1:{free_port()}"
    settings = {"TICKRT_MAX_REFRESH_S": "3600", "TICKRT_MAX_SESSIONS": str(4 * load.sessions + 8)}
    weights = [*[load.script.duration_s] * 3, FAILOVER_WEIGHT_S]
    with tempfile.TemporaryDirectory(prefix="tickrt-", ignore_cleanup_errors=True) as folder:
        running = plain_cluster(deployment.path, Path(folder), bind, REPLICAS, **settings)
        with TaskProgress(weights) as progress, running as cluster:
            transport = _measure_transport(cluster, f"http://{bind}", load, progress)
            replicas = Replicas(cluster, deployment.path, settings, [lease.name for lease in cluster.leases()])
            with progress.task("failover"):
                failover = measure_failover(replicas, f"http://{bind}", progress.update)
    capacity = capacity_of(transport, load.sessions, (os.cpu_count() or 1) / REPLICAS)
    about = provenance(bundle, deployment, read_manifest(manifest_path(deployment.engine_folder(), "decoder")))
    found = {"transport": transport, "failover": failover, "capacity": capacity}
    return {"kind": load.kind, **load.shape(), **found, **about}


def _measure_transport(
    cluster: LocalCluster, edge: str, load: ClusterLoad, progress: TaskProgress
) -> dict[str, dict[str, Any]]:
    replicas = {lease.name: f"http://{lease.address}" for lease in cluster.leases()}
    runs: Sequence[tuple[str, Sequence[str], Script]] = (
        (DIRECT, list(replicas.values()), load.script),
        (EDGE, [edge], load.script),
        (OPUS, [edge], replace(load.script, format="opus")),
    )
    found = {}
    for name, urls, script in runs:
        with progress.task(name):
            found[name] = measure_transport(cluster, replicas, urls, script, load.sessions)
    return found


def capacity_of(transport: Mapping[str, Mapping[str, Any]], sessions: int, cores: float) -> dict[str, Any]:
    """What sessions through the edge need, by the format of their audio. `cores`: those of one replica."""
    runs, idle_edge_cores = {"s16": transport[EDGE], "opus": transport[OPUS]}, transport[DIRECT]["edge_cores"]
    costs = {name: SessionCost.of(run, idle_edge_cores, sessions, REPLICAS, cores) for name, run in runs.items()}
    return {name: cost.as_json() for name, cost in costs.items()}
