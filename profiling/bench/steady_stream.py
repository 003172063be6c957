"""A steady stream of generations through the production tick path, timed in turn with the bare engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from profiling.bench.allocation_probe import AllocationProbe
from profiling.bench.statistics import Quartiles, mean_ms, paired_difference, paired_ratio, time_in_turn
from profiling.bench.workload import SCALE, Workload, at_depth, make_request
from runtime.base.errors import CaptureError, EngineError, TickError
from runtime.config.bundle import Bundle
from runtime.config.deployment import HOST_TARGETS, Deployment
from runtime.devices.device import Device, Replay
from runtime.engines.engine import EngineSet, Execution, decoder_shapes
from runtime.engines.loading import settle_kernels
from runtime.engines.manifest import Manifest
from runtime.requests.request import GenerationRequest
from runtime.tick.denoise.bucket import FASTEST, DenoiseParts
from runtime.tick.loop.events import Event, Failed, Finished
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.tick_loop import TickLoop

VERIFY_STEPS = 4
VERIFY_TOLERANCE = 1e-4
# Tolerances as a share of the largest latent, by the decoder's precision.
LOW_PRECISION_TOLERANCE = {"fp16": 5e-3, "bf16": 5e-2, "int8": 0.2}
BASELINE = "bare engine"
DEVICE_BLOCK_TICKS = 16
# Values that the sessions of a workload set in turn.
UPDATES = ({"velocity_scale": 0.99}, {"velocity_scale": 1.01})
Latents = NDArray[np.float32]
Site = tuple[int, int, tuple[str, ...]]


class Competitor(Protocol):
    """A way to compute a velocity for the rows of a tick: the bare engine, PyTorch's decoder."""

    def time_ms(self, times: int = 1) -> float:
        """Wall time of one pass over all rows, mean of `times` in a row, in milliseconds."""


Competitors = Mapping[str, Competitor]


@dataclass(frozen=True)
class Measurement:
    """The samples of one run: n ticks, and n + 1 executes of the bare engine and of each competitor, in turn.

    Each sample is the mean of `block` in a row. allocations: per tick of the probe. sites: (times, bytes, call stack)
    of NumPy's allocations. worst_difference: largest between latents of generations that share ticks and the same
    alone.
    """

    workload: Workload
    ticks_ms: list[float]
    engine_ms: list[float]
    records: list[TickRecord]
    allocations: list[int]
    sites: list[Site]
    worst_difference: float
    block: int = 1
    competitors_ms: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def overhead_ratio(self) -> Quartiles:
        """Tick over bare engine."""
        return paired_ratio(self.ticks_ms, self.engine_ms)

    @property
    def overhead_ms(self) -> Quartiles:
        """Tick less bare engine."""
        return paired_difference(self.ticks_ms, self.engine_ms)

    @property
    def overhead_inside_tick(self) -> float:
        """Tick over the decoder's share of the same tick: steadier, but blind to a decoder that is slower in a tick."""
        shares = np.array([record.engine_ms for record in self.records]).reshape(len(self.ticks_ms), self.block)
        return float(np.median(np.asarray(self.ticks_ms) / shares.mean(axis=1)))

    @property
    def finished_per_s(self) -> float:
        """Generations finished per second of ticking: each of `depth` slots takes `steps` ticks."""
        return self.workload.depth / self.workload.steps / (float(np.mean(self.ticks_ms)) / 1e3)


