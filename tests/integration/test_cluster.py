"""Two replicas behind the edge, with a Redis: one is killed, frozen or drained while a session plays (make test-scale).

The client plays in real time. What it hears is the uninterrupted session, sample by sample; the largest gap is printed.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import numpy as np
import pytest
from helpers.cluster import needs_programs, short_folder
from helpers.http_harness import eventually

import tickrt
from runtime.config.deployment import Deployment
from server.scale.local_cluster import free_port, plain_cluster

pytestmark = [pytest.mark.slow, needs_programs("haproxy", "redis-server")]
RATE_HZ = 8000
CHUNK = RATE_HZ // 20
BEFORE_S, AFTER_S = 2.0, 6.0


@dataclass
class Replica:
    """A server process, and its own address."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def is_connected(self) -> bool:
        """Whether it has a session with a client."""
        return "tickrt_live_connected" in (text := httpx.get(f"{self.url}/metrics").text) and any(
            line.startswith("tickrt_live_connected{") and line.endswith(" 1.0") for line in text.splitlines()
        )


@dataclass
class Cluster:
    """Replicas, their Redis, and the address of their edge."""

    replicas: list[Replica]
    redis: subprocess.Popen[bytes]
    url: str


@pytest.fixture
def cluster(built: Callable[..., Deployment]) -> Iterator[Cluster]:
    """Two replicas of the tiny model that are ready, behind HAProxy."""
    bind = f"127.0.0.1:{free_port()}"
    config = built(depth=1, max_rows=16).path
    with short_folder() as folder, plain_cluster(config, folder, bind, TICKRT_MAX_REFRESH_S="1e6") as running:
        addresses = {lease.name: f"http://{lease.address}" for lease in running.leases()}
        replicas = [Replica(running.launched[name], url) for name, url in addresses.items()]
        yield Cluster(replicas, running.launched["redis"], f"http://{bind}")


def play(live: tickrt.Live, seconds: float) -> tuple[np.ndarray, float]:
    """What a player in real time reads, and by how much the latest chunk was late."""
    chunks, late_s, due_s = [live.read(CHUNK)], 0.0, time.monotonic()
    for _ in range(round(seconds * RATE_HZ) // CHUNK - 1):
        due_s += CHUNK / RATE_HZ
        time.sleep(max(0.0, due_s - time.monotonic()))
        chunks.append(live.read(CHUNK))
        late_s = max(late_s, time.monotonic() - due_s)
    return np.concatenate(chunks), late_s


def uninterrupted(cluster: Cluster) -> np.ndarray:
    with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
        return live.read(round((BEFORE_S + AFTER_S) * RATE_HZ))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_session_is_heard_as_if_its_replica_had_not_ended(sent: signal.Signals, cluster: Cluster) -> None:
    expected = uninterrupted(cluster)
    with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
        before, _ = play(live, BEFORE_S)
        (ended,) = (replica for replica in cluster.replicas if replica.is_connected)
        (other,) = (replica for replica in cluster.replicas if replica is not ended)
        ended.process.send_signal(sent)
        after, late_s = play(live, AFTER_S)
        print(f"{sent.name}: the largest gap was {late_s:.2f} s")
        assert other.is_connected
        if sent == signal.SIGSTOP:
            # Both think that the session is theirs; the one that was frozen gives way, and what is stored stays.
            ended.process.send_signal(signal.SIGCONT)
            eventually(lambda: not ended.is_connected)
            live.read(RATE_HZ)
            assert live.state is not None
            assert live.state.stored
            assert other.is_connected
    np.testing.assert_allclose(np.concatenate([before, after]), expected, atol=1e-4)


def test_sessions_play_on_without_the_store(cluster: Cluster) -> None:
    expected = uninterrupted(cluster)
    with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
        before, _ = play(live, BEFORE_S)
        cluster.redis.kill()
        after, late_s = play(live, AFTER_S)
        print(f"store away: the largest gap was {late_s:.2f} s")
        assert live.state is not None
        assert not live.state.stored
    np.testing.assert_allclose(np.concatenate([before, after]), expected, atol=1e-4)
