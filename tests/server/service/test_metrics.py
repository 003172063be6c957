from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from helpers.http_harness import GENERATIONS, Serve, Served, connected, eventually, raw_request
from prometheus_client import CollectorRegistry

from runtime.tick.clock import PHASES
from runtime.tick.loop.record import TickRecord
from server.service.metrics import LiveMetrics, Metrics, Outcome
from server.service.service import WARM_UP_TIMEOUT_S


def test_counters_equal_the_workload(serve: Serve) -> None:
    """Three whole generations, two with invalid bodies, two disconnects, three beyond capacity, one of latents."""
    served = serve(depth=1, queue=1)
    for seconds in (1.28, 1.28, 0.64):
        assert served.post(seconds=seconds, steps=3).status_code == 200
    for bad in ({"steps": 0}, {"nonsense": 1}):
        assert served.post(**bad).status_code == 422
    fill_and_leave(served)
    assert served.post(response_format="latents", steps=2).status_code == 200
    counted = served.metrics()
    outcomes = {name: counted[f"tickrt_generations_total{{outcome={name}}}"] for name in Outcome}
    assert outcomes == {**dict.fromkeys(Outcome, 0), "ok": 4, "cancelled": 2, "rejected": 3}
    assert counted["tickrt_stream_aborts_total{reason=send_timeout}"] == 0
    assert counted["tickrt_generations_started_total"] == sum(outcomes.values()) == 9
    assert round(counted["tickrt_audio_seconds_total"], 6) == 1.28 + 1.28 + 0.64
    assert counted["tickrt_time_to_first_audio_seconds_count"] == 4
    assert counted["tickrt_realtime_factor_count"] == 3
    assert counted["tickrt_queue_wait_seconds_count"] == 5
    post = "tickrt_http_requests_total{method=POST}{route=/v1/audio/generations}"
    assert counted[f"{post}{{status=200}}"] == 4
    assert counted[f"{post}{{status=422}}"] == 2
    assert counted[f"{post}{{status=503}}"] == 3
    assert counted[f"{post}{{status=499}}"] == 2
    for gauge in ("generations_in_flight", "slots_active", "queue_depth"):
        assert counted[f"tickrt_{gauge}"] == 0
    stats = served.pipeline.loop.stats()
    assert counted["tickrt_slots_capacity"] == 1
    assert counted["tickrt_tick_duration_seconds_count"] == stats.ticks - 1
    assert counted["tickrt_decoder_rows_total"] == 2 * (stats.ticks - 1)
    spent_s = {phase: counted[f"tickrt_tick_phase_duration_seconds_sum{{phase={phase}}}"] for phase in PHASES}
    assert sum(spent_s.values()) == pytest.approx(counted["tickrt_tick_duration_seconds_sum"], rel=1e-6)
    assert counted["tickrt_decoder_duration_seconds_sum"] < spent_s["launch"]


def fill_and_leave(served: Served) -> None:
    served.pause()
    body = json.dumps({"prompt": "a", "steps": 9}).encode()
    with connected(served) as first, connected(served) as second:
        for connection in (first, second):
            connection.sendall(raw_request(body))
        eventually(lambda: served.service.admission.num_pending == 2)
        with ThreadPoolExecutor(3) as pool:
            assert {answer.status_code for answer in pool.map(lambda _: served.post(), range(3))} == {503}
    eventually(lambda: not served.service.admission.permits)
    served.resume()
    eventually(lambda: served.service.admission.num_pending == 0)


def test_engine_info_has_every_engine_with_its_hash(served: Served) -> None:
    counted = served.metrics()
    manifests = [engine.manifest for engine in served.pipeline.all_engines()]
    assert len(manifests) > 8
    for manifest in manifests:
        key = f"tickrt_engine_info{{engine={manifest.name}}}{{sha256={manifest.engine_sha256}}}{{target=cpu}}"
        assert counted[key] == 1
    assert 0 < counted["tickrt_engine_load_duration_seconds"] < WARM_UP_TIMEOUT_S
    assert [name for name in counted if "_created" in name] == []


def test_labels_hold_no_text_of_users(served: Served) -> None:
    marker = "zebra-in-the-label"
    with served.client() as client:
        client.post(GENERATIONS, json={"prompt": marker})
        client.get(f"/{marker}", headers={"x-request-id": marker})
        client.get(f"/v1/models/{marker}")
        client.request(marker.upper(), "/metrics")
        shown = client.get("/metrics")
    assert shown.headers["content-type"].startswith("text/plain; version=")
    assert marker not in shown.text.lower()


def test_a_tick_record_is_observed() -> None:
    metrics = Metrics()
    record = TickRecord(tick=1, slots=3, rows=6, frames=(32,), executes=1, variants=("plain",), queue_depth=0)
    record.tick_ms, record.engine_ms, record.allocations = 20.0, 15.0, 2
    record.frozen = ("a", "b")
    record.marks = (("inbox", 0.0), ("wait", 0.25), ("inbox", 0.75), ("", 1.0))
    metrics._depth = 4
    metrics.observe_tick(record)
    text = metrics.render().decode()
    assert "tickrt_tick_duration_seconds_sum 0.02\n" in text
    assert 'tickrt_batch_occupancy_ratio_bucket{le="0.7"} 0.0' in text
    assert 'tickrt_batch_occupancy_ratio_bucket{le="0.8"} 1.0' in text
    assert "tickrt_decoder_rows_total 6.0" in text
    assert "tickrt_decoder_duration_seconds_sum 0.015\n" in text
    phases = {phase: f'tickrt_tick_phase_duration_seconds_sum{{phase="{phase}"}} ' for phase in PHASES}
    assert phases["wait"] + "0.5\n" in text
    assert phases["inbox"] + "0.5\n" in text
    assert all(line in text for line in phases.values())
    assert "tickrt_tick_allocations_total 2.0" in text
    assert "tickrt_preemptions_total 2.0" in text


def test_what_the_host_counts_is_read_on_a_scrape() -> None:
    registry = CollectorRegistry()
    stats = SimpleNamespace(
        open=2,
        connected=1,
        opened=5,
        ended={"closed": 2, "expired": 1},
        generations_started=12,
        generations_ended={"finished": 9, "cancelled": 2},
        underruns=4,
        store_failure=None,
    )
    host = SimpleNamespace(stats=lambda: stats, control_observers=[])
    LiveMetrics(registry).watch(host)  # type: ignore[arg-type]

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"tickrt_{name}", labels)

    assert value("live_sessions") == 2
    assert value("live_connected") == 1
    assert value("live_refreshes_total") == 9
    assert value("live_generations_started_total") == 12
    assert value("underruns_total") == 4
    assert value("session_store_failed") == 0
    stats.store_failure = "no space left"
    assert value("session_store_failed") == 1
    ended = [value("live_sessions_ended_total", outcome=outcome) or 0 for outcome in stats.ended]
    assert value("live_sessions_started_total") == sum(ended) + stats.open
    host.control_observers[0]("step", "full", 0.12)
    assert value("control_to_sound_seconds_count", kind="step", stage="full") == 1
