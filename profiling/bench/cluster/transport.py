"""Live sessions of the same script, straight to the replicas and through the edge: latencies, CPU, bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from profiling.bench.live.client import LiveClient
from profiling.bench.live.result import stages_of
from profiling.bench.live.run import server_usage
from profiling.bench.live.script import ClientRun, Script, run_client
from profiling.bench.result import rounded
from profiling.bench.statistics import percentiles
from profiling.server_process import ServerProcess
from runtime.base.errors import TickError
from runtime.live.storage.redis_store import connect, storage_errors
from server.cluster.local_cluster import LocalCluster

NUM_GETS = 200
PING_S = 0.1
GET_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ClusterCounters:
    """Counters of a cluster at one time: metrics of each replica, CPU seconds of HAProxy, bytes that Redis received."""

    replicas: Sequence[Mapping[str, float]]
    edge_cpu_s: float
    store_bytes: int
    at_s: float

    @classmethod
    def of(cls, cluster: LocalCluster, replicas: Mapping[str, str]) -> ClusterCounters:
        """Read them now. replicas: name -> address. Raises StoreError where Redis is away."""
        metrics = [metrics_of(name, url) for name, url in replicas.items()]
        return cls(metrics, cluster.cpu_s("haproxy"), redis_input_bytes(cluster.redis_url), time.monotonic())


def metrics_of(name: str, url: str) -> dict[str, float]:
    """The metrics of a replica, without the label `replica` on those that have no other one."""
    metrics = ServerProcess(url, 0).metrics()
    return {key.removesuffix(f"{{replica={name}}}"): value for key, value in metrics.items()}


def redis_input_bytes(redis_url: str) -> int:
    """What a Redis has received since its start. Raises StoreError."""
    client = connect(redis_url)
    try:
        with storage_errors():
            return int(client.info("stats")["total_net_input_bytes"])
    finally:
        client.close()


def used_between(before: ClusterCounters, after: ClusterCounters, sessions: int) -> dict[str, float]:
    """What the cluster did between two readings: the replicas' mean, HAProxy's CPU in cores, Redis by session."""
    wall_s = after.at_s - before.at_s
    usages = [server_usage(*pair, wall_s) for pair in zip(before.replicas, after.replicas, strict=True)]
    return {
        **{name: sum(usage[name] for usage in usages) / len(usages) for name in usages[0]},
        "edge_cores": (after.edge_cpu_s - before.edge_cpu_s) / wall_s,
        "store_bytes_per_s_per_session": (after.store_bytes - before.store_bytes) / wall_s / sessions,
    }


def time_gets(url: str, path: str = "/health/live", num_gets: int = NUM_GETS) -> list[float]:
    """Milliseconds of GETs in a row on one connection. Raises TickError for another answer than 200."""
    connection, times_ms = HTTPConnection(urlsplit(url).netloc, timeout=GET_TIMEOUT_S), list[float]()
    try:
        for _ in range(num_gets):
            begin_s = time.perf_counter()
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            times_ms.append(1e3 * (time.perf_counter() - begin_s))
            if answer.status != 200:
                raise TickError(f"{url}{path} answers {answer.status}")
    finally:
        connection.close()
    return times_ms


def measure_transport(
    cluster: LocalCluster, replicas: Mapping[str, str], urls: Sequence[str], script: Script, sessions: int
) -> dict[str, Any]:
    """Play `sessions` live sessions in turn at the addresses `urls`. replicas: name -> address of its own."""
    gets_ms = time_gets(urls[0])
    before = ClusterCounters.of(cluster, replicas)
    runs, pings_ms = asyncio.run(play_in_turn(urls, script, sessions))
    return {
        "get_ms": rounded(percentiles(gets_ms)),
        "ping_ms": rounded(percentiles(pings_ms)),
        **client_figures(runs, script.duration_s),
        **rounded(used_between(before, ClusterCounters.of(cluster, replicas), sessions)),
    }


def client_figures(runs: Sequence[ClientRun], duration_s: float) -> dict[str, Any]:
    """What the clients saw. audio_ms: from a control to its audio, less the time in which that was made."""
    stages = [stages_of(run, control, "first") for run in runs for control in run.controls]
    audio_ms = [found["received"] - found["decoded"] for found in stages if found is not None and "decoded" in found]
    received_bytes = sum(run.client.received_bytes for run in runs)
    return {
        "audio_ms": rounded(percentiles(audio_ms)) if audio_ms else {},
        "kbit_per_s_per_session": round(8e-3 * received_bytes / duration_s / len(runs), 1),
        "underruns": sum(run.client.log.underruns for run in runs),
    }


async def play_in_turn(urls: Sequence[str], script: Script, sessions: int) -> tuple[list[ClientRun], list[float]]:
    """All clients at the same time, with a ping every PING_S: milliseconds of all pings."""
    pings_ms: list[float] = []

    async def ping(client: LiveClient) -> None:
        while True:
            pings_ms.append(1e3 * await client.ping())
            await asyncio.sleep(PING_S)

    clients = (run_client(urls[index % len(urls)], script, index, ping) for index in range(sessions))
    return list(await asyncio.gather(*clients)), pings_ms
