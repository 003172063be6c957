"""Ticks under churn: generations of several lengths and prompts arrive at random and leave when they are finished.

They arrive as a Poisson process. Arrivals are counted in ticks, not in seconds: which ticks there are does not depend
on the machine's speed.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from uuid import uuid4

import numpy as np
from rich.console import Console

from profiling.bench.result import against_budget, rounded
from profiling.bench.session import BenchSession
from profiling.bench.statistics import percentiles
from profiling.bench.steady_stream import Latents, check_equal
from profiling.bench.workload import Workload, at_depth, make_request, with_runtime
from profiling.provenance import provenance
from runtime.base.errors import ConfigError, TickError
from runtime.commands.terminal import print_table
from runtime.config.deployment import PLAN_TARGETS, Deployment
from runtime.engines.loading import settle_kernels
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import generation_lengths
from runtime.tick.loop.common_ticks import common_ticks
from runtime.tick.loop.events import Event, Failed, Finished, Started
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

# Condition tokens of a short and of a long prompt.
TOKENS = (60, 160)
MAX_LENGTHS = 3
NUM_VERIFIED = 3
QUEUE = 4096
# The largest share of ticks that do not replay a graph, where ticks can be captured.
MAX_NOT_REPLAYED = 0.05
# A tick is slow that takes so many times the median of ticks with the same lengths and rows.
SLOW = 2.0
WAYS = ("replayed", "captured", "plain")
Way = Literal["replayed", "captured", "plain"]


@dataclass(frozen=True)
class ChurnLoad:
    """What arrives: at each of `loads`, one run.

    A load of 1 is as much as all slots can do. lengths: the values of T, equally frequent. tokens: the fewest and the
    most condition tokens, all numbers equally frequent.
    """

    loads: tuple[float, ...]
    workload: Workload
    lengths: tuple[int, ...]
    tokens: tuple[int, int]
    kind = "churn"

    def shape(self) -> dict[str, Any]:
        """The properties that are known before it is measured."""
        load = self.workload
        return {
            "over": "load", "values": list(self.loads), "variant": load.variant, "guidance": load.guidance,
            "depth": load.depth, "steps": load.steps, "frames": list(self.lengths), "tokens": list(self.tokens),
        }  # fmt: skip

    def arrivals(self, load: float, seed: int = 0) -> Iterator[tuple[float, Workload]]:
        """Without an end: when a generation arrives, in ticks, and what it is."""
        random = np.random.default_rng(seed)
        mean_ticks = self.workload.steps / (load * self.workload.depth)
        at_tick = 0.0
        while True:
            at_tick += random.exponential(mean_ticks)
            frames, tokens = int(random.choice(self.lengths)), int(random.integers(*self.tokens, endpoint=True))
            yield at_tick, replace(self.workload, frames=frames, tokens=tokens)


def churn_load(deployment: Deployment, text: str, workload: Workload, frames: int = 0) -> ChurnLoad:
    """The load of a deployment at "0.3,0.6"; `frames`: T of all generations, 0 for the longest of several lengths.

    Raises ConfigError.
    """
    lengths = (frames,) if frames else generation_lengths(deployment.loaded_bundle.latents, deployment.shapes)
    lengths = lengths[-MAX_LENGTHS:]
    most = min(max(shape.tokens.max for shape in deployment.shapes if shape.frames.holds(length)) for length in lengths)
    # Where the engines take fewer tokens, as wide a spread.
    tokens = TOKENS if most >= TOKENS[1] else (max(1, most * TOKENS[0] // TOKENS[1]), most)
    return ChurnLoad(parse_loads(text), workload, lengths, tokens)


def parse_loads(text: str) -> tuple[float, ...]:
    """ "0.3,0.6,0.9". Raises ConfigError."""
    try:
        loads = tuple(float(value) for value in text.split(","))
    except ValueError:
        loads = ()
    if not loads or not all(0.0 < load <= 1.0 for load in loads) or len(set(loads)) != len(loads):
        what = f"{text}: expected shares of all slots, above 0, up to 1"
        raise ConfigError(what, fix="tickrt-bench churn CONFIG 0.3,0.6,0.9")
    return loads


@dataclass
class ChurnStream:
    """Drives a tick loop with generations that arrive at random.

    waits_ms: from submission to a slot. made: generations so far. results: of the first ones, with what was asked for.
    """

    session: BenchSession
    load: ChurnLoad
    loop: TickLoop = field(init=False)
    waits_ms: list[float] = field(default_factory=list)
    results: list[tuple[GenerationRequest, Latents]] = field(default_factory=list)
    made: int = 0
    _open: dict[str, tuple[GenerationRequest, float]] = field(default_factory=dict)
    _failures: list[TickError] = field(default_factory=list)

    def __post_init__(self) -> None:
        deployment = with_runtime(at_depth(self.session.deployment, self.load.workload.depth), queue=QUEUE)
        self.loop = TickLoop(self.session.engines, self.session.bundle, deployment, self.session.device)

    def capture(self) -> None:
        """Make the common ticks, as a server does before it is ready. Raises TickError."""
        longest_first = sorted(self.load.lengths, reverse=True)
        requests = [self._request(replace(self.load.workload, frames=frames)) for frames in longest_first]
        found = common_ticks(requests, self.session.bundle, self.loop.deployment)
        for index, common in enumerate(found):
            self.session.progress.update(index / len(found))
            self.play(common.generations())
            if settle_kernels(self.loop.deployment.target):
                self.play(common.generations())
        self.results.clear()

    def run(self, load: float, ticks: int) -> list[TickRecord]:
        """The records of `ticks` ticks, once generations have come and gone for two schedules. Raises TickError."""
        records: list[TickRecord] = []
        settled = 2 * self.load.workload.steps
        arrivals, now = self.load.arrivals(load), 0.0
        at_tick, workload = next(arrivals)
        while len(records) < settled + ticks:
            while at_tick <= now:
                self._submit(self._request(workload))
                at_tick, workload = next(arrivals)
            record = self._tick()
            now = at_tick if record is None else now + 1.0
            if record is not None:
                records.append(record)
                self.session.progress.update(len(records) / (settled + ticks))
                if len(records) == settled:
                    self.waits_ms.clear()
        self.play(())
        return records[settled:]

    def play(self, requests: Iterable[GenerationRequest]) -> None:
        """Submit generations, and tick until none is in flight. Raises TickError."""
        for request in requests:
            self._submit(request)
        while self._tick() is not None:
            pass

    def verify(self) -> float:
        """The largest difference between generations under churn and the same ones alone. Raises EngineError."""
        asked, under_churn = zip(*self.results, strict=True)
        self.results.clear()
        for request in asked:
            self.play([replace(request, id=uuid4().hex)])
        alone = [latents for _, latents in self.results]
        return check_equal("a generation under churn", "alone", list(under_churn), alone, self.session.engines)

    def _request(self, workload: Workload) -> GenerationRequest:
        self.made += 1
        return make_request(workload, self.session.bundle, self.session.engines, self.made - 1)

    def _submit(self, request: GenerationRequest) -> None:
        self._open[request.id] = (request, time.perf_counter())
        self.loop.submit(request, self._on_event)

    def _tick(self) -> TickRecord | None:
        record = self.loop.tick()
        if self._failures:
            raise self._failures[0]
        return record

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Failed):
            self._failures.append(event.error)
        elif isinstance(event, Started):
            self.waits_ms.append((time.perf_counter() - self._open[event.request_id][1]) * 1e3)
        elif isinstance(event, Finished):
            request, _ = self._open.pop(event.request_id)
            if len(self.results) < NUM_VERIFIED:
                self.results.append((request, event.latents))


@contextmanager
def open_stream(session: BenchSession, load: ChurnLoad) -> Iterator[ChurnStream]:
    """A stream on a loop of its own, with the graphs of the common ticks; closed at the end."""
    stream = ChurnStream(session, load)
    try:
        with session.progress.task("common ticks"):
            stream.capture()
        yield stream
    finally:
        stream.loop.close()


def measure_churn(session: BenchSession, load: ChurnLoad, ticks: int) -> dict[str, Any]:
    """One run per load, on one loop; the result is one JSON object. Raises TickError."""
    points = []
    with open_stream(session, load) as stream:
        for share in load.loads:
            with session.progress.task(f"load {share:g}"):
                records = stream.run(share, ticks)
            points.append({"load": share, **churn_point(session.deployment, records, stream.waits_ms)})
        difference = stream.verify()
    about = provenance(session.bundle, session.deployment, session.engines.decoder.manifest)
    shown = {"ticks": ticks, "graphs": session.deployment.runtime.captured_graphs, "churn_vs_alone": difference}
    return {"kind": "churn", **load.shape(), **shown, "points": points, **about}


def way_of(record: TickRecord) -> Way:
    """How a tick was launched: replayed where every length's graph was there, plain where one was without a graph."""
    if record.captured:
        return "captured"
    return "replayed" if record.replayed == len(record.frames) else "plain"


