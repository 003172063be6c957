"""What the server counts, in a registry of its own per app. Base units; no text of a user in any label.

Identity: generations_started_total = the sum of generations_total over its outcomes + generations_in_flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from runtime.engines.engine import Engine
from runtime.tick.in_flight import LoopStats
from runtime.tick.record import PHASES, TickRecord

CONTENT_TYPE = CONTENT_TYPE_LATEST
NAMESPACE = "tickrt"
PHASE_S = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FACTORS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Outcome(StrEnum):
    """How a generation ended; every one that was started ends in exactly one of these."""

    OK = "ok"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    EXPIRED = "expired"
    NONFINITE = "nonfinite"
    ENGINE_ERROR = "engine_error"
    DRAINED = "drained"
    INTERNAL_ERROR = "internal_error"


class Metrics:
    """All metrics of one app."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._depth = 1
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._make_generation_metrics()
        self._make_tick_metrics()
        self._make_server_metrics()

    def _make_generation_metrics(self) -> None:
        self.started = self._counter("generations_started", "Generations that asked for a place")
        self.outcomes = self._counter("generations", "Generations that ended, by outcome", "outcome")
        self.in_flight = self._gauge("generations_in_flight", "Generations started and not yet ended")
        self.queue_wait = self._histogram("queue_wait_seconds", "From submission to a slot", LONG_S)
        self.first_audio = self._histogram("time_to_first_audio_seconds", "From request to first audio sent", LONG_S)
        self.chunk_interval = self._histogram("chunk_interval_seconds", "Between chunks of one stream", LONG_S)
        self.realtime = self._histogram("realtime_factor", "Seconds of audio per second, per generation", FACTORS)
        self.evictions = self._counter("subscriber_evictions", "Streams cut because nobody read them", "reason")
        self.audio_seconds = self._counter("audio_seconds", "Audio sent, in seconds")
        for outcome in Outcome:
            self.outcomes.labels(outcome)
        self.evictions.labels("send_timeout")

    def _make_tick_metrics(self) -> None:
        self.ticks = self._histogram("tick_duration_seconds", "One tick of the loop", SHORT_S)
        self.device = self._histogram("decoder_seconds", "The decoder's executes of one tick", SHORT_S)
        phases = self._histogram("tick_phase_seconds", "Part of a tick, by phase", PHASE_S, "phase")
        self.phases = {phase: phases.labels(phase) for phase in PHASES}
        self.occupancy = self._histogram("batch_occupancy_ratio", "Live slots over slots, per tick", RATIOS)
        self.rows = self._counter("decoder_rows", "Rows that the decoder executed")
        self.allocations = self._counter("tick_allocations", "Allocations made inside ticks")
        self.slots_active = self._gauge("slots_active", "Slots in flight")
        self.slots_capacity = self._gauge("slots_capacity", "Slots in all")
        self.queue_depth = self._gauge("queue_depth", "Generations waiting for a slot")

    def _make_server_metrics(self) -> None:
        self.requests = self._counter("http_requests", "HTTP requests", "method", "route", "status")
        self.is_ready = self._gauge("ready", "1 when new work is taken")
        self.load_seconds = self._gauge("engine_load_seconds", "Time to open and warm the engines")
        self.engine_info = self._gauge("engine_info", "Engines in use", "engine", "sha256", "backend")

    def watch(self, stats: Callable[[], LoopStats], engines: Iterable[Engine], load_s: float) -> None:
        """Show a loop's gauges as they are when somebody looks, and what it runs."""
        self._depth = stats().slots_capacity
        self.slots_active.set_function(lambda: stats().slots_active)
        self.slots_capacity.set_function(lambda: stats().slots_capacity)
        self.queue_depth.set_function(lambda: stats().queue_depth)
        self.load_seconds.set(load_s)
        self.show_engines(engines)

    def show_engines(self, engines: Iterable[Engine]) -> None:
        """What is in use now, and nothing else."""
        self.engine_info.clear()
        for engine in engines:
            manifest = engine.manifest
            self.engine_info.labels(manifest.name, manifest.engine_sha256, manifest.target).set(1)

    def observe_tick(self, record: TickRecord) -> None:
        """Take note of one tick, once all of it is known; called on the tick thread."""
        self.ticks.observe(record.tick_ms / 1e3)
        self.device.observe(record.engine_ms / 1e3)
        for phase, ms in record.phases_ms.items():
            self.phases[phase].observe(ms / 1e3)
        self.occupancy.observe(record.slots / self._depth)
        self.rows.inc(record.rows)
        if record.allocations:
            self.allocations.inc(record.allocations)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(name, what, labels, namespace=NAMESPACE, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(name, what, labels, namespace=NAMESPACE, registry=self.registry)

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, what, labels, namespace=NAMESPACE, registry=self.registry, buckets=buckets)
