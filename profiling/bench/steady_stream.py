"""A steady stream through the production tick path, and the bare engine beside it: what `tickrt-bench` measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from profiling.bench.allocation_probe import AllocationProbe
from profiling.bench.baseline import BareEngine
from profiling.bench.statistics import Ratio, paired_ratio
from profiling.bench.workload import Workload, at_depth, make_request
from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.devices.device import Device
from runtime.engines.engine import EngineSet
from runtime.engines.manifest import Manifest
from runtime.errors import EngineError, TickError
from runtime.requests.request import GenerationRequest, StepParameters
from runtime.tick.events import Event, Failed, Finished
from runtime.tick.loop import TickLoop
from runtime.tick.record import TickRecord

VERIFY_STEPS = 4
VERIFY_TOLERANCE = 1e-4
# Of the largest latent, by the decoder's precision.
LOW_PRECISION = {"fp16": 5e-3, "bf16": 5e-2}
BARE = "bare engine"
DEVICE_BLOCK = 16


class Rival(Protocol):
    """Something else that computes a velocity."""

    def time_ms(self, times: int = 1) -> float:
        """Wall time of all rows once, mean of so many in a row."""


Rivals = Mapping[str, Rival]


@dataclass(frozen=True)
class Result:
    """Everything that one run measured: ticks and executes of the bare engine in turn, an execute at both ends.

    Each sample is the mean of `block` in a row: on a GPU ticks overlap with the host, so that one alone says little.
    """

    workload: Workload
    ticks_ms: list[float]
    engine_ms: list[float]
    records: list[TickRecord]
    allocations: list[int]
    sites: list[tuple[int, int, tuple[str, ...]]]
    worst_difference: float
    block: int = 1
    beside_ms: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def overhead(self) -> Ratio:
        """Tick over bare engine."""
        return paired_ratio(self.ticks_ms, self.engine_ms)

    @property
    def overhead_inside(self) -> float:
        """Tick over the device's share of the same tick: steadier, but blind to a decoder that is slower in a tick."""
        shares = np.array([record.engine_ms for record in self.records]).reshape(len(self.ticks_ms), self.block)
        return float(np.median(np.asarray(self.ticks_ms) / shares.mean(axis=1)))

    @property
    def finished_per_s(self) -> float:
        """Generations that are finished in a second of ticking: each of `depth` slots takes `steps` ticks."""
        return self.workload.depth / self.workload.steps / (float(np.mean(self.ticks_ms)) / 1e3)