def slow_share(records: Sequence[TickRecord]) -> float:
    """The share of ticks that take SLOW times as long as ticks of their kind."""
    kinds: dict[tuple[tuple[int, ...], int], list[float]] = defaultdict(list)
    for record in records:
        kinds[record.frames, record.rows].append(record.tick_ms)
    return sum(sum(ms > SLOW * np.median(times) for ms in times) for times in kinds.values()) / len(records)


def churn_point(deployment: Deployment, records: Sequence[TickRecord], waits_ms: Sequence[float]) -> dict[str, Any]:
    """One load: shares of ticks by how they were launched, their times, and how long generations waited for a slot."""
    ways: Counter[str] = Counter(way_of(record) for record in records)
    shares = rounded({way: ways[way] / len(records) for way in WAYS})
    can_capture = deployment.target in PLAN_TARGETS and deployment.runtime.capture
    budget = {"not_replayed": MAX_NOT_REPLAYED} if can_capture else {}
    not_replayed = rounded({"not_replayed": 1.0 - ways["replayed"] / len(records)})
    return {
        **shares,
        **not_replayed,
        **against_budget(budget, not_replayed),
        "bound": sum(record.bound for record in records),
        "evicted": sum(record.evicted for record in records),
        "slots": round(float(np.mean([record.slots for record in records])), 2),
        "tick_ms": rounded(percentiles([record.tick_ms for record in records])),
        "slow_ticks": round(slow_share(records), 4),
        "queue_wait_ms": rounded(percentiles(waits_ms or [0.0])),
        "generations": len(waits_ms),
        "allocations_per_tick": round(sum(record.allocations for record in records) / len(records), 4),
    }


def print_churn(console: Console, result: Mapping[str, Any]) -> None:
    """The loads as a table."""
    frames, tokens = "/".join(map(str, result["frames"])), "..".join(map(str, result["tokens"]))
    what = f"depth {result['depth']}, {result['steps']} steps, {result['variant']}, {frames} frames, {tokens} tokens"
    columns = ("load", *WAYS, "tick p50", "p99", "slow", "wait p99", "budget")
    print_table(console, f"{result['bundle']} on {result['target']} under churn, ms; {what}", columns, _rows(result))


def _rows(result: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            f"{point['load']:g}",
            *(f"{point[way]:.1%}" for way in WAYS),
            *(f"{point['tick_ms'][name]:.2f}" for name in ("p50", "p99")),
            f"{point['slow_ticks']:.1%}",
            f"{point['queue_wait_ms']['p99']:.1f}",
            "" if not point["budget"] else "kept" if point["within_budget"] else "missed",
        ]
        for point in result["points"]
    ]
