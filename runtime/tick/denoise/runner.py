"""The flow model's part of a tick: one bucket per length T, launched together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from runtime.base.errors import EngineNotBuiltError
from runtime.devices.device import Event, Stream
from runtime.devices.memory import ArrayPool
from runtime.engines.adapters import Adapter
from runtime.engines.engine import EngineSet, condition_width, variant_name
from runtime.engines.launch_cache import Launch, LaunchCounts
from runtime.requests.curves import Array
from runtime.tick.clock import PhaseClock
from runtime.tick.denoise.bucket import FASTEST, DenoiseParts, LengthBucket
from runtime.tick.denoise.prepared import PreparedGeneration, VelocityParts
from runtime.tick.denoise.row_buffers import AdapterFactors
from runtime.tick.denoise.row_layout import RowLayout
from runtime.tick.denoise.slot_fields import CONTEXT_RING, RING, STEP_FEATURES, step_inputs
from runtime.tick.runner import BucketSpan, LaunchFailures, TickContext
from runtime.tick.scheduling.slot import Slot, Submission

MAX_IDLE_BUCKETS = 4


@dataclass(frozen=True, slots=True, eq=False)
class DenoisePart:
    """What one tick denoises: a layout per length, shortest first."""

    layouts: tuple[RowLayout, ...]
    slots: tuple[Slot, ...]
    frames: tuple[int, ...]
    variants: tuple[str, ...]
    adapters: frozenset[Adapter]
    num_rows: int
    num_executes: int


@dataclass(frozen=True, slots=True, eq=False)
class BucketLaunch:
    """A bucket's part of a launched tick: events around the decoder, and where its finite flags `[S]` arrive."""

    layout: RowLayout
    steps: tuple[int, ...]
    begin: Event
    end: Event
    finite: memoryview

    def span(self, stream: Stream, first: Event) -> BucketSpan:
        """When it ran, from `first` on; its events are done."""
        layout = self.layout
        begin_ms = 0.0 if first is self.begin else stream.elapsed_ms(first, self.begin)
        ms = stream.elapsed_ms(self.begin, self.end)
        return BucketSpan(layout.frames, len(layout.slots), layout.num_rows, len(layout.executes), begin_ms, ms)


@dataclass(frozen=True, slots=True, eq=False)
class DenoiseLaunch:
    """A launched part: the buckets that were launched, and the slots of the others, with the errors."""

    buckets: tuple[BucketLaunch, ...]
    failed: LaunchFailures

    @property
    def begin(self) -> Event | None:
        """Before the first execute; None where there is none."""
        return self.buckets[0].begin if self.buckets else None

    def spans(self, stream: Stream, first: Event) -> list[BucketSpan]:
        """When each bucket's executes ran, from `first` on. Valid when the tick is done."""
        return [bucket.span(stream, first) for bucket in self.buckets]

    def non_finite(self) -> Iterator[tuple[Slot, int]]:
        """Slots whose latents became NaN or infinite, with the step they took. Valid when the tick is done."""
        for bucket in self.buckets:
            if 0 in bytes(bucket.finite):
                for slot, step in zip(bucket.layout.slots, bucket.steps, strict=True):
                    if not bucket.finite[slot.index]:
                        yield slot, step


@dataclass(frozen=True, slots=True, eq=False)
class FrozenStates:
    """What a slot is continued from: its states `[T, C]`, which are on the host once `copied` is done."""

    states: Mapping[str, Array]
    has_cached_negative: bool
    previous: VelocityParts | None
    copied: Event

    def arrived(self) -> Mapping[str, Array]:
        """The states. Waits until they are copied."""
        self.copied.wait()
        return self.states

    def continued(self, work: PreparedGeneration) -> PreparedGeneration:
        """`work` from where it was frozen. Waits until the states are copied."""
        return replace(
            work,
            states=self.arrived(),
            has_cached_negative=self.has_cached_negative,
            previous=self.previous,
        )


