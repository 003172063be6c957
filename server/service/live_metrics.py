"""Prometheus metrics of live sessions.

Invariants: live_sessions_started_total = the sum of live_sessions_ended_total over outcomes + live_sessions;
live_generations_started_total = the sum of live_generations_ended_total over outcomes, where none is in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from runtime.sessions.hosting.host import SessionHost
    from runtime.sessions.hosting.services import HostStats

NAMESPACE = "tickrt"
LATENCY_S = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0, 10.0)


class LiveMetrics:
    """Metrics of all connections, and those of the host of the sessions, which are read on every scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self.refused = self._counter("live_refused", "Live sessions that were refused, by the problem's code", "code")
        self.dropped_chunks = self._counter(
            "live_dropped_chunks", "Chunks of audio dropped for clients that do not read"
        )
        self.send_timeouts = self._counter("live_send_timeouts", "Connections aborted because the client did not read")
        self._latency = Histogram(
            "control_to_sound_seconds",
            "From a control's message until the playhead reaches its sound: the first of it, all of it",
            ("kind", "stage"),
            namespace=NAMESPACE,
            registry=registry,
            buckets=LATENCY_S,
        )

    def watch(self, host: SessionHost) -> None:
        """Publish what the host counts and measures."""
        self._registry.register(HostCollector(host.stats))
        host.control_observers.append(lambda kind, stage, s: self._latency.labels(kind, stage).observe(s))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self._registry)


class HostCollector:
    """Reads the host's counts on a scrape."""

    def __init__(self, stats: Callable[[], HostStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """The metrics as of now."""
        stats = self._stats()
        gauges = {
            "live_sessions": ("Live sessions that are open, with a connection or kept for one", stats.open),
            "live_connected": ("Live sessions with a connection", stats.connected),
            "session_store_failed": (
                "1 where snapshots of sessions are no longer stored",
                stats.store_failure is not None,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(f"{NAMESPACE}_{name}", text, value=float(value))
        counters = {
            "live_sessions_started": ("Live sessions opened, or taken over from the store", stats.opened),
            "live_generations_started": ("Generations started for live sessions", stats.generations_started),
            "live_refreshes": ("Generations finished for live sessions", stats.generations_ended.get("finished", 0)),
            "underruns": ("Times that a client's playhead found no audio", stats.underruns),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(f"{NAMESPACE}_{name}", text, value=float(value))
        outcomes = {
            "live_sessions_ended": ("Live sessions that ended", stats.ended),
            "live_generations_ended": ("Generations of live sessions that ended", stats.generations_ended),
        }
        for name, (text, numbers) in outcomes.items():
            family = CounterMetricFamily(f"{NAMESPACE}_{name}", text, labels=["outcome"])
            for outcome, number in numbers.items():
                family.add_metric([outcome], number)
            yield family
