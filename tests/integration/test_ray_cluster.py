"""tickrt-cluster with Ray (make test-scale): scaled up, a replica killed and replaced, engines reloaded, taken down.

A client plays in real time all the while. What it hears is an uninterrupted session; the largest gaps are printed.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.cluster import COMMAND_TIMEOUT_S, command, needs_programs, needs_ray, process_of, run_command
from helpers.http_harness import eventually
from helpers.paths import ROOT
from helpers.real_time import RATE_HZ, Player

import tickrt
from runtime.config.deployment import Deployment
from server.cluster.local_cluster import free_port
from server.cluster.ray_cluster import RayCluster
from server.service.lease import Lease

pytestmark = [pytest.mark.slow, needs_programs("haproxy", "redis-server"), needs_ray()]
# A session takes half of a replica's places: two of them ask for a second replica. Ray Serve hears of them each second.
SETTINGS = {
    "TICKRT_MAX_SESSIONS": "2",
    "TICKRT_MAX_REFRESH_S": "1e6",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",
}


def ready(cluster: RayCluster) -> list[Lease]:
    return [lease for lease in cluster.leases() if lease.state in ("ready", "full")]


def reloads(cluster: RayCluster) -> int:
    """How often its replicas have replaced their engines, by their logs."""
    logs = cluster.ray_logs.glob("worker-*.err")
    return sum(log.read_text("utf-8").count("engines reloaded") for log in logs)


@contextmanager
def replacing(cluster: RayCluster) -> Iterator[None]:
    """Have Ray Serve replace all replicas, because their arguments change: the same file by another path."""
    applied = cluster.applied
    assert applied is not None
    path = Path(applied.config)
    other = replace(applied, config=f"{path.parent}/../{path.parent.name}/{path.name}")
    thread = threading.Thread(target=cluster.deploy, args=(other,))
    thread.start()
    yield
    thread.join()


def test_a_session_is_heard_through_all_that_happens_to_its_cluster(
    built: Callable[..., Deployment], cluster: RayCluster
) -> None:
    config, port = built(depth=1, max_rows=16).path, free_port()
    started_s = time.monotonic()
    text = run_command(cluster, "up", config, "--replicas", "1..2", "--port", port, **SETTINGS)
    print(f"\nup: {time.monotonic() - started_s:.1f} s")
    client = tickrt.TickRT(url := f"http://127.0.0.1:{port}")
    assert url in text
    assert len(ready(cluster)) == 1
    with client.live("a", mode="extend", seed=3) as live, client.live("b", mode="loop", seed=4) as other:
        player = Player(live)

        def hear_until(what: str, condition: Callable[[], bool]) -> None:
            began_s, late_s = time.monotonic(), []
            while not condition():
                late_s.append(player.play(0.5))
            print(f"{what}: {time.monotonic() - began_s:.1f} s, largest gap {max(late_s, default=0.0):.2f} s")

        hear_until("a second replica for two sessions", lambda: len(ready(cluster)) == 2)
        (owner,) = (lease for lease in ready(cluster) if lease.sessions == 2)
        process_of(cluster, owner).kill()
        hear_until(
            "a new replica after kill -9",
            lambda: len(ready(cluster)) == 2 and owner.name not in {lease.name for lease in ready(cluster)},
        )
        before = reloads(cluster)
        with subprocess.Popen(command(cluster, "reload"), cwd=ROOT, stdout=subprocess.DEVNULL) as reloading:
            hear_until("engines of both reloaded", lambda: reloading.poll() is not None)
        assert reloading.returncode == 0
        assert reloads(cluster) == before + 2
        old = {lease.name for lease in ready(cluster)}
        with replacing(cluster):
            hear_until(
                "both replaced, one after the other",
                lambda: len(ready(cluster)) == 2 and not old & {lease.name for lease in ready(cluster)},
            )
        other.read(RATE_HZ)
    audio = np.concatenate(player.heard)
    with client.live("a", mode="extend", seed=3) as live:
        np.testing.assert_allclose(audio, live.read(len(audio)), atol=1e-4)

    assert f"Ray Serve: {cluster.applied.app} is RUNNING" in run_command(cluster, "status")  # type: ignore[union-attr]
    (redis,) = (process for process in cluster.members() if "redis-server" in process.name())
    redis.kill()
    run_command(cluster, "down")
    assert cluster.members() == []
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_an_interrupted_start_leaves_nothing(built: Callable[..., Deployment], cluster: RayCluster) -> None:
    words = command(cluster, "up", built(depth=1, max_rows=16).path, "--replicas", "1", "--no-edge")
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as starting:
        eventually(lambda: (cluster.folder / "ray").is_dir(), timeout_s=COMMAND_TIMEOUT_S)
        starting.send_signal(signal.SIGINT)
        _, errors = starting.communicate(timeout=COMMAND_TIMEOUT_S)
    assert starting.returncode == 130
    assert "interrupted" in errors
    assert cluster.members() == []
    assert cluster.applied is None
