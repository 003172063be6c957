"""The tick loop: one thread that owns scheduler, buckets and engines; everybody else talks to it through its inbox."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from runtime.config.bundle import Bundle
from runtime.config.deployment import Deployment
from runtime.denoise.row_buffers import row_multiple
from runtime.denoise.runner import DenoiseRunner
from runtime.devices.device import Device
from runtime.devices.device import Event as DeviceEvent
from runtime.engines.engine import EngineSet, variant_name
from runtime.engines.loading import check_replaceable
from runtime.errors import (
    EngineDeadError,
    EngineError,
    NonFiniteError,
    RequestError,
    ShapeError,
    TickError,
)
from runtime.requests.request import DENOISE_MIN
from runtime.scheduling.batch import BucketBatch, TickBatch
from runtime.scheduling.scheduler import Scheduler
from runtime.scheduling.slot import Slot
from runtime.tick.checkpoint import FrozenSlot
from runtime.tick.client import Cancel, Freeze, LoopClient, Message, Stop, Submit, Swap, Update
from runtime.tick.clock import PhaseClock, clock_of
from runtime.tick.events import Cancelled, Event, Failed, Finished, Progress, Started
from runtime.tick.in_flight import InFlight, Launched, LoopStats
from runtime.tick.record import TickRecord


class TickLoop(LoopClient):
    """Runs ticks: tick() is called from one thread only; what LoopClient has, stats, start and close from any."""

    def __init__(self, engines: EngineSet, bundle: Bundle, deployment: Deployment, device: Device) -> None:
        super().__init__(engines, bundle, deployment)
        self.device = device
        self.observers: list[Callable[[TickRecord], None]] = []
        self._generation = 0
        self._scheduler = Scheduler(
            deployment,
            fold_tokens=bundle.decoder.inputs.condition_mask is not None,
            row_multiple=lambda frames: row_multiple(frames, bundle.latents.channels),
        )
        self._stream = device.main
        self._buckets = DenoiseRunner(device, self._stream, engines, bundle, deployment)
        self._entering: dict[str, Submit] = {}
        self._in_flight: deque[InFlight] = deque()
        self._ticks = 0
        self._last_tick_s = time.monotonic()
        self._clock = clock_of(device)
        self._last_begin: DeviceEvent | None = None
        self._is_idle = True
        self._thread: threading.Thread | None = None
        self._stopped = self._closed = False

    def stats(self) -> LoopStats:
        """Counts as of now."""
        return LoopStats(
            slots_active=len(self._scheduler.slots),
            slots_capacity=self._scheduler.depth,
            queue_depth=max(0, len(self._registry) - len(self._scheduler.slots)),
            ticks=self._ticks,
            outcomes=dict(self._registry.outcomes),
            is_alive=self._fatal is None and not self._ended.is_set(),
            is_idle=self._is_idle,
            is_draining=self._draining.is_set(),
            last_tick_s=self._last_tick_s,
        )

    def start(self) -> None:
        """Run ticks in a thread of their own."""
        self._thread = threading.Thread(target=self.run, name="tick", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the loop; whatever is still inside ends as drained. Engines are closed. Again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._draining.set()
        self._inbox.put(Stop())
        if self._thread is not None:
            self._thread.join()
        else:
            with contextlib.suppress(EngineDeadError):
                self._complete_all()
            self._end()
        with contextlib.suppress(EngineDeadError):
            self._buckets.close()
        self.engines.close()

    # The tick thread.

    def run(self) -> None:
        """Tick until stopped. The one place that catches everything: what is unknown is fatal, and all are told."""
        try:
            while not self._stopped:
                if self.tick() is None and not self._stopped:
                    self._wait_for_message()
            self._complete_all()
        except Exception as error:
            self._fatal = error if isinstance(error, TickError) else EngineDeadError(f"the tick loop failed: {error!r}")
            raise
        finally:
            self._end()

    def tick(self) -> TickRecord | None:
        """One pass: every live slot takes one step. None where nothing is live."""
        clock = self._clock()
        clock.begin("inbox")
        allocations, counts = self._buckets.allocations, self._buckets.launch_counts.copy()
        self._drain_inbox()
        clock.begin("schedule")
        self._admit()
        batch = self._scheduler.schedule()
        if not batch.buckets:
            clock.end()
            self._complete_all()
            return None
        record = self._record(batch)
        launched = self._launch(batch, clock)
        if launched is None:
            clock.end()
            return record
        ready = self._stream.record()
        clock.begin("inbox")
        questions = self._drain_inbox_while_executing()
        clock.begin("commit")
        finished = self._commit(batch, ready)
        for question in questions:
            self._handle(question)
        done = self._buckets.copied() if finished else ready
        self._in_flight.append(InFlight(batch, launched, done, finished, record))
        completed = self._complete_due(clock)
        record.allocations = self._buckets.allocations - allocations
        record.count(self._buckets.launch_counts.since(counts))
        self._tell_progress(batch, clock.elapsed_ms)
        clock.end()
        clock.note(record)
        self._tell_observers(completed)
        return record

    def _complete_due(self, clock: PhaseClock) -> list[TickRecord]:
        """Complete ticks that are done; wait for the oldest where as many as may be are in flight."""
        completed = []
        while self._in_flight and self._must_wait():
            clock.begin("wait")
            self._in_flight[0].done.wait()
            clock.begin("deliver")
            completed.append(self._complete(self._in_flight.popleft()))
        clock.begin("deliver")
        return completed

    def _must_wait(self) -> bool:
        oldest = self._in_flight[0]
        return oldest.done.is_done or len(self._in_flight) >= self.deployment.runtime.ticks_in_flight

    def _launch(self, batch: TickBatch, clock: PhaseClock) -> tuple[Launched, ...] | None:
        """Upload and execute every bucket; an engine's failure ends the batch's generations, not the loop."""
        try:
            clock.begin("upload")
            for bucket in batch.buckets:
                self._buckets[bucket.frames].prepare(bucket)
            clock.begin("launch")
            return tuple(self._launch_bucket(bucket) for bucket in batch.buckets)
        except EngineDeadError:
            raise
        except (EngineError, ShapeError) as error:
            for step in [step for bucket in batch.buckets for step in bucket.slots]:
                self._remove(step.request.id, Failed(step.request.id, error), "engine_error")
            return None

    def _launch_bucket(self, batch: BucketBatch) -> Launched:
        bucket = self._buckets[batch.frames]
        begin, end = bucket.launch(batch)
        return Launched(batch, begin, end, bucket.finite(batch.slot_count))

    def _commit(self, batch: TickBatch, ready: DeviceEvent) -> tuple[tuple[Slot, NDArray[np.float32]], ...]:
        """Advance every slot; begin to copy out those that are finished and free their slot_count."""
        finished: list[tuple[Slot, NDArray[np.float32]]] = []
        for slot in self._scheduler.commit(batch):
            if not finished:
                self._buckets.begin_copies(ready)
            finished.append((slot, self._buckets.read_out(slot.frames, slot.slot_index)))
            self._buckets[slot.frames].state.vacate(slot.slot_index)
        return tuple(finished)

    def _complete(self, tick: InFlight) -> TickRecord:
        """A tick's work is done: quarantine what is not finite, deliver what is finished."""
        self._note_device_times(tick)
        for bucket in tick.buckets:
            for step in bucket.batch.slots:
                if not bucket.finite[step.slot_index]:
                    self._quarantine(step.request.id, step.step)
        delivered = [pair for pair in tick.finished if pair[0].request.id in self._registry]
        for slot, latents in delivered:
            self._registry.leave(Finished(slot.request.id, latents, tick.batch.tick, slot.steps), "ok")
        tick.record.finished = tuple(slot.request.id for slot, _ in delivered)
        return tick.record

    def _note_device_times(self, tick: InFlight) -> None:
        record, first = tick.record, tick.buckets[0].begin
        record.buckets = tuple(bucket.span(self._stream, first) for bucket in tick.buckets)
        record.engine_ms = sum(bucket.ms for bucket in record.buckets)
        if self._last_begin is not None:
            record.device_gap_ms = self._stream.elapsed_ms(self._last_begin, first)
        self._last_begin = first

    def _complete_all(self) -> None:
        """Wait for the ticks in flight; none of them is the one that is being made."""
        while self._in_flight:
            self._in_flight[0].done.wait()
            self._tell_observers([self._complete(self._in_flight.popleft())])

    def _quarantine(self, request_id: str, step: int) -> None:
        error = NonFiniteError(
            f"generation {request_id} became non-finite in step {step}",
            fix="lower guidance, scales or noise; other generations are not affected",
        )
        self._remove(request_id, Failed(request_id, error), "nonfinite")

    def _admit(self) -> None:
        admitted = self._scheduler.admit()
        live = {slot.frames for slot in self._scheduler.slots.values()}
        for slot in admitted:
            state = self._buckets.open(slot.frames, live).state
            message = self._entering.pop(slot.request.id)
            state.admit(slot, message.noise)
            if message.frozen is not None:
                slot.step, slot.has_cached_negative = message.frozen.step, message.frozen.has_cached_negative
                state.restore(slot.slot_index, message.frozen.arrays)
            self._registry.tell(Started(slot.request.id, self._scheduler.tick))

    def _drain_inbox(self) -> None:
        for message in self._inbox.drain():
            self._handle(message)

    def _drain_inbox_while_executing(self) -> list[Freeze | Swap]:
        """Cancels and updates count before the commit; a slot's state and its step agree only after it."""
        questions: list[Freeze | Swap] = []
        for message in self._inbox.drain():
            if isinstance(message, Freeze | Swap):
                questions.append(message)
            else:
                self._handle(message)
        return questions

    def _wait_for_message(self) -> None:
        self._is_idle = True
        message = self._inbox.wait()
        self._is_idle = False
        self._last_tick_s = time.monotonic()
        self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Submit():
                self._take(message)
            case Update(session, parameters):
                for slot in self._scheduler.override(session, parameters):
                    self._buckets[slot.frames].state.set_parameters(slot)
            case Cancel(request_id):
                self._remove(request_id, Cancelled(request_id), "cancelled")
            case Freeze(request_id, reply):
                self._freeze(request_id, reply)
            case Swap(engines, reply):
                self._swap(engines, reply)
            case Stop():
                self._stopped = True

    def _take(self, message: Submit) -> None:
        request = message.request
        if request.denoise <= DENOISE_MIN:
            assert request.start is not None
            self._registry.leave(Finished(request.id, request.start.copy(), self._scheduler.tick, 0), "ok")
        else:
            self._entering[request.id] = message
            self._scheduler.waiting.push(request)

    def _freeze(self, request_id: str, reply: Future[FrozenSlot]) -> None:
        slot = self._scheduler.slots.get(request_id)
        if slot is None:
            reply.set_exception(RequestError(f"no generation {request_id} is in flight", field="id"))
            return
        arrays = self._buckets[slot.frames].state.freeze(slot.slot_index)
        request = slot.request.with_parameters(slot.parameters)
        reply.set_result(FrozenSlot(request, slot.step, slot.has_cached_negative, arrays, self.bundle.name))

    def _swap(self, engines: EngineSet, reply: Future[None]) -> None:
        """What is launched runs to its end on the old engines, the next tick is launched on the new ones."""
        try:
            check_replaceable(self.engines, engines)
        except EngineError as error:
            reply.set_exception(error)
            return
        self._complete_all()
        old, self.engines = self.engines, engines
        self._buckets.use(engines)
        self._generation += 1
        old.close()
        reply.set_result(None)

    def _remove(self, request_id: str, event: Event, outcome: str) -> None:
        slot = self._scheduler.slots.get(request_id)
        if slot is not None:
            self._buckets[slot.frames].state.vacate(slot.slot_index)
        self._scheduler.remove(request_id)
        self._entering.pop(request_id, None)
        self._registry.leave(event, outcome)

    def _tell_progress(self, batch: TickBatch, tick_ms: float) -> None:
        for step in (step for bucket in batch.buckets for step in bucket.slots if not step.is_last):
            self._registry.tell(Progress(step.request.id, step.step + 1, step.steps, batch.tick, tick_ms))
        self._ticks += 1
        self._last_tick_s = time.monotonic()

    def _tell_observers(self, completed: list[TickRecord]) -> None:
        """A record is shown once, when all of it is known: its tick is over, on the host and on the device."""
        for record in completed:
            for observer in tuple(self.observers):
                observer(record)

    def _record(self, batch: TickBatch) -> TickRecord:
        return TickRecord(
            tick=batch.tick,
            slots=batch.slots,
            rows=batch.rows,
            frames=tuple(bucket.frames for bucket in batch.buckets),
            executes=sum(len(bucket.executes) for bucket in batch.buckets),
            variants=tuple(variant_name(bucket.features) for bucket in batch.buckets),
            queue_depth=len(self._scheduler.waiting),
            generation=self._generation,
        )

    def _end(self) -> None:
        """Tell everybody who is still inside, and wake whoever waits for the end."""
        self._ended.set()
        self._in_flight.clear()
        self._tell_leftovers()
