"""Metrics of live sessions."""

from __future__ import annotations

from types import SimpleNamespace

from prometheus_client import CollectorRegistry

from server.service.live_metrics import LiveMetrics


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
