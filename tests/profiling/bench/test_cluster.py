"""The cluster bench: what is read of a cluster and of its clients, what happens to its replicas, and the whole of it
against processes: two replicas of the tiny model behind HAProxy, with a Redis."""

from __future__ import annotations

import asyncio
import doctest
import json
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import Built
from helpers.cluster import needs_programs, short_folder
from helpers.http_harness import Served
from helpers.live_clients import RATE, ready, scripted_server, silence
from helpers.paths import ROOT
from helpers.redis_server import redis_server
from rich.console import Console
from typer.testing import CliRunner

from profiling.bench.cluster import failover
from profiling.bench.cluster.failover import (
    CHUNK_S,
    STORE,
    FailoverClient,
    Loss,
    Replicas,
    listen,
    loss_figures,
    measure_failover,
    resume_elsewhere,
)
from profiling.bench.cluster.run import DIRECT, EDGE, OPUS, SessionCost, capacity_of, print_cluster, shape_of_cluster
from profiling.bench.cluster.transport import (
    ClusterCounters,
    client_figures,
    metrics_of,
    play_in_turn,
    redis_input_bytes,
    time_gets,
    used_between,
)
from profiling.bench.live.client import AudioRange, LiveClient, live_client
from profiling.bench.live.script import ClientRun, Control, Script
from profiling.bench_cli import app
from runtime.base.errors import TickError
from runtime.live.protocol.messages import ClientMessage, Close, Open
from runtime.live.protocol.server_messages import Applied, ServerMessage, Stages
from server.cluster.local_cluster import LocalCluster


def test_gets_are_timed_one_by_one_and_must_succeed(served: Served) -> None:
    times_ms = time_gets(served.url, num_gets=3)
    assert len(times_ms) == 3
    assert min(times_ms) > 0
    with pytest.raises(TickError, match="/nowhere answers 404"):
        time_gets(served.url, "/nowhere", num_gets=1)
    assert metrics_of("r1", served.url)["tickrt_live_refreshes_total"] == 0.0


