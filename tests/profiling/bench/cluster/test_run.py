"""The cluster bench against processes: two replicas of the tiny model behind HAProxy, with a Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Built
from helpers.cluster import needs_programs
from typer.testing import CliRunner

from profiling.bench.cluster import failover
from profiling.bench.cluster import run as module
from profiling.bench.cluster.failover import Replicas
from profiling.bench.cluster.run import DIRECT, EDGE, OPUS, capacity_of, measure_cluster
from profiling.bench.cluster_load import ClusterLoad
from profiling.bench.live.script import Script
from profiling.bench_cli import app
from server.cluster import local_cluster

RUN = {
    "ticks_share": 0.2, "server_cpu": 0.1, "edge_cores": 0.05, "kbit_per_s_per_session": 1600.0,
    "store_bytes_per_s_per_session": 10.0,
}  # fmt: skip


def test_what_a_session_needs_is_measured_through_the_edge_by_format() -> None:
    slower = {**RUN, "server_cpu": 0.4, "kbit_per_s_per_session": 128.0}
    found = capacity_of({DIRECT: {"edge_cores": 0.01}, EDGE: RUN, OPUS: slower}, sessions=4, cores=1.0)
    assert [(name, cost["replica_share"]) for name, cost in found.items()] == [("s16", 0.1), ("opus", 0.2)]
    assert found["s16"]["edge_cores"] == 0.01
    assert found["opus"]["points"][1]["audio_mbit_per_s"] == 128.0


def test_a_missing_program_is_named(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster.shutil, "which", lambda name, path: None)
    done = CliRunner().invoke(app, [str(built().path), "--cluster"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "redis-server is not installed" in done.stderr
    assert "fix: apt-get install redis-server" in done.stderr


def test_a_target_beside_the_deployments_own_is_refused(built: Built) -> None:
    done = CliRunner().invoke(app, [str(built().path), "--cluster", "--target", "cuda"])
    assert done.exit_code == 2
    assert "--cluster serves the deployment's own target" in done.stderr


def test_the_replicas_are_played_themselves_then_through_the_edge_in_two_formats_and_some_end(
    built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = [SimpleNamespace(name=f"r{number}", address=f"127.0.0.1:800{number}") for number in (1, 2)]
    started: list[Any] = []
    played: list[Any] = []

    @contextmanager
    def cluster(config: Path, folder: Path, bind: str, replicas: int, **settings: str) -> Iterator[Any]:
        started.append((config, folder.is_dir(), bind, replicas, settings))
        yield SimpleNamespace(leases=lambda: leases)

    def transport(cluster: Any, replicas: Any, urls: Any, script: Script, sessions: int) -> dict[str, float]:
        played.append((dict(replicas), list(urls), script.format, sessions))
        return {**RUN, "edge_cores": 0.01 if len(played) == 1 else 0.05}

    def ended(replicas: Replicas, url: str, on_share: Callable[[float], None]) -> dict[str, Any]:
        on_share(0.5)
        return {"names": replicas.names, "url": url, "settings": replicas.settings, "config": replicas.config}

    changed = {
        "plain_cluster": cluster, "measure_transport": transport, "measure_failover": ended,
        "free_port": lambda: 4321, "os": SimpleNamespace(cpu_count=lambda: 4),
    }  # fmt: skip
    for name, value in changed.items():
        monkeypatch.setattr(module, name, value)
    deployment = built()
    result = measure_cluster(deployment, ClusterLoad(5, Script("loop", 2.0, 60.0)))
    limits = {"TICKRT_MAX_REFRESH_S": "3600", "TICKRT_MAX_SESSIONS": "28"}
    assert started == [(deployment.path, True, "127.0.0.1:4321", 2, limits)]
    own = {"r1": "http://127.0.0.1:8001", "r2": "http://127.0.0.1:8002"}
    edge = ["http://127.0.0.1:4321"]
    assert played == [(own, [*own.values()], "s16", 5), (own, edge, "s16", 5), (own, edge, "opus", 5)]
    assert result["failover"] == {
        "names": ["r1", "r2"], "url": edge[0], "settings": limits, "config": deployment.path
    }  # fmt: skip
    assert list(result["transport"]) == [DIRECT, EDGE, OPUS]
    assert result["capacity"] == capacity_of(result["transport"], 5, 2.0), "each has half of the machine's cores"
    assert (result["kind"], result["sessions"], result["bundle"]) == ("cluster", 5, "tiny")


@pytest.mark.slow
@needs_programs("haproxy", "redis-server")
def test_a_cluster_is_measured(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "ROUNDS", 1)
    path, file = built(max_rows=16).path, tmp_path / "cluster.json"
    command = [str(path), "--cluster", "--sessions", "2", "--minutes", "0.05", "--interval", "0.5"]
    done = CliRunner().invoke(app, [*command, "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(done.stdout)
    result = json.loads(file.read_text())
    assert (result["kind"], result["replicas"], result["sessions"]) == ("cluster", 2, 2)
    runs = [result["transport"][name] for name in (DIRECT, EDGE, OPUS)]
    for run in runs:
        assert run["get_ms"]["p50"] > 0 < run["ping_ms"]["p50"]
        assert run["server_cpu"] > 0 < run["store_bytes_per_s_per_session"]
        assert run["kbit_per_s_per_session"] > 8
        assert run["edge_cores"] > 0
    lost = {name: result["failover"][name] for name in failover.SIGNALS}
    assert all(loss["noticed_ms"] and loss["resumed_ms"] and loss["gap_ms"] for loss in lost.values())
    assert result["failover"][failover.STORE]["noticed_ms"] == {}
    assert result["capacity"]["s16"]["listeners_per_replica"] >= 1
