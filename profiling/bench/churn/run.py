"""A tick loop whose generations come and go: which ticks replay captured graphs, slow ticks, and the wait for a slot.

Arrivals are counted in ticks, not in seconds: which ticks there are does not depend on the machine's speed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from uuid import uuid4

from profiling.bench.churn.arrivals import ChurnLoad
from profiling.bench.churn.result import churn_point
from profiling.bench.session import BenchSession
from profiling.bench.steady_stream import Latents, check_equal
from profiling.bench.workload import Workload, at_depth, make_request, with_runtime
from profiling.provenance import provenance
from runtime.base.errors import TickError
from runtime.engines.loading import settle_kernels
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.common_ticks import common_ticks
from runtime.tick.loop.events import Event, Failed, Finished, Started
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

NUM_VERIFIED = 3
QUEUE = 4096


@dataclass
class ChurnStream:
    """Drives a tick loop with generations that arrive at random.

    waits_ms: from submission to a slot. results: of the first generations, with what was asked for.
    """

    session: BenchSession
    load: ChurnLoad
    loop: TickLoop = field(init=False)
    waits_ms: list[float] = field(default_factory=list)
    results: list[tuple[GenerationRequest, Latents]] = field(default_factory=list)
    _open: dict[str, tuple[GenerationRequest, float]] = field(default_factory=dict)
    _failures: list[TickError] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

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
        return make_request(workload, self.session.bundle, self.session.engines, next(self._numbers))

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