def test_redis_says_what_it_has_received(tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis:
        first = redis_input_bytes(redis.url)
        assert redis_input_bytes(redis.url) > first > 0


def metrics(cpu_s: float, ticks_s: float) -> dict[str, float]:
    return {
        "tickrt_tick_duration_seconds_count": 10.0 * ticks_s, "tickrt_tick_duration_seconds_sum": ticks_s,
        "tickrt_live_refreshes_total": 0.0, "process_cpu_seconds_total": cpu_s,
    }  # fmt: skip


def test_replicas_are_averaged_and_the_edge_and_the_store_are_by_session() -> None:
    before = ClusterCounters([metrics(1.0, 1.0), metrics(0.0, 0.0)], 1.0, 1_000, 100.0)
    after = ClusterCounters([metrics(5.0, 3.0), metrics(2.0, 1.0)], 1.2, 41_000, 110.0)
    used = used_between(before, after, sessions=4)
    assert used["server_cpu"] == pytest.approx(0.3)
    assert used["ticks_share"] == pytest.approx(0.15)
    assert used["edge_cores"] == pytest.approx(0.02)
    assert used["store_bytes_per_s_per_session"] == pytest.approx(1_000.0)


def test_audio_is_timed_without_what_making_it_takes() -> None:
    client = LiveClient(cast(Any, None), ready())
    client.log.write(AudioRange(0, 20 * RATE, 0, 0, 0.0), 0.0)
    client.log.start(0.0)
    client.log.write(AudioRange(3 * RATE, 20 * RATE, 1, 1, 2.15), 2.15)
    client.log.advance(10.0)
    stages = Stages(submitted=1.0, finished=100.0, decoded=140.0)
    client.applied[1] = [Applied(seq=1, tick=1, first_sample=3 * RATE, full_sample=3 * RATE, stages_ms=stages)]
    client.received_bytes = 50_000
    # Of the third control it is not known when its audio was made, the second one was not heard.
    client.applied[3] = [Applied(seq=3, tick=1, first_sample=3 * RATE, full_sample=3 * RATE)]
    client.log.write(AudioRange(4 * RATE, 20 * RATE, 3, 3, 3.5), 3.5)
    controls = [Control("step_parameter", seq, sent_s) for seq, sent_s in ((1, 2.0), (2, 9.0), (3, 3.4))]
    run = ClientRun(controls, client)
    figures = client_figures([run], duration_s=10.0)
    assert figures["audio_ms"]["p50"] == pytest.approx(10.0)
    assert (figures["kbit_per_s_per_session"], figures["underruns"]) == (40.0, 0)
    assert client_figures([ClientRun([], client)], duration_s=10.0)["audio_ms"] == {}


def test_clients_take_the_addresses_in_turn_and_are_pinged_while_they_play() -> None:
    opened = Counter[int]()

    def answer(server: int, message: ClientMessage) -> list[ServerMessage | bytes]:
        opened[server] += isinstance(message, Open)
        return [ready(), silence(0, 10_000)] if isinstance(message, Open) else []

    async def play() -> tuple[list[ClientRun], list[float]]:
        async with scripted_server(partial(answer, 0)) as first, scripted_server(partial(answer, 1)) as second:
            return await play_in_turn([first, second], Script("loop", 2.0, 0.1, warm_up_s=0.05, settle_s=0.05), 3)

    runs, pings_ms = asyncio.run(play())
    assert (len(runs), opened) == (3, {0: 2, 1: 1})
    assert len(pings_ms) >= 3
    assert 0 < min(pings_ms) < 1000


def test_the_gap_is_the_longest_wait_for_a_chunk_that_was_due() -> None:
    """Of a clock that moves only while something sleeps."""
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    waits_s = [5.0, 0.0, 0.02, 0.3, 0.0, 0.1, 0.0]  # The first is the wait for the session, not a gap.
    player = FailoverClient(map(sleep, waits_s), lambda: now_s[0], sleep)
    for _ in waits_s:
        player.play_chunk()
    assert player.gap_s == pytest.approx(0.3)
    assert now_s[0] == pytest.approx(105.0 + 6 * CHUNK_S + 0.42), "what comes late is played late"


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
            waiting = asyncio.create_task(resume_elsewhere(url, client))
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


def test_another_replica_takes_the_place_of_one_that_was_killed_and_one_that_was_frozen_goes_on(
    replicas: Replicas,
) -> None:
    frozen, killed = replicas.cluster.launched["r2"], replicas.cluster.launched["r1"]
    replicas.end("r2", signal.SIGSTOP)
    replicas.replace("r2", signal.SIGSTOP)
    replicas.end("r1", signal.SIGKILL)
    assert killed.wait(10) == -signal.SIGKILL
    replicas.replace("r1", signal.SIGKILL)
    assert replicas.names == ["r3", "r2"]
    assert set(replicas.cluster.launched) == {"r2", "r3"}
    assert replicas.cluster.launched["r2"] is frozen


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


def test_replicas_are_idle_once_they_are_there_without_a_session_and_the_holder_has_the_only_one() -> None:
    cluster = Leases({"r1": 0}, {"r1": 0, "r2": 1}, {"r1": 0, "r2": 0, "old": 0}, {"r1": 0, "r2": 0})
    replicas_of(cluster, ["r1", "r2"]).wait_idle()
    assert (len(cluster.readings), cluster.awaited) == (1, [2])
    assert replicas_of(Leases({"r1": 0, "r2": 0}, {"r1": 0, "r2": 1}), ["r1", "r2"]).holder() == "r2"
    with pytest.raises(TickError, match="not idle"):
        replicas_of(Leases({"r1": 0, "r2": 1}), ["r1", "r2"]).wait_idle()
    with pytest.raises(TickError, match="no replica has the session"):
        replicas_of(Leases({"r1": 1, "r2": 1}), ["r1", "r2"]).holder()


def test_the_replica_that_has_the_session_ends_in_every_round_and_the_store_last() -> None:
    done: list[Any] = []
    shares: list[float] = []

    async def listened(
        url: str, on_open: Callable[[], None], event: Callable[[], None], *, loses_replica: bool = False
    ) -> Loss:
        on_open()
        event()
        return Loss(float(len(done)), 1.0 if loses_replica else None)

    redis = SimpleNamespace(kill=lambda: done.append("killed"), wait=lambda: done.append("gone"))
    replicas: Any = SimpleNamespace(
        wait_idle=lambda: done.append("idle"),
        holder=lambda: "r2",
        end=lambda name, sent: done.append((name, sent)),
        replace=lambda name, sent: done.append(("replaced", name, sent)),
        cluster=SimpleNamespace(launched={"redis": redis}),
    )
    found = measure_failover(replicas, "http://edge", shares.append, listened)
    rounds = [sent for sent in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP) for _ in range(3)]
    assert done == [
        *(step for sent in rounds for step in ("idle", ("r2", sent), ("replaced", "r2", sent))),
        *("idle", "killed", "gone"),
    ]
    assert shares == [index / 10 for index in range(9)]
    assert replicas.cluster.launched == {}
    figures = {name: (loss["rounds"], loss["gap_ms"]["p50"], bool(loss["noticed_ms"])) for name, loss in found.items()}
    assert figures == {
        "killed": (3, 5.0, True), "drained": (3, 14.0, True), "frozen": (3, 23.0, True), STORE: (1, 29.0, False)
    }  # fmt: skip