class DenoiseRunner:
    """Opens a bucket when its length is first needed; keeps a few empty ones for the next generation.

    Finished latents leave on a second stream, while the next tick executes. One thread. Raises EngineNotBuiltError
    where the step engines are of a version that had fewer features.
    """

    def __init__(self, context: TickContext, clock: PhaseClock, parts: DenoiseParts = FASTEST) -> None:
        _check_variants(context)
        device, stream, adapted, runtime = context.device, context.stream, context.engines.adapted, context.runtime
        self._context, self._stream, self._clock, self._parts = context, stream, clock, parts
        self._copies = device.stream()
        limit, captures = runtime.captured_graphs, context.can_capture
        self._launches = parts.launches(device, stream, limit, captures=captures, beside=context.beside)
        self._factors = None
        if adapted is not None and runtime.adapter_rank:
            self._factors = AdapterFactors(device, stream, adapted, runtime.adapter_rank)
        # Draws noise while the device runs; the tick thread waits for it in StepNoise.write.
        self._noise_worker = ThreadPoolExecutor(1, "step-noise")
        device.reserve_uploads(_upload_bytes(context))
        self._buckets: dict[int, LengthBucket] = {}
        self._pools: dict[int, ArrayPool] = {}
        self._part: DenoisePart | None = None

    def admit(self, slot: Slot) -> None:
        """Copy what was prepared for a slot, or what it was frozen with, into the bucket of its length."""
        if slot.frozen is not None:
            slot.work, slot.frozen = slot.frozen.continued(slot.work), None
        self.open(slot.bucket).admit(slot)

    def freeze(self, slot: Slot) -> FrozenStates:
        """Begin to copy out what a slot is continued from, and empty it: see admit. Raises OutOfMemoryError."""
        frozen = self._copy_out(slot)
        self._buckets[slot.bucket].vacate(slot)
        return frozen

    def update(self, slot: Slot) -> None:
        """Write a slot's new step parameters; they hold from the next launch on."""
        self._buckets[slot.bucket].update(slot)

    def vacate(self, slot: Slot) -> None:
        """Empty a slot that ended early; nothing happens where its bucket could not be opened."""
        if slot.bucket in self._buckets:
            self._buckets[slot.bucket].vacate(slot)

    def plan(self) -> DenoisePart | None:
        """What the next tick denoises; None where no slot is live. Unchanged, the same object."""
        layouts = tuple([self._buckets[frames].layout() for frames in sorted(self._buckets) if self._buckets[frames]])
        if self._part is None or self._part.layouts != layouts:
            self._part = _part(layouts)
        return self._part if layouts else None

    def launch(self, part: DenoisePart) -> DenoiseLaunch:
        """Upload what changed and put the part's executions on the stream. Raises EngineDeadError."""
        stream, failed = self._stream, LaunchFailures()
        ready: list[tuple[RowLayout, LengthBucket, Launch]] = []
        launched: list[BucketLaunch] = []
        self._clock.begin("upload")
        for layout in part.layouts:
            with failed.of(layout.slots):
                if layout.adapters and self._factors is not None:
                    self._factors.hold(part.adapters)
                bucket = self._buckets[layout.frames]
                ready.append((layout, bucket, bucket.prepare(layout)))
        self._clock.begin("launch")
        for layout, bucket, launch in ready:
            with failed.of(layout.slots):
                started_s = perf_counter()
                for call in launch.before:
                    call(stream)
                begin = stream.record()
                for call in launch.decoder:
                    call(stream)
                end = stream.record()
                for call in launch.after:
                    call(stream)
                self._launches.note(launch, perf_counter() - started_s)
                finite = bucket.launched(layout, launch)
                launched.append(BucketLaunch(layout, tuple([s.step for s in layout.slots]), begin, end, finite))
        for slots, _ in failed:
            self._buckets[slots[0].bucket].forget_launches()
        return DenoiseLaunch(tuple(launched), failed)

    def commit(self, part: DenoisePart) -> None:
        """Every slot of a launched part has taken its step; buckets without any slot left take none."""
        for layout in part.layouts:
            if self._buckets[layout.frames]:
                self._buckets[layout.frames].advance()

    def read_out(self, slots: Sequence[Slot], ready: Event) -> tuple[list[Array], Event]:
        """Begin to copy out the latents `[T, C]` of finished slots, as of `ready`, and empty the slots.

        The arrays belong to the receiver and are valid once the returned event is done. Raises EngineError: no slot is
        empty then.
        """
        # The copies, on the device, wait for the tick that wrote the latents; no thread does.
        self._copies.wait(ready)
        results = [self._pools[slot.bucket].lend() for slot in slots]  # [T, C] each
        for slot, latents in zip(slots, results, strict=True):
            self._buckets[slot.bucket].state.read_out(slot.index, {"latents": latents}, self._copies)
        copied = self._copies.record()
        for slot in slots:
            self._buckets[slot.bucket].vacate(slot)
        return results, copied

    def snapshot(self, slot: Submission) -> Mapping[str, Array]:
        """Copies of the states `[T, C]` of a slot, or of what is frozen. Waits for the ticks in flight."""
        frozen = self._copy_out(slot) if isinstance(slot, Slot) else slot.frozen
        return {name: array.copy() for name, array in frozen.arrived().items()}  # [T, C] each

    def open(self, frames: int, live: Collection[int] = ()) -> LengthBucket:
        """The bucket of a length; a new one replaces an empty one once many are empty."""
        if frames not in self._buckets:
            idle = [length for length, bucket in self._buckets.items() if not bucket and length not in live]
            if len(idle) >= MAX_IDLE_BUCKETS:
                self._close(idle[0])
            self._pools[frames] = self._pool(frames)
            self._buckets[frames] = LengthBucket(
                self._context, frames, self._launches, self._noise_worker, self._factors, self._parts
            )
        return self._buckets[frames]

    def use(self, engines: EngineSet) -> None:
        """Run on other engines of the same tensors from the next tick on."""
        self._context = replace(self._context, engines=engines)
        for bucket in self._buckets.values():
            bucket.use(engines)

    def close(self) -> None:
        """Wait for what is pending and close everything that is bound. Raises EngineDeadError."""
        # Until the noise that is being drawn is there.
        self._noise_worker.shutdown()
        self._wait()
        self._launches.close()

    def bound_captures(self) -> None:
        """Capture what pays for it from now on."""
        self._launches.bound_captures()

    @property
    def launch_counts(self) -> LaunchCounts:
        """What happened to launches so far."""
        return self._launches.counts

    def _copy_out(self, slot: Slot) -> FrozenStates:
        """Begin to copy a slot's states, as of the last tick that was launched, on the second stream."""
        bucket, pool = self._buckets[slot.bucket], self._pools[slot.bucket]
        # The copies, on the device, wait for the ticks that were launched; no thread does.
        self._copies.wait(self._stream.record())
        arrays = {name: pool.lend() for name in bucket.state.names}  # [T, C] each
        bucket.state.read_out(slot.index, arrays, self._copies)
        live = bucket.live(slot)
        return FrozenStates(arrays, live.has_cached_negative, live.previous, self._copies.record())

    def _close(self, frames: int) -> None:
        """Close a bucket. Its memory must not be used by others before what is pending has run: this waits."""
        self._wait()
        self._buckets.pop(frames).forget_launches()
        del self._pools[frames]

    def _wait(self) -> None:
        # The tick thread waits until all that was launched has run.
        self._stream.record().wait()
        self._copies.record().wait()

    def _pool(self, frames: int) -> ArrayPool:
        device, shape = self._context.device, (frames, self._context.bundle.latents.channels)
        return ArrayPool(lambda: device.staging(shape, np.float32), 2 * self._context.runtime.depth)


