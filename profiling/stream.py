"""A steady stream through the production tick path, and the bare engine beside it: what `tickrt-bench` measures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from profiling.allocations import AllocationProbe
from profiling.tick_statistics import Ratio, paired_ratio
from runtime.batch import Event, Failed, Finished, TickRecord
from runtime.config import Deployment
from runtime.device import Device, Replay, Tensor
from runtime.engine import EngineSet, Execution
from runtime.errors import CaptureError, EngineError, TickError
from runtime.loop import TickLoop
from runtime.manifest import Manifest
from runtime.request import Condition, Dcw, GenerationRequest, StepParameters
from runtime.spec import Bundle

VERIFY_STEPS = 4
VERIFY_TOLERANCE = 1e-4
# Of the largest latent, by the decoder's precision.
LOW_PRECISION = {"fp16": 5e-3, "bf16": 5e-2}
TOKENS = 16
BARE = "bare engine"
DEVICE_BLOCK = 16


@dataclass(frozen=True)
class Workload:
    """What the slots do: how many at once, how long, how many steps, with which features."""

    depth: int
    frames: int
    steps: int
    guidance: float = 1.0
    dcw: bool = False
    tokens: int = TOKENS

    @property
    def variant(self) -> str:
        """Name of the features in use, as in the budgets."""
        used = [name for name, on in (("guidance", self.guidance != 1.0), ("dcw", self.dcw)) if on]
        return "+".join(used) or "plain"


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

    def __post_init__(self) -> None:
        self.deployment = at_depth(self.deployment, self.workload.depth)
        self.loop = TickLoop(self.engines, self.bundle, self.deployment, self.device)
        self._requests = [
            _request(self.workload, self.bundle, self.engines, seed) for seed in range(self.workload.depth)
        ]

    def run(self, ticks: int, probe_ticks: int, beside: Callable[[int], Rivals] | None = None) -> Result:
        """Warm up, verify, measure, count. Raises TickError when a tick's result is not what the slots give alone.

        `beside`: rows of a tick -> what else is timed, in turn with the ticks.
        """
        worst = self.verify()
        self._fill()
        rows = self._warm_up()
        block = 1 if self.device.kind == "cpu" else DEVICE_BLOCK
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
            ticks_ms.append(self._time_ticks(records, block))
            for name, rival in rivals.items():
                others_ms[name].append(rival.time_ms(block))
        return records, ticks_ms, others_ms

    def verify(self) -> float:
        """Largest difference between generations that share their ticks and the same generations alone."""
        requests = [replace(request, steps=VERIFY_STEPS, id=uuid4().hex) for request in self._requests]
        self._run_out(requests)
        together = [self.finished.pop(request.id) for request in requests]
        worst = 0.0
        for request, shared in zip(requests, together, strict=True):
            again = replace(request, id=uuid4().hex)
            self._run_out([again])
            worst = max(worst, float(np.max(np.abs(shared - self.finished.pop(again.id)))))
        allowed = tolerance_of(self.engines.decoder.manifest, together)
        if not worst <= allowed:
            raise EngineError(
                f"a generation that shares its ticks differs by {worst:.2e} from the same one alone, "
                f"expected at most {allowed:.0e}",
                fix="build the engines again: tickrt-build CONFIG --force",
            )
        return worst

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

    def _warm_up(self) -> int:
        """Two whole schedules: every shape gets bound, every buffer lent and returned. Gives the rows of a tick."""
        record = self.tick()
        for _ in range(2 * self.workload.steps):
            record = self.tick()
        return record.rows

    def _time_ticks(self, records: list[TickRecord], block: int) -> float:
        """Milliseconds per tick, to the end of what the device does in them."""
        begin_s = time.perf_counter()
        ticked = [self.loop.tick() for _ in range(block)]
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
                record = self.loop.tick()
            counts.append(seen.count - before + self._check_record(record).allocations)
            self._replace_finished()
        return counts, seen.sites()

    def tick(self) -> TickRecord:
        """One tick, and as many more waiting as are finished."""
        record = self._check_record(self.loop.tick())
        self._replace_finished()
        return record

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


def tolerance_of(decoder: Manifest, latents: list[NDArray[np.float32]]) -> float:
    """How far a generation's latents may depend on who shares its ticks: in low precision, other batch shapes round
    otherwise, and every step adds to it."""
    peak = max(float(np.abs(values).max()) for values in latents)
    return LOW_PRECISION.get(str(decoder.build.get("precision")), 0.0) * peak or VERIFY_TOLERANCE


def at_depth(deployment: Deployment, depth: int) -> Deployment:
    """A deployment with so many slots, and room for as many to wait."""
    runtime = deployment.runtime.model_copy(update={"depth": depth, "queue": max(deployment.runtime.queue, depth)})
    return deployment.model_copy(update={"runtime": runtime})


class BareEngine:
    """The decoder on its own buffers, for as many rows as a tick executes, in as few executes as fit.

    Where ticks are captured as graphs, so is this: what is compared is what the tick adds.
    """

    def __init__(
        self, engines: EngineSet, bundle: Bundle, deployment: Deployment, device: Device, load: Workload, rows: int
    ) -> None:
        self._stream = device.main
        limit = deployment.rows_limit(load.frames, load.tokens)
        parts = [min(limit, rows - begin) for begin in range(0, rows, limit)]
        self._executions = [_bind_decoder(engines, bundle, device, load, part) for part in parts]
        self._replay = self._captured(device) if deployment.runtime.capture and device.kind != "cpu" else None

    def time_ms(self, times: int = 1) -> float:
        """Wall time of all rows once, mean of so many in a row."""
        begin_s = time.perf_counter()
        for _ in range(times):
            self._launch()
        self._stream.record().wait()
        return (time.perf_counter() - begin_s) * 1e3 / times

    def close(self) -> None:
        """Let go of the graph, and of what it held. Nothing of it may be pending."""
        if self._replay is not None:
            self._replay.close()
            self._replay = None
        for execution in self._executions:
            execution.release()

    def _launch(self) -> None:
        if self._replay is not None:
            self._replay.launch(self._stream)
        else:
            self._launch_each()

    def _captured(self, device: Device) -> Replay | None:
        for execution in self._executions:
            execution.hold(self._stream)
        try:
            return device.capture(self._stream, self._launch_each)
        except CaptureError:
            return None

    def _launch_each(self) -> None:
        for execution in self._executions:
            execution.launch(self._stream)


def _bind_decoder(engines: EngineSet, bundle: Bundle, device: Device, load: Workload, rows: int) -> Execution:
    decoder, stream, random = engines.decoder, device.main, np.random.default_rng(rows)
    sizes = {"rows": rows, "frames": load.frames, "tokens": load.tokens}
    free = dict(zip(_free_dimensions(engines, bundle), (sizes["rows"], sizes["frames"], sizes["tokens"]), strict=True))
    tensors: dict[str, Tensor] = {}
    for name, info in {**decoder.inputs, **decoder.outputs}.items():
        shape = tuple(size if isinstance(size, int) else free[size] for size in info.shape)
        tensors[name] = device.zeros(shape, info.dtype)
        values = np.ones(shape) if name == bundle.decoder.inputs.condition_mask else random.uniform(0.1, 1.0, shape)
        device.upload(tensors[name], values.astype(info.dtype), stream)
    return decoder.bind(tensors)


def _free_dimensions(engines: EngineSet, bundle: Bundle) -> Iterator[str]:
    """Names that the decoder's graph gives to R, T and L."""
    roles, inputs = bundle.decoder.inputs, engines.decoder.inputs
    yield str(inputs[roles.latents].shape[0])
    yield str(inputs[roles.latents].shape[1])
    yield str(inputs[roles.condition].shape[1])


def _request(load: Workload, bundle: Bundle, engines: EngineSet, seed: int) -> GenerationRequest:
    """A generation of the workload; its condition is random, which costs a tick as much as a prompt."""
    random = np.random.default_rng(seed)
    width = engines.decoder.inputs[bundle.decoder.inputs.condition].shape[2]
    assert isinstance(width, int)
    positive, negative = (random.standard_normal((load.tokens, width), dtype=np.float32) for _ in range(2))
    return GenerationRequest(
        frames=load.frames,
        steps=load.steps,
        seed=seed,
        shift=bundle.sampler.shift,
        conditions=(Condition(positive),),
        negatives=(Condition(negative),) if load.guidance != 1.0 else (),
        context=_unknown(bundle, load.frames),
        parameters=StepParameters(guidance=load.guidance, dcw=Dcw("double", low=0.05, high=0.02) if load.dcw else None),
    )


def _unknown(bundle: Bundle, frames: int) -> NDArray[np.float32] | None:
    """The context that knows nothing: silence, and a mask that says: generate all of it."""
    if bundle.context is None:
        return None
    silence = bundle.silence(frames)
    return np.concatenate([silence, np.ones_like(silence)], axis=1)