def test_a_listener_hears_a_session_that_nothing_happens_to(served: Served) -> None:
    steps: list[str] = []
    opened, event = lambda: steps.append("opened"), lambda: steps.append("event")
    loss = asyncio.run(listen(served.url, opened, event, after_s=0.2))
    assert steps == ["opened", "event"]
    assert (loss.noticed_ms, loss.resumed_ms) == (None, None)
    assert 0 <= loss.gap_ms < 1000


RUN = {
    "ticks_share": 0.2, "server_cpu": 0.3, "edge_cores": 0.038, "kbit_per_s_per_session": 1600.0,
    "store_bytes_per_s_per_session": 20_000.0,
}  # fmt: skip


def test_what_a_session_takes_is_measured_through_the_edge_by_format() -> None:
    """Of the tick loop or of the cores, whichever is more."""
    slower = {**RUN, "server_cpu": 0.8, "kbit_per_s_per_session": 128.0}
    found = capacity_of({DIRECT: {"edge_cores": 0.018}, EDGE: RUN, OPUS: slower}, sessions=8, cores=4.0)
    assert [(name, cost["replica_share"]) for name, cost in found.items()] == [("s16", 0.05), ("opus", 0.05)]
    assert SessionCost.of(RUN, 0.0, sessions=8, replicas=2, cores=1.0).replica_share == 0.075
    assert found["s16"]["edge_cores"] == 0.0025
    assert found["opus"]["points"][1]["audio_mbit_per_s"] == 128.0


def test_listeners_need_replicas_with_a_spare_one_and_the_rest_by_session() -> None:
    cost = SessionCost.of(RUN, 0.01, sessions=4, replicas=1, cores=4.0)
    assert cost.listeners_per_replica == 14
    assert [cost.needs(listeners)["replicas"] for listeners in (14, 15)] == [2, 3]
    assert cost.needs(1_000) == {
        "listeners": 1_000, "replicas": 73, "edge_cores": 10.0, "audio_mbit_per_s": 1600.0, "store_mb_per_s": 20.0
    }  # fmt: skip
    assert SessionCost(0.8, 0.0, 0.0, 0.0).needs(10)["replicas"] == 11, "one that takes most of a replica has its own"
    result = SessionCost(0.0699, 0.01, 1600.0, 10.0).as_json()
    assert [point["listeners"] for point in result["points"]] == [10, 1_000, 10_000]
    assert (result["replica_share"], result["listeners_per_replica"]) == (0.0699, 10)
    failed, tried = doctest.testfile(str(ROOT / "server" / "cluster" / "README.md"), module_relative=False)
    assert (failed, tried > 2) == (0, True), "as its page says"


