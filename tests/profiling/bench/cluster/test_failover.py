"""A player in real time, a session that is resumed, replicas that take each other's place."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.cluster import short_folder
from helpers.live_clients import ready, scripted_server, silence

from profiling.bench.cluster import failover as module
from profiling.bench.cluster.failover import CHUNK_S, FailoverClient, Loss, Replicas, loss_figures, resume
from profiling.bench.live.client import live_client
from runtime.sessions.protocol.messages import ClientMessage, Close, Open, ServerMessage
from server.cluster.local_cluster import LocalCluster


class Clock:
    """Time that passes only while something sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_the_gap_is_the_longest_wait_for_a_chunk_that_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    waits_s = [5.0, 0.0, 0.02, 0.3, 0.0, 0.1, 0.0]  # The first is the wait for the session, not a gap.
    player = FailoverClient(clock.sleep(wait_s) for wait_s in waits_s)
    for _ in waits_s:
        player.play_chunk()
    assert player.gap_s == pytest.approx(0.3)
    assert clock.now_s == pytest.approx(105.0 + 6 * CHUNK_S + 0.42), "what comes late is played late"


def test_figures_are_medians_and_largest_of_what_happened() -> None:
    losses = [Loss(5.0, 30.0, 90.0), Loss(80.0, 20.0, 100.0), Loss(6.0)]
    assert loss_figures(losses) == {
        "rounds": 3, "noticed_ms": {"p50": 25.0, "max": 30.0}, "resumed_ms": {"p50": 95.0, "max": 100.0},
        "gap_ms": {"p50": 6.0, "max": 80.0},
    }  # fmt: skip
    assert loss_figures([Loss(1.0)])["noticed_ms"] == {}


def test_a_lost_session_is_resumed_by_its_token_and_ended() -> None:
    received: list[ClientMessage] = []

    def answer(message: ClientMessage) -> list[ServerMessage | bytes]:
        received.append(message)
        return [ready(), silence(0, 1000)] if isinstance(message, Open) else []

    async def lose() -> tuple[float, float]:
        async with scripted_server(answer) as url, live_client(url, Open()) as client:
            waiting = asyncio.create_task(resume(url, client))
            client.disconnect()
            return await waiting

    lost_s, resumed_s = asyncio.run(lose())
    assert lost_s <= resumed_s
    opened = [message.resume for message in received if isinstance(message, Open)]
    assert opened == [None, ready().resume_token]
    assert isinstance(received[-1], Close)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    with short_folder() as folder:
        cluster = LocalCluster(folder)
        for name in ("r1", "r2"):
            cluster.launch(name, sys.executable, "-c", "import time; time.sleep(600)")
        yield Replicas(cluster, tmp_path / "absent.toml", {}, ["r1", "r2"])
        cluster.stop()


def test_another_replica_takes_the_place_of_one_that_was_killed(replicas: Replicas) -> None:
    killed = replicas.cluster.launched["r1"]
    replicas.end("r1", signal.SIGKILL)
    assert killed.wait(10) == -signal.SIGKILL
    replicas.replace("r1", signal.SIGKILL)
    assert replicas.names == ["r3", "r2"]
    assert set(replicas.cluster.launched) == {"r2", "r3"}


def test_one_that_was_frozen_goes_on(replicas: Replicas) -> None:
    frozen = replicas.cluster.launched["r2"]
    replicas.end("r2", signal.SIGSTOP)
    replicas.replace("r2", signal.SIGSTOP)
    assert replicas.cluster.launched["r2"] is frozen
    assert replicas.names == ["r1", "r2"]
