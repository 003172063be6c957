"""Two replicas of a deployment behind HAProxy, with a Redis, on this machine: transport, failover, capacity."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from rich.console import Console

from profiling.bench.cluster.failover import Replicas, measure_failover
from profiling.bench.cluster.transport import measure_transport
from profiling.bench.live.script import Script
from profiling.provenance import provenance, this_commit
from runtime.commands.progress import TaskProgress
from runtime.commands.terminal import print_table
from runtime.config.deployment import Deployment
from runtime.engines.manifest import manifest_path, read_manifest
from server.cluster.local_cluster import LocalCluster, free_port, plain_cluster

REPLICAS = 2
DIRECT, EDGE, OPUS = "direct", "edge", "edge, opus"
FAILOVER_WEIGHT_S = 120.0
LISTENERS = (10, 1_000, 10_000)
# How much of a replica, or of an edge's cores, is planned for; the rest is for what comes in bursts.
PLANNED_SHARE = 0.7
# Replicas beside those that are needed, so that the sessions of one that fails have a place.
SPARE_REPLICAS = 1
LATENCIES = {"get_ms": "GET, ms", "ping_ms": "ping of a session, ms", "audio_ms": "a control and its audio, ms"}
# Figure -> label, factor, digits.
FIGURES = {
    "edge_cores": ("HAProxy, % of a core", 100.0, 1),
    "kbit_per_s_per_session": ("audio, kbit/s by session", 1.0, 0),
    "store_bytes_per_s_per_session": ("to Redis, bytes/s by session", 1.0, 0),
    "server_cpu": ("a replica, cores", 1.0, 2),
    "ticks_share": ("ticks of a replica, % of time", 100.0, 0),
    "underruns": ("underruns", 1.0, 0),
}
LOSSES = {"noticed_ms": "connection lost", "resumed_ms": "resumed", "gap_ms": "silence"}
NEEDS = {
    "listeners": "listeners", "replicas": "replicas", "edge_cores": "HAProxy, cores",
    "audio_mbit_per_s": "audio, Mbit/s", "store_mb_per_s": "to Redis, MB/s",
}  # fmt: skip
BUSY = "Sessions had underruns: the machine was too busy for these figures. Take fewer --sessions, or a quiet machine."


def shape_of_cluster(script: Script, sessions: int) -> dict[str, Any]:
    """The properties of a result that are known before it is measured."""
    return {"kind": "cluster", "replicas": REPLICAS, "sessions": sessions, **script.shape()}


def measure_cluster(deployment: Deployment, script: Script, sessions: int) -> dict[str, Any]:
    """Sessions that play a script behind an edge with REPLICAS replicas of a deployment.

    Raises ConfigError where HAProxy or Redis is not installed, TickError where a replica does not start or answer.
    """
    this_commit()
    bundle, bind = deployment.loaded_bundle, f"127.0.0.1:{free_port()}"
    settings = {"TICKRT_MAX_REFRESH_S": "3600", "TICKRT_MAX_SESSIONS": str(4 * sessions + 8)}
    weights = [*[script.duration_s] * 3, FAILOVER_WEIGHT_S]
    with tempfile.TemporaryDirectory(prefix="tickrt-", ignore_cleanup_errors=True) as folder:
        running = plain_cluster(deployment.path, Path(folder), bind, REPLICAS, **settings)
        with TaskProgress(weights) as progress, running as cluster:
            transport = _measure_transport(cluster, f"http://{bind}", script, sessions, progress)
            replicas = Replicas(cluster, deployment.path, settings, [lease.name for lease in cluster.leases()])
            with progress.task("failover"):
                failover = measure_failover(replicas, f"http://{bind}", progress.update)
    capacity = capacity_of(transport, sessions, (os.cpu_count() or 1) / REPLICAS)
    about = provenance(bundle, deployment, read_manifest(manifest_path(deployment.engine_folder(), "decoder")))
    found = {"transport": transport, "failover": failover, "capacity": capacity}
    return {**shape_of_cluster(script, sessions), **found, **about}


def _measure_transport(
    cluster: LocalCluster, edge: str, script: Script, sessions: int, progress: TaskProgress
) -> dict[str, dict[str, Any]]:
    replicas = {lease.name: f"http://{lease.address}" for lease in cluster.leases()}
    runs: Sequence[tuple[str, Sequence[str], Script]] = (
        (DIRECT, list(replicas.values()), script),
        (EDGE, [edge], script),
        (OPUS, [edge], replace(script, format="opus")),
    )
    found = {}
    for name, urls, played in runs:
        with progress.task(name):
            found[name] = measure_transport(cluster, replicas, urls, played, sessions)
    return found


def capacity_of(transport: Mapping[str, Mapping[str, Any]], sessions: int, cores: float) -> dict[str, Any]:
    """What sessions through the edge need, by the format of their audio. `cores`: those of one replica."""
    runs, idle_edge_cores = {"s16": transport[EDGE], "opus": transport[OPUS]}, transport[DIRECT]["edge_cores"]
    costs = {name: SessionCost.of(run, idle_edge_cores, sessions, REPLICAS, cores) for name, run in runs.items()}
    return {name: cost.as_json() for name, cost in costs.items()}


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


def print_cluster(console: Console, result: Mapping[str, Any]) -> None:
    """Transport, failover, and what listeners need."""
    title = f"{result['bundle']} on {result['target']}: {result['replicas']} replicas"
    sessions = f"{result['sessions']} live sessions, mode {result['mode']}"
    runs, losses = result["transport"], result["failover"]
    print_table(console, f"{title}, {sessions}; p50 / p95", ("", *runs), [*_transport(runs)])
    title = "ms since a replica or the store ended, median / largest"
    print_table(console, title, ("", *LOSSES.values(), "rounds"), [*_failover(losses)])
    for format, capacity in result["capacity"].items():
        title = (
            f"{format}: {capacity['listeners_per_replica']} listeners per replica, each "
            f"{capacity['replica_share']:.1%} of it; one replica is spare"
        )
        rows = [[f"{needs[name]:,}" for name in NEEDS] for needs in capacity["points"]]
        print_table(console, title, tuple(NEEDS.values()), rows, 0)
    if any(run["underruns"] for run in result["transport"].values()):
        console.print(BUSY, style="yellow")


def _transport(runs: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, label in LATENCIES.items():
        yield label, *(_pair(run[name], "p50", "p95", 2) for run in runs.values())
    for name, (label, factor, digits) in FIGURES.items():
        yield label, *(f"{factor * run[name]:.{digits}f}" for run in runs.values())


def _failover(losses: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for name, loss in losses.items():
        yield name, *(_pair(loss[figure], "p50", "max", 0) for figure in LOSSES), str(loss["rounds"])


def _pair(values: Mapping[str, float], first: str, second: str, digits: int) -> str:
    return f"{values[first]:.{digits}f} / {values[second]:.{digits}f}" if values else "-"