@dataclass
class SteadyStream:
    """Drives a loop: as many generations wait as there are slots, so that a slot that is free is taken at once."""

    bundle: Bundle
    deployment: Deployment
    engines: EngineSet
    device: Device
    workload: Workload
    loop: TickLoop = field(init=False)
    finished: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    failures: list[TickError] = field(default_factory=list)
    _knobs: tuple[StepParameters, ...] = tuple(StepParameters(velocity_scale=scale) for scale in (0.99, 1.01))
    _turn: int = 0

    def __post_init__(self) -> None:
        self.deployment = at_depth(self.deployment, self.workload.depth)
        self.loop = TickLoop(self.engines, self.bundle, self.deployment, self.device)
        self._requests = [
            make_request(self.workload, self.bundle, self.engines, index) for index in range(self.workload.depth)
        ]

    def run(self, ticks: int, probe_ticks: int, beside: Callable[[int], Rivals] | None = None) -> Result:
        """Warm up, verify, measure, count. Raises TickError when a tick's result is not what the slots give alone.

        `beside`: rows of a tick -> what else is timed, in turn with the ticks.
        """
        worst = self.verify()
        rows = self.warm_up()
        block = block_of(self.device, self.workload)
        with closing(BareEngine(self.engines, self.bundle, self.deployment, self.device, self.workload, rows)) as bare:
            rivals = beside(rows) if beside is not None else {}
            records, ticks_ms, others_ms = self._time_in_turns({BARE: bare, **rivals}, ticks, block)
        allocations, sites = self._count_allocations(probe_ticks)
        engine_ms = others_ms.pop(BARE)
        return Result(self.workload, ticks_ms, engine_ms, records, allocations, sites, worst, block, others_ms)

    def _time_in_turns(
        self, rivals: Rivals, ticks: int, block: int
    ) -> tuple[list[TickRecord], list[float], dict[str, list[float]]]:
        """Ticks and the others in turns, in blocks; the others are timed before the first block too."""
        for rival in rivals.values():
            rival.time_ms(block)
        records: list[TickRecord] = []
        ticks_ms: list[float] = []
        others_ms = {name: [rival.time_ms(block)] for name, rival in rivals.items()}
        for _ in range(-(-ticks // block)):
            ticks_ms.append(self.time_ticks(records, block))
            for name, rival in rivals.items():
                others_ms[name].append(rival.time_ms(block))
        return records, ticks_ms, others_ms

    def verify(self) -> float:
        """Largest difference between generations that share their ticks and the same generations alone."""
        together = self.play()
        alone = [latents for request in self._requests for latents in self.play([request])]
        return check_equal("a generation that shares its ticks", "alone", together, alone, self.engines)

    def play(self, requests: list[GenerationRequest] | None = None) -> list[NDArray[np.float32]]:
        """Latents of short generations of this workload, or of these, that share their ticks."""
        short = [replace(request, steps=VERIFY_STEPS, id=uuid4().hex) for request in requests or self._requests]
        self._run_out(short)
        return [self.finished.pop(request.id) for request in short]

    def _run_out(self, requests: list[GenerationRequest]) -> None:
        """Run these to their end, one more entering with each tick, so that they are at different steps."""
        waiting = list(requests)
        while waiting or any(request.id not in self.finished for request in requests):
            if waiting:
                self.loop.submit(waiting.pop(0), self._note)
            self.loop.tick()
            self._check()

    def _fill(self) -> None:
        """Take all slots, evenly spread over the schedule, so that finishes are too; then let as many wait."""
        for index in range(self.workload.depth):
            self._submit(index)
            for _ in range(max(1, self.workload.steps // self.workload.depth)):
                self._check_record(self.loop.tick())
        for index in range(self.workload.depth):
            self._submit(index)

    def warm_up(self) -> int:
        """A full house, and two whole schedules: every shape gets bound, every buffer lent and returned. Gives the
        rows of a tick."""
        self._fill()
        record = self.tick()
        for _ in range(2 * self.workload.steps):
            record = self.tick()
        return record.rows

    def time_ticks(self, records: list[TickRecord], block: int) -> float:
        """Milliseconds per tick, mean of so many in a row, to the end of what the device does in them."""
        begin_s = time.perf_counter()
        ticked = [self._tick() for _ in range(block)]
        self.device.main.record().wait()
        elapsed_ms = (time.perf_counter() - begin_s) * 1e3
        records += [self._check_record(record) for record in ticked]
        self._replace_finished()
        return elapsed_ms / block

    def _count_allocations(self, ticks: int) -> tuple[list[int], list[tuple[int, int, tuple[str, ...]]]]:
        """Per tick: NumPy buffers of 1 KiB or more plus the device's own allocations; and where NumPy's came from."""
        counts, seen = [], AllocationProbe(trace=True)
        for _ in range(ticks):
            before = seen.count
            with seen:
                record = self._tick()
            counts.append(seen.count - before + self._check_record(record).allocations)
            self._replace_finished()
        return counts, seen.sites()

    def tick(self) -> TickRecord:
        """One tick, and as many more waiting as are finished."""
        record = self._check_record(self._tick())
        self._replace_finished()
        return record

    def _tick(self) -> TickRecord | None:
        """Where there are sessions, one of them turns a knob first."""
        if self.workload.sessions:
            self._turn += 1
            parameters = self._knobs[self._turn // self.workload.sessions % len(self._knobs)]
            self.loop.update(self.workload.session_of(self._turn), parameters)
        return self.loop.tick()

    def _check_record(self, record: TickRecord | None) -> TickRecord:
        self._check()
        assert record is not None
        return record

    def _replace_finished(self) -> None:
        for request_id in list(self.finished):
            del self.finished[request_id]
            self._submit(int(request_id.partition("-")[0]))

    def _submit(self, index: int) -> None:
        request_id = f"{index}-{uuid4().hex}"
        self.loop.submit(replace(self._requests[index], id=request_id), self._note)

    def _check(self) -> None:
        if self.failures:
            raise self.failures[0]

    def _note(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.failures.append(event.error)
        if isinstance(event, Finished):
            self.finished[event.request_id] = event.latents


def block_of(device: Device, load: Workload) -> int:
    """How many ticks make one sample: on a GPU ticks overlap with the host, so that one alone says little.

    Not more than a generation has steps: as many wait as are in flight, so that no slot becomes free twice in a block.
    """
    return 1 if device.kind == "cpu" else min(DEVICE_BLOCK, load.steps)


def check_equal(
    what: str, otherwise: str, found: list[NDArray[np.float32]], expected: list[NDArray[np.float32]], engines: EngineSet
) -> float:
    """The largest difference between two runs of the same generations. Raises EngineError where it is too large."""
    worst = max(float(np.max(np.abs(one - other))) for one, other in zip(found, expected, strict=True))
    allowed = tolerance_of(engines.decoder.manifest, expected)
    if not worst <= allowed:
        raise EngineError(
            f"{what} differs by {worst:.2e} from the same one {otherwise}, expected at most {allowed:.0e}",
            fix="build the engines again: tickrt-build CONFIG --force",
        )
    return worst


def tolerance_of(decoder: Manifest, latents: list[NDArray[np.float32]]) -> float:
    """How far a generation's latents may depend on who shares its ticks: in low precision, other batch shapes round
    otherwise, and every step adds to it."""
    peak = max(float(np.abs(values).max()) for values in latents)
    return LOW_PRECISION.get(str(decoder.build.get("precision")), 0.0) * peak or VERIFY_TOLERANCE