def _check_variants(context: TickContext) -> None:
    """A feature that no engine has would fail all generations of the tick in which it is first used; an input that one
    does not read would be without effect.
    """
    steps, rule, fix = context.engines.steps, context.bundle.guidance.rule, f"tickrt-build {context.deployment.path}"
    earlier = "they were built by an earlier version"
    if not any(variant >= STEP_FEATURES for variant in steps):
        raise EngineNotBuiltError(f"no step engine has all of {variant_name(STEP_FEATURES)}: {earlier}", fix=fix)
    rings = {RING} if context.bundle.decoder.inputs.context is None else {RING, CONTEXT_RING}
    if lacking := rings - context.engines.rows.keys():
        names = ", ".join(sorted(f"rows.{variant_name(variant)}" for variant in lacking))
        raise EngineNotBuiltError(f"there is no engine {names}: {earlier}", fix=fix)
    for variant, engine in steps.items():
        if missing := sorted({tensor.name for tensor in step_inputs(variant, rule)} - engine.inputs.keys()):
            raise EngineNotBuiltError(f"step engines do not read {', '.join(missing)}: {earlier}", fix=fix)


def _part(layouts: tuple[RowLayout, ...]) -> DenoisePart:
    return DenoisePart(
        layouts=layouts,
        slots=tuple(slot for layout in layouts for slot in layout.slots),
        frames=tuple(layout.frames for layout in layouts),
        variants=tuple(variant_name(layout.features) for layout in layouts),
        adapters=frozenset[Adapter]().union(*[layout.adapters for layout in layouts]),
        num_rows=sum(layout.num_rows for layout in layouts),
        num_executes=sum(len(layout.executes) for layout in layouts),
    )


def _upload_bytes(context: TickContext) -> int:
    """What all slots upload that join in one tick, at the largest T: latents, context, noise, and a usual condition."""
    bundle, deployment, decoder = context.bundle, context.deployment, context.engines.decoder
    frames = min(bundle.latents.canvas_frames, max(shape.frames.max for shape in deployment.shapes))
    channels = 2 * bundle.latents.channels + bundle.context_channels
    tokens = max(shape.tokens.opt for shape in deployment.shapes) * condition_width(decoder, bundle.decoder.inputs)
    return 4 * deployment.runtime.depth * (frames * channels + tokens)
