"""What is read of a cluster and of its clients, by session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from helpers.http_harness import Served
from helpers.live_clients import RATE, ready
from helpers.redis_server import redis_server

from profiling.bench.cluster import transport
from profiling.bench.cluster.transport import (
    Reading,
    client_figures,
    measure_transport,
    metrics_of,
    redis_input_bytes,
    time_gets,
    used_between,
)
from profiling.bench.live.client import LiveClient
from profiling.bench.live.script import ClientRun, Control, Script
from profiling.bench.live.sound_log import AudioRange
from runtime.base.errors import TickError
from runtime.live.protocol.server_messages import Applied, Stages


def test_gets_are_timed_one_by_one_and_must_succeed(served: Served) -> None:
    times_ms = time_gets(served.url, num_gets=3)
    assert len(times_ms) == 3
    assert min(times_ms) > 0
    with pytest.raises(TickError, match="/nowhere answers 404"):
        time_gets(served.url, "/nowhere", num_gets=1)


def test_metrics_are_without_the_label_of_the_replica(served: Served) -> None:
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
    before = Reading([metrics(1.0, 1.0), metrics(0.0, 0.0)], 1.0, 1_000, 100.0)
    after = Reading([metrics(5.0, 3.0), metrics(2.0, 1.0)], 1.2, 41_000, 110.0)
    used = used_between(before, after, sessions=4)
    assert used["server_cpu"] == pytest.approx(0.3)
    assert used["ticks_share"] == pytest.approx(0.15)
    assert used["edge_cores"] == pytest.approx(0.02)
    assert used["store_bytes_per_s_per_session"] == pytest.approx(1_000.0)


def test_audio_is_timed_without_what_making_it_takes() -> None:
    client = LiveClient(cast(Any, None), ready(), 0.0)
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


def test_clients_take_the_addresses_in_turn_and_are_pinged_while_they_play(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Any] = []

    async def ping() -> float:
        return 0.002

    async def play(url: str, script: Script, index: int, beside: Any) -> ClientRun:
        client: Any = SimpleNamespace(ping=ping, received_bytes=30_000 * index, log=SimpleNamespace(underruns=index))
        pinging = asyncio.create_task(beside(client))
        for _ in range(3):
            await asyncio.sleep(0)
        pinging.cancel()
        played.append((url, index))
        return ClientRun([], client)

    cluster: Any = SimpleNamespace(cpu_s=lambda name: {"haproxy": 1.0}[name], redis_url="redis://here")
    bytes_read = iter((1000, 3000))
    at_s = iter((10.0, 14.0))
    changed = {
        "run_client": play, "PING_S": 60.0, "time_gets": lambda url: [{"http://a": 3.0}[url]],
        "metrics_of": lambda name, url: metrics(0.0, 0.0), "redis_input_bytes": lambda url: next(bytes_read),
        "time": SimpleNamespace(monotonic=lambda: next(at_s)),
    }  # fmt: skip
    for name, value in changed.items():
        monkeypatch.setattr(transport, name, value)
    script = Script("loop", 2.0, 1.0)
    figures = measure_transport(cluster, {"r1": "http://a"}, ["http://a", "http://b"], script, 3)
    assert sorted(played) == [("http://a", 0), ("http://a", 2), ("http://b", 1)]
    assert (figures["get_ms"]["p50"], figures["ping_ms"]["p95"], figures["underruns"]) == (3.0, 2.0, 3)
    assert figures["kbit_per_s_per_session"] == round(8 * 90 / script.duration_s / 3, 1)
    assert figures["store_bytes_per_s_per_session"] == round(2000 / 4 / 3, 4)
