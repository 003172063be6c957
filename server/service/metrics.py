"""Prometheus metrics, one registry per app. Base units; labels never hold text of a user.

Invariants: generations_started_total = the sum of generations_total over outcomes + generations_in_flight;
live_sessions_started_total = the sum of live_sessions_ended_total over outcomes + live_sessions;
live_generations_started_total = the sum of live_generations_ended_total over outcomes, where none is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from runtime.base.errors import StoreError
from runtime.engines.engine import Engine
from runtime.tick.clock import PHASES
from runtime.tick.loop.record import LoopStats, TickRecord

if TYPE_CHECKING:
    from runtime.live.hosting.host import SessionHost
    from runtime.live.hosting.services import HostStats

NAMESPACE = "tickrt"
CONTENT_TYPE = CONTENT_TYPE_LATEST
# Otherwise every counter has a second series, NAME_created, with the time at which it was made.
disable_created_metrics()  # type: ignore[no-untyped-call]
PHASE_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
LATENCY_S = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0, 10.0)
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Outcome(StrEnum):
    """How a generation ended; each one that started has exactly one outcome."""

    OK = "ok"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    NONFINITE = "nonfinite"
    ENGINE_ERROR = "engine_error"
    DRAINED = "drained"
    INTERNAL_ERROR = "internal_error"


class Metrics:
    """All metrics of one app. replica: its name among several, which all series have as a label."""

    def __init__(self, replica: str | None = None) -> None:
        self.registry = CollectorRegistry()
        self._replica = replica
        self._depth = 1
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._make_generation_metrics()
        self._make_tick_metrics()
        self._make_server_metrics()

    def _make_generation_metrics(self) -> None:
        self.started = self._counter("generations_started", "Generations that requested admission")
        self.outcomes = self._counter("generations", "Generations that ended, by outcome", "outcome")
        self.in_flight = self._gauge("generations_in_flight", "Generations started and not yet ended")
        self.queue_wait = self._histogram("queue_wait_seconds", "Time from submission to a slot", LONG_S)
        self.time_to_first_audio = self._histogram(
            "time_to_first_audio_seconds", "Time from request to the first audio sent", LONG_S
        )
        self.chunk_interval = self._histogram("chunk_interval_seconds", "Time between two chunks of a stream", LONG_S)
        self.realtime = self._histogram(
            "realtime_factor", "Seconds of audio per second of wall time, per generation", FACTORS
        )
        self.stream_aborts = self._counter("stream_aborts", "Streams aborted by the server, by reason", "reason")
        self.response_bytes = self._gauge("response_size_bytes", "Memory reserved for responses")
        self.audio_seconds = self._counter("audio_seconds", "Seconds of audio sent")
        for outcome in Outcome:
            self.outcomes.labels(outcome)
        self.stream_aborts.labels("send_timeout")

    def _make_tick_metrics(self) -> None:
        self.ticks = self._histogram("tick_duration_seconds", "Duration of a tick", SHORT_S)
        self.device = self._histogram(
            "decoder_duration_seconds", "Duration of the decoder's executes in a tick", SHORT_S
        )
        phases = self._histogram("tick_phase_duration_seconds", "Duration of each phase of a tick", PHASE_S, "phase")
        self.phases = {phase: phases.labels(phase) for phase in PHASES}
        self.occupancy = self._histogram("batch_occupancy_ratio", "Active slots divided by all slots, per tick", RATIOS)
        self.rows = self._counter("decoder_rows", "Batch rows executed by the decoder")
        self.allocations = self._counter("tick_allocations", "Memory allocations made during ticks")
        self.preemptions = self._counter(
            "preemptions", "Generations frozen in mid-flight to give a live session their slot"
        )
        self.planner_tokens = self._counter("planner_tokens", "Tokens that the planner has written")
        self.slots_active = self._gauge("slots_active", "Slots in use")
        self.slots_capacity = self._gauge("slots_capacity", "Slots in total")
        self.queue_depth = self._gauge("queue_depth", "Generations that wait for a slot")

    def _make_server_metrics(self) -> None:
        self.requests = self._counter("http_requests", "HTTP requests answered", "method", "route", "status")
        self.is_ready = self._gauge("ready", "1 while new work is accepted, else 0")
        self.load_duration = self._gauge("engine_load_duration_seconds", "Time to open and warm up the engines")
        self.sources = self._gauge("sources", "Uploaded sources")
        self.sources_bytes = self._gauge("sources_size_bytes", "Size of all uploaded sources")
        self.source_uploads = self._counter("source_uploads", "Uploads by outcome: stored, known, refused", "outcome")
        self.source_evictions = self._counter("source_evictions", "Sources removed to make room for others")
        self.engine_info = self._gauge("engine_info", "Engines in use", "engine", "sha256", "target")
        self.merged_adapters = self._gauge(
            "merged_adapter_strength", "Strengths of the adapters in the decoder's weights", "adapter"
        )

    def watch_sources(self, sizes_bytes: Callable[[], Iterable[int]]) -> None:
        """Read the sizes of all sources on every scrape; NaN where their store is away."""

        def total(of: Callable[[int], int]) -> float:
            try:
                return float(sum(of(size_bytes) for size_bytes in sizes_bytes()))
            except StoreError:
                return math.nan

        self.sources.set_function(lambda: total(lambda size_bytes: 1))
        self.sources_bytes.set_function(lambda: total(lambda size_bytes: size_bytes))

    def watch(self, stats: Callable[[], LoopStats], load_s: float) -> None:
        """Read a loop's gauges on every scrape; publish how long its engines took to load."""
        self._depth = stats().slots_capacity
        self.slots_active.set_function(lambda: stats().slots_active)
        self.slots_capacity.set_function(lambda: stats().slots_capacity)
        self.queue_depth.set_function(lambda: stats().queue_depth)
        self.load_duration.set(load_s)

    def show_engines(self, engines: Iterable[Engine], merged: Mapping[str, float]) -> None:
        """Publish the engines in use now, and the adapters merged into them; earlier ones are removed."""
        self.engine_info.clear()
        for engine in engines:
            manifest = engine.manifest
            self.engine_info.labels(manifest.name, manifest.engine_sha256, manifest.target).set(1)
        self.merged_adapters.clear()
        for id_, strength in merged.items():
            self.merged_adapters.labels(id_).set(strength)

    def observe_tick(self, record: TickRecord) -> None:
        """Record a completed tick; called on the tick thread."""
        self.ticks.observe(record.tick_ms / 1e3)
        self.device.observe(record.engine_ms / 1e3)
        for phase, ms in record.phases_ms.items():
            self.phases[phase].observe(ms / 1e3)
        self.occupancy.observe(record.slots / self._depth)
        self.rows.inc(record.rows)
        self.preemptions.inc(len(record.frozen))
        self.allocations.inc(record.allocations)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry if self._replica is None else _Labelled(self.registry, self._replica))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, labels, namespace=NAMESPACE, registry=self.registry, buckets=buckets)


class _Labelled(Collector):
    """The metrics of a registry, with a label `replica` on every sample."""

    def __init__(self, registry: CollectorRegistry, replica: str) -> None:
        self._registry, self._replica = registry, replica

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            samples = [item._replace(labels={**item.labels, "replica": self._replica}) for item in family.samples]
            labelled = Metric(family.name, family.documentation, family.type, family.unit)
            labelled.samples = samples
            yield labelled


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