def text_of(underruns: int) -> str:
    """The tables of a run."""
    run = {
        **{name: {"p50": 0.25, "p95": 1.5} for name in ("get_ms", "ping_ms", "audio_ms")},
        "edge_cores": 0.034, "kbit_per_s_per_session": 1620.0, "store_bytes_per_s_per_session": 5500.0,
        "server_cpu": 0.52, "ticks_share": 0.25, "underruns": underruns,
    }  # fmt: skip
    result: dict[str, Any] = {
        "bundle": "demo", "target": "cpu", **shape_of_cluster(Script("loop", 2.0, 60.0), 4),
        "transport": {"direct": run, "edge": {**run, "audio_ms": {}}},
        "failover": {"killed": loss_figures([Loss(12.0, 30.0, 90.0)]), "store away": loss_figures([Loss(3.0)])},
        "capacity": {"s16": SessionCost(0.0699, 0.0034, 1620.0, 5500.0).as_json()},
    }  # fmt: skip
    console = Console(record=True, width=120)
    print_cluster(console, result)
    return console.export_text()


def test_every_run_has_a_column_every_event_and_number_of_listeners_a_line() -> None:
    lines = [" ".join(line.split()) for line in text_of(1).splitlines()]
    for line in (
        "demo on cpu: 2 replicas, 4 live sessions, mode loop; p50 / p95",
        "GET, ms 0.25 / 1.50 0.25 / 1.50",
        "a control and its audio, ms 0.25 / 1.50 -",
        "HAProxy, % of a core 3.4 3.4",
        "killed 30 / 30 90 / 90 12 / 12 1",
        "store away - - 3 / 3 1",
        "s16: 10 listeners per replica, each 7.0% of it; one replica is spare",
        "1,000 101 4.86 1,620.0 5.5",
    ):
        assert line in lines
    assert "too busy for these figures" in text_of(1)
    assert "too busy" not in text_of(0)


def test_a_missing_program_is_named(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = CliRunner().invoke(app, ["cluster", str(built().path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "redis-server is not installed" in done.stderr
    assert "fix: apt-get install redis-server" in done.stderr


@pytest.mark.slow
@needs_programs("haproxy", "redis-server")
def test_a_cluster_is_measured(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover, "ROUNDS", 1)
    path, file = built(max_rows=16).path, tmp_path / "cluster.json"
    command = ["cluster", str(path), "--sessions", "2", "--minutes", "0.05", "--interval", "0.5"]
    done = CliRunner().invoke(app, [*command, "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    print(done.stdout)
    result = json.loads(file.read_text())
    assert (result["kind"], result["replicas"], result["sessions"]) == ("cluster", 2, 2)
    for run in (result["transport"][name] for name in (DIRECT, EDGE, OPUS)):
        assert run["get_ms"]["p50"] > 0 < run["ping_ms"]["p50"]
        assert run["server_cpu"] > 0 < run["store_bytes_per_s_per_session"]
        assert run["kbit_per_s_per_session"] > 8
        assert run["edge_cores"] > 0
    lost = {name: result["failover"][name] for name in failover.SIGNALS}
    assert all(loss["noticed_ms"] and loss["resumed_ms"] and loss["gap_ms"] for loss in lost.values())
    assert result["failover"][STORE]["noticed_ms"] == {}
    assert result["capacity"]["s16"]["listeners_per_replica"] >= 1