@dataclass
class SteadyStream:
    """Drives a tick loop with all slots taken; as many generations wait, so that a free slot is taken at once."""

    bundle: Bundle
    deployment: Deployment
    engines: EngineSet
    device: Device
    workload: Workload
    parts: DenoiseParts = FASTEST
    loop: TickLoop = field(init=False)
    finished: dict[str, Latents] = field(default_factory=dict)
    failures: list[TickError] = field(default_factory=list)
    _num_updates: int = 0
    # Steps of slots, which is what a run takes its time for, and how many of them it has.
    _done: int = 0
    _whole: int = 0
    _on_share: Callable[[float], None] = lambda share: None

    def __post_init__(self) -> None:
        self.deployment = at_depth(self.deployment, self.workload.depth)
        self.loop = TickLoop(self.engines, self.bundle, self.deployment, self.device, self.parts)
        self.loop.observers.append(self._count)  # times on the device are taken, too, as in a server
        self.requests = [
            make_request(self.workload, self.bundle, self.engines, index) for index in range(self.workload.depth)
        ]

    @property
    def block(self) -> int:
        """Ticks per sample: several on a GPU, where ticks overlap with the host's work.

        At most the steps of a generation: as many generations wait as are in flight, so no slot is freed twice in one
        block.
        """
        return 1 if self.device.kind == "cpu" else min(DEVICE_BLOCK_TICKS, self.workload.steps)

    def run(
        self,
        ticks: int,
        probe_ticks: int,
        competitors_of: Callable[[int], Competitors] | None = None,
        on_share: Callable[[float], None] = lambda share: None,
    ) -> Measurement:
        """Verify, warm up, time, count allocations.

        `competitors_of` maps a tick's rows to what is timed in turn with the ticks. on_share: called between ticks with
        the share of the work that is done, 0..1. Raises TickError, also where a generation that shares its ticks has
        other latents than alone.
        """
        self._on_share, self._whole = on_share, self._num_steps(ticks, probe_ticks, 2 if competitors_of else 1)
        worst = self.verify()
        rows = self.warm_up()
        baseline = DecoderBaseline(self.engines, self.bundle, self.deployment, self.device, self.workload, rows)
        with closing(baseline):
            competitors = {BASELINE: baseline, **(competitors_of(rows) if competitors_of else {})}
            timers = [partial(competitor.time_ms, self.block) for competitor in competitors.values()]
            for timer in timers:
                timer()
            records: list[TickRecord] = []
            ticks_ms, others_ms = time_in_turn(
                lambda: self.time_ticks(records), timers, -(-ticks // self.block), lambda _: self._sampled()
            )
        allocations, sites = self._count_allocations(probe_ticks)
        times_ms = dict(zip(competitors, others_ms, strict=True))
        engine_ms = times_ms.pop(BASELINE)
        return Measurement(self.workload, ticks_ms, engine_ms, records, allocations, sites, worst, self.block, times_ms)

    def _num_steps(self, ticks: int, probe_ticks: int, competitors: int) -> int:
        """Steps of slots in a run; one of a competitor counts as one."""
        depth, steps = self.workload.depth, self.workload.steps
        filling = max(1, steps // depth) * (depth + 1) // 2
        return depth * (2 * VERIFY_STEPS + filling + 2 * steps + ticks * (1 + competitors) + probe_ticks)

    def _count(self, record: TickRecord) -> None:
        self._done += record.slots

    def _sampled(self) -> None:
        """The competitors have done as many steps as the ticks before them."""
        self._done += self.workload.depth * self.block
        self._show_share()

    def _show_share(self) -> None:
        self._on_share(min(self._done / self._whole, 1.0) if self._whole else 0.0)

    def verify(self) -> float:
        """Largest difference between generations that share their ticks and the same ones alone. Raises EngineError."""
        together = self.play()
        alone = [latents for request in self.requests for latents in self.play([request])]
        return check_equal("a generation that shares its ticks", "alone", together, alone, self.engines)

    def play(self, requests: list[GenerationRequest] | None = None) -> list[Latents]:
        """Latents `[T, C]` of the workload's requests, or of these, with VERIFY_STEPS steps; they share their ticks."""
        short = [replace(request, steps=VERIFY_STEPS, id=uuid4().hex) for request in requests or self.requests]
        self._finish(short)
        return [self.finished.pop(request.id) for request in short]

    def _finish(self, requests: list[GenerationRequest]) -> None:
        """Submit one request per tick, so that they are at different steps, and tick until all are finished."""
        waiting = list(requests)
        while waiting or any(request.id not in self.finished for request in requests):
            if waiting:
                self.loop.submit(waiting.pop(0), self.on_event)
            self.loop.tick()
            self._check()
            self._show_share()

    def _fill(self) -> None:
        """Take all slots, at steps spread evenly over the schedule; then let as many generations wait."""
        for index in range(self.workload.depth):
            self._submit(index)
            for _ in range(max(1, self.workload.steps // self.workload.depth)):
                self._check_record(self.loop.tick())
                self._show_share()
        for index in range(self.workload.depth):
            self._submit(index)

    def warm_up(self) -> int:
        """Take all slots and tick for two schedules, until every shape is bound and every buffer used, where kernels
        are compiled then for two more; returns the rows of a tick."""
        self._fill()
        record = self.tick()
        for _ in range(2):
            for _ in range(2 * self.workload.steps):
                record = self.tick()
            if not settle_kernels(self.deployment.target):
                break
        return record.rows

    def time_ticks(self, records: list[TickRecord]) -> float:
        """Milliseconds per tick, mean of a block, until the device is done; appends the ticks' records."""
        ticked: list[TickRecord | None] = []
        elapsed_ms = mean_ms(lambda: ticked.append(self._tick()), self.block, lambda: self.device.main.record().wait())
        records += [self._check_record(record) for record in ticked]
        self._replace_finished()
        return elapsed_ms

    def _count_allocations(self, ticks: int) -> tuple[list[int], list[Site]]:
        """Per tick: NumPy buffers of 1 KiB or more plus the device's own allocations; and the sites of NumPy's."""
        counts, probe = [], AllocationProbe(trace=True)
        for _ in range(ticks):
            before = probe.count
            with probe:
                record = self._tick()
            counts.append(probe.count - before + self._check_record(record).allocations)
            self._replace_finished()
            self._show_share()
        return counts, probe.sites()

    def tick(self) -> TickRecord:
        """One tick; every finished generation is submitted again."""
        record = self._check_record(self._tick())
        self._replace_finished()
        self._show_share()
        return record

    def _tick(self) -> TickRecord | None:
        """One tick; where the workload has sessions, one of them changes a step parameter before it."""
        if self.workload.sessions:
            self._num_updates += 1
            parameters = UPDATES[self._num_updates // self.workload.sessions % len(UPDATES)]
            self.loop.update(self.workload.session_of(self._num_updates), parameters)
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
        self.loop.submit(replace(self.requests[index], id=request_id), self.on_event)

    def _check(self) -> None:
        if self.failures:
            raise self.failures[0]

    def on_event(self, event: Event) -> None:
        if isinstance(event, Failed):
            self.failures.append(event.error)
        if isinstance(event, Finished):
            self.finished[event.request_id] = event.latents


def check_equal(what: str, other: str, found: list[Latents], expected: list[Latents], engines: EngineSet) -> float:
    """The largest difference between two runs of the same generations. Raises EngineError where it is too large."""
    worst = max(float(np.max(np.abs(one - two))) for one, two in zip(found, expected, strict=True))
    allowed = latents_tolerance(engines.decoder.manifest, expected)
    if not worst <= allowed:
        raise EngineError(
            f"{what} differs by {worst:.2e} from the same one {other}, expected at most {allowed:.0e}",
            fix="build the engines again: tickrt-build CONFIG --force",
        )
    return worst


def latents_tolerance(decoder: Manifest, latents: list[Latents]) -> float:
    """How far latents may depend on the batch: in low precision, a GPU rounds other batch shapes differently, at every
    step."""
    if decoder.target in HOST_TARGETS:
        return VERIFY_TOLERANCE
    peak = max(float(np.abs(values).max()) for values in latents)
    return LOW_PRECISION_TOLERANCE.get(str(decoder.build.get("precision")), 0.0) * peak or VERIFY_TOLERANCE


class DecoderBaseline:
    """The decoder on its own buffers, for the rows R of a tick, in as few executes as the shape ranges allow.

    Where the runtime captures ticks as CUDA graphs, so does this: the difference to a tick is what the tick adds.
    """

    def __init__(
        self, engines: EngineSet, bundle: Bundle, deployment: Deployment, device: Device, load: Workload, rows: int
    ) -> None:
        self._stream = device.main
        limit = deployment.rows_limit(load.frames, load.tokens)
        parts = [min(limit, rows - begin) for begin in range(0, rows, limit)]
        self.executions = [_bind_decoder(engines, bundle, device, load, part) for part in parts]
        self.replay = self._capture(device) if deployment.runtime.capture and device.kind != "cpu" else None

    def time_ms(self, times: int = 1) -> float:
        """Wall time of one pass over all rows, mean of `times` in a row, in milliseconds."""
        return mean_ms(self._launch, times, self._wait)

    def close(self) -> None:
        """Release the graph and the executions; none of them may be pending."""
        if self.replay is not None:
            self.replay.close()
            self.replay = None
        for execution in self.executions:
            execution.release()

    def _launch(self) -> None:
        if self.replay is not None:
            self.replay.launch(self._stream)
        else:
            self._launch_each()

    def _capture(self, device: Device) -> Replay | None:
        try:
            self._warm_up_each()
            return device.capture(self._stream, self._warm_up_each)
        except CaptureError:
            return None

    def _warm_up_each(self) -> None:
        for execution in self.executions:
            execution.warm_up(self._stream)

    def _wait(self) -> None:
        self._stream.record().wait()

    def _launch_each(self) -> None:
        for execution in self.executions:
            execution.launch(self._stream)


def decoder_inputs(engines: EngineSet, bundle: Bundle, load: Workload, rows: int) -> dict[str, NDArray[Any]]:
    """Every input of the decoder by name: random, the same at every call; the mask is 1 everywhere."""
    decoder, roles, random = engines.decoder, bundle.decoder.inputs, np.random.default_rng(rows)
    shapes = decoder_shapes(decoder, roles, rows=rows, frames=load.frames, tokens=load.tokens)
    inputs = {
        name: (np.ones(shapes[name]) if name == roles.condition_mask else random.uniform(0.1, 1.0, shapes[name]))
        .astype(info.dtype)
        for name, info in decoder.inputs.items()
    }  # fmt: skip
    if roles.condition is not None:
        inputs[roles.condition] *= SCALE
    return inputs


def _bind_decoder(engines: EngineSet, bundle: Bundle, device: Device, load: Workload, rows: int) -> Execution:
    decoder, inputs = engines.decoder, decoder_inputs(engines, bundle, load, rows)
    tensors = {name: device.zeros(array.shape, array.dtype) for name, array in inputs.items()}
    for name, array in inputs.items():
        device.upload(tensors[name], array, device.main)
    velocity, shape = bundle.decoder.outputs.velocity, tensors[bundle.decoder.inputs.latents].shape
    tensors[velocity] = device.zeros(shape, decoder.outputs[velocity].dtype)
    return decoder.bind(tensors)
