"""A player in real time, a session that is resumed, replicas that take each other's place."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.cluster import short_folder
from helpers.live_clients import ready, scripted_server, silence

from profiling.bench.cluster import failover as module
from profiling.bench.cluster.failover import (
    CHUNK_S,
    STORE,
    FailoverClient,
    Loss,
    Replicas,
    loss_figures,
    measure_failover,
    resume,
)
from profiling.bench.live.client import live_client
from runtime.base.errors import TickError
from runtime.live.protocol.messages import ClientMessage, Close, Open
from runtime.live.protocol.server_messages import ServerMessage
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


class Leases:
    """A cluster whose replicas have these sessions, reading by reading; the last ones stay."""

    def __init__(self, *readings: dict[str, int]) -> None:
        self.readings = list(readings)
        self.launched: dict[str, Any] = {}
        self.awaited: list[int] = []

    def leases(self) -> list[Any]:
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return [SimpleNamespace(name=name, sessions=sessions) for name, sessions in reading.items()]

    def wait_until(self, is_met: Callable[[], bool], problem: str) -> None:
        if not any(is_met() for _ in range(10)):
            raise TickError(problem)

    def wait_ready(self, replicas: int) -> None:
        self.awaited.append(replicas)


def replicas_of(cluster: Any, names: list[str]) -> Replicas:
    return Replicas(cast(LocalCluster, cluster), Path("absent.toml"), {}, names)


def test_replicas_are_idle_once_exactly_they_are_there_without_a_session_behind_the_edge() -> None:
    cluster = Leases({"r1": 0}, {"r1": 0, "r2": 1}, {"r1": 0, "r2": 0, "old": 0}, {"r1": 0, "r2": 0})
    replicas_of(cluster, ["r1", "r2"]).wait_idle()
    assert (len(cluster.readings), cluster.awaited) == (1, [2])
    with pytest.raises(TickError, match="not idle"):
        replicas_of(Leases({"r1": 0, "r2": 1}), ["r1", "r2"]).wait_idle()


def test_the_holder_has_the_only_session() -> None:
    assert replicas_of(Leases({"r1": 0, "r2": 0}, {"r1": 0, "r2": 1}), ["r1", "r2"]).holder() == "r2"
    with pytest.raises(TickError, match="no replica has the session"):
        replicas_of(Leases({"r1": 1, "r2": 1}), ["r1", "r2"]).holder()


def test_the_replica_that_has_the_session_ends_in_every_round_and_the_store_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []
    shares: list[float] = []

    async def listen(
        url: str, on_open: Callable[[], None], event: Callable[[], None], *, loses_replica: bool = False
    ) -> Loss:
        on_open()
        event()
        return Loss(float(len(done)), 1.0 if loses_replica else None)

    monkeypatch.setattr(module, "_listen", listen)
    monkeypatch.setattr(Replicas, "wait_idle", lambda replicas: done.append("idle"))
    monkeypatch.setattr(Replicas, "holder", lambda replicas: "r2")
    monkeypatch.setattr(Replicas, "end", lambda replicas, name, sent: done.append((name, sent)))
    monkeypatch.setattr(Replicas, "replace", lambda replicas, name, sent: done.append(("replaced", name, sent)))
    cluster = Leases({})
    cluster.launched["redis"] = SimpleNamespace(kill=lambda: done.append("killed"), wait=lambda: done.append("gone"))
    found = measure_failover(replicas_of(cluster, ["r1", "r2"]), "http://edge", shares.append)
    rounds = [sent for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP) for _ in range(3)]
    assert done == [
        *(step for sent in rounds for step in ("idle", ("r2", sent), ("replaced", "r2", sent))),
        *("idle", "killed", "gone"),
    ]
    assert shares == [index / 10 for index in range(9)]
    assert cluster.launched == {}
    figures = {name: (loss["rounds"], loss["gap_ms"]["p50"], bool(loss["noticed_ms"])) for name, loss in found.items()}
    assert figures == {
        "killed": (3, 5.0, True), "drained": (3, 14.0, True), "frozen": (3, 23.0, True), STORE: (1, 29.0, False)
    }  # fmt: skip


@pytest.mark.parametrize("loses_replica", [True, False])
def test_a_listener_sees_when_a_watched_session_is_lost_and_goes_on(
    loses_replica: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times stand still: what `resume` says is since the event."""
    steps: list[str] = []
    may_resume = asyncio.Event()

    class Watched:
        def __init__(self, number: int) -> None:
            self.number = number

        async def send(self, message: ClientMessage) -> None:
            assert isinstance(message, Close)
            steps.append(f"closed {self.number}")

    @asynccontextmanager
    async def watch(url: str, opening: Open) -> AsyncIterator[Watched]:
        steps.append("watched")
        yield Watched(steps.count("watched"))

    async def resumed(url: str, client: Watched) -> tuple[float, float]:
        await (may_resume.wait() if client.number == 2 else asyncio.Event().wait())
        return 100.25, 101.0

    def event() -> None:
        steps.append("event")
        asyncio.get_running_loop().call_later(0.01, may_resume.set)

    begun = threading.Event()
    clock = SimpleNamespace(monotonic=lambda: 100.0, sleep=lambda seconds: begun.wait(0.001))
    for name, value in {
        "BEFORE_S": 0.0,
        "AFTER_S": 0.0,
        "live_client": watch,
        "resume": resumed,
        "time": clock,
    }.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "_open", lambda url: nullcontext(iter(int, 1)))
    loss = asyncio.run(
        module._listen("http://edge", lambda: steps.append("opened"), event, loses_replica=loses_replica)
    )
    lost, closed = (Loss(0.0, 250.0, 1000.0), (1, 3)) if loses_replica else (Loss(0.0), (1, 2, 3))
    assert loss == lost
    assert steps == ["opened", *["watched"] * 3, "event", *(f"closed {number}" for number in closed)]
