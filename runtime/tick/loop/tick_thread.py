"""The tick thread: what it alone touches, the scheduler, runners, engines and ticks in flight."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from numpy.typing import NDArray

from runtime.base.errors import (
    EngineDeadError,
    EngineError,
    NonFiniteError,
    RequestError,
    TickError,
    UnitOfWork,
    failure_of,
)
from runtime.base.threads import Heartbeat, Workers
from runtime.devices.device import Event as DeviceEvent
from runtime.engines.context import TickContext
from runtime.engines.engine import EngineSet
from runtime.engines.launch_cache import LaunchCounts
from runtime.engines.replacement import check_replaceable
from runtime.requests.request import DENOISE_MIN, GenerationRequest
from runtime.tick.denoise.bucket import DenoiseParts
from runtime.tick.denoise.runner import DenoiseRunner
from runtime.tick.language.runner import LanguageRunner
from runtime.tick.language.sequence import SequenceWork
from runtime.tick.loop.clock import clock_of, phase
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished, Progress, Started, Updated
from runtime.tick.loop.in_flight import InFlight
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.runner import Launched, Runner
from runtime.tick.loop.shared import (
    BoundCaptures,
    Cancel,
    LoopState,
    Message,
    Rehearse,
    Snapshot,
    Stop,
    Submit,
    Swap,
    Update,
)
from runtime.tick.scheduling.scheduler import Scheduler
from runtime.tick.scheduling.slot import Slot, Submission

Plan = list[tuple[Runner[Any], Any]]


class TickThread:
    """Runs ticks. One thread, but for what others read: `scheduler` (counts), `heartbeat`."""

    def __init__(self, context: TickContext, shared: LoopState, parts: DenoiseParts) -> None:
        self._beside = Workers(1, "graphs")
        context = replace(context, beside=self._beside.submit)
        self._context, self._shared, self._stream = context, shared, context.stream
        self.clock = clock_of(context.device)
        self._denoise = DenoiseRunner(context, self.clock, parts)
        self._language = None
        if context.engines.planner is not None and context.bundle.planner is not None:
            self._language = LanguageRunner(context, context.engines.planner, context.bundle.planner, self.clock)
        # The planner's part comes first: the host waits for it while the device runs the rest of the tick.
        self._runners: tuple[Runner[Any], ...] = (*filter(None, [self._language]), self._denoise)
        own = {} if self._language is None else {self._language: context.runtime.planner_sequences}
        self.scheduler = Scheduler(context.runtime.depth, own, shares_ticks=context.device.kind != "cpu")
        self._in_flight: deque[InFlight] = deque()
        self._snapshots: deque[Snapshot] = deque()
        self._swaps: deque[Swap | Rehearse | BoundCaptures] = deque()
        self._updated: list[str] = []
        self._frozen: list[str] = []
        self._resumed: list[str] = []
        self._counted = (context.device.allocations, self.launch_counts())
        self.heartbeat = Heartbeat()
        self._last_begin: DeviceEvent | None = None
        self._generation = 0
        self._stopped = False

    def launch_counts(self) -> LaunchCounts:
        """What happened to launches so far, of all runners. Any thread may ask."""
        return sum([runner.launch_counts for runner in self._runners], LaunchCounts())

    def close(self) -> None:
        """Release what runners hold. No tick runs any more, in any thread."""
        for runner in self._runners:
            with contextlib.suppress(EngineDeadError):
                runner.close()
        self._beside.shutdown()  # until graphs that are being made are there, and everything has ended

    def end(self) -> None:
        """Complete what is in flight where no thread was started, and end all generations that are in the loop."""
        with contextlib.suppress(EngineDeadError):
            self._complete_all()
        self._end()

    def run(self) -> None:
        """Tick until stopped. The one place that catches everything: an unknown error is fatal, and ends all."""
        try:
            while not self._stopped:
                self._shared.before_tick(self.scheduler.is_tick_urgent)
                if self.tick() is None and not self._stopped:
                    self._wait_for_message()
            self._complete_all()
        except BaseException as error:
            self._shared.fatal = (
                error if isinstance(error, TickError) else EngineDeadError(f"the tick loop failed: {error!r}")
            )
            raise
        finally:
            self._end()

    def tick(self) -> TickRecord | None:
        """One pass: every live slot takes one step. None where nothing is live."""
        self._drain_inbox()
        self._between_ticks()
        plan = self._plan()
        if plan is None:
            return self._idle()
        launched = [runner.launch(part) for runner, part in plan]
        self._drain_inbox()  # a cancel counts before the commit
        self._in_flight.append(self._commit(plan, launched))
        return self._complete_due()

    @phase("inbox")
    def _drain_inbox(self) -> None:
        for message in self._shared.inbox.drain():
            self._handle(message)

    @phase("schedule")
    def _between_ticks(self) -> None:
        """Answer what was asked about slots and engines; then free slots for urgent generations, and fill free ones."""
        self._take_snapshots()
        self._take_swaps()
        self._frozen = [slot.id for slot in self.scheduler.to_freeze() if self._freeze(slot)]
        self._resumed = [slot.id for slot in self.scheduler.admit() if self._admit(slot)]
        self._publish_updates()

    def _plan(self) -> Plan | None:
        """What every runner executes for its live slots; None where there is none."""
        if self._language is not None:
            others = [slot for slot in self.scheduler.slots.values() if slot.runner is not self._language]
            self._language.is_beside = bool(others)
            self._language.is_beside_urgent = any(slot.is_urgent for slot in others)
        plan = [(runner, part) for runner in self._runners if (part := runner.plan()) is not None]
        return plan or None

    def _idle(self) -> TickRecord | None:
        """Nothing is live: complete what is in flight. run() then blocks on the inbox."""
        self.clock.end()
        self._complete_all()
        return None

    @phase("commit")
    def _commit(self, plan: Plan, launched: Sequence[Launched]) -> InFlight:
        """Advance every slot that was launched; begin to copy out the results of those that finish with this tick."""
        record, ready = self._record(plan), self._stream.record()
        done: list[DeviceEvent] = []
        finished: list[tuple[Slot, NDArray[Any]]] = []
        for (runner, part), part_launched in zip(plan, launched, strict=True):
            for slots, error in part_launched.failed:
                self._fail(slots, error)
            runner.commit(part)
            self._publish_progress(part.slots)
            ended = self.scheduler.commit(part.slots)
            results, copied = self._read_out(runner, ended, ready) if ended else ([], ready)
            finished += zip(ended, results, strict=False)
            done.append(copied)
        self.scheduler.tick += 1
        self._take_snapshots()
        return InFlight(launched, tuple(done), tuple(finished), record)

    def _read_out(
        self, runner: Runner[Any], ended: Sequence[Slot], ready: DeviceEvent
    ) -> tuple[list[NDArray[Any]], DeviceEvent]:
        """Results that are being copied out; none where that fails, as where there is no memory for them."""

        def fail(error: TickError) -> None:
            for slot in ended:
                runner.vacate(slot)
                self._shared.registry.leave(Failed(slot.id, error), "engine_error")

        with UnitOfWork("the end of a generation", fail):
            return runner.read_out(ended, ready)
        return [], ready

    @phase("deliver")
    def _complete_due(self) -> TickRecord:
        """Complete ticks that are done; wait for the oldest where as many as may be are in flight."""
        record, completed = self._in_flight[-1].record, []
        bound = self._context.runtime.ticks_in_flight
        while self._in_flight and (self._in_flight[0].is_done or len(self._in_flight) >= bound):
            self._wait(self._in_flight[0])
            completed.append(self._complete(self._in_flight.popleft()))
        self._count(record)
        self.clock.end()
        self.clock.note(record)
        self._observe(completed)
        return record

    def _wait(self, tick: InFlight) -> None:
        if not tick.is_done:
            self.clock.begin("wait")
            # Until the device has run the oldest tick in flight: with two in flight, the next one is launched already.
            tick.wait()
            self.clock.begin("deliver")

    def _complete(self, tick: InFlight) -> TickRecord:
        """A tick's work is done: quarantine what is not finite, deliver what is finished."""
        self._last_begin = tick.note_device_times(self._stream, self._last_begin) if self._shared.observers else None
        for part in tick.launched:
            for slot, step in part.non_finite():
                self._quarantine(slot, step)
        delivered = [(slot, result) for slot, result in tick.finished if self._shared.registry.holds(slot.work.request)]
        for slot, result in delivered:
            self._shared.registry.leave(Finished(slot.id, result, tick.record.tick, slot.steps), "ok")
        tick.record.finished = tuple([slot.id for slot, _ in delivered])
        return tick.record

    def _complete_all(self) -> None:
        """Wait for the ticks in flight."""
        while self._in_flight:
            # Until the device has run everything that was launched.
            self._in_flight[0].wait()
            self._observe([self._complete(self._in_flight.popleft())])

    def _freeze(self, slot: Slot) -> bool:
        """Take a slot from a generation, which is continued later; one that cannot be copied keeps it."""
        try:
            self.scheduler.freeze(slot, slot.runner.freeze(slot))
        except EngineDeadError:
            raise
        except EngineError:
            return False
        return True

    def _admit(self, slot: Slot) -> bool:
        """Let a generation begin, or continue: returns whether it was frozen before."""
        was_frozen = slot.frozen is not None
        if not self._attempt(slot, slot.runner.admit):
            return False
        if not was_frozen:
            self._shared.registry.publish(Started(slot.id, self.scheduler.tick))
        return was_frozen

    def _attempt(self, slot: Slot, call: Callable[[Slot], None]) -> bool:
        """Let a runner take a slot's values; False where it cannot: the generation ends with the error."""
        with UnitOfWork(f"generation {slot.id}", partial(self._fail, (slot,))):
            call(slot)
        return self.scheduler.find(slot.id) is slot

    def _publish_progress(self, slots: Sequence[Slot]) -> None:
        tick, tick_ms = self.scheduler.tick, self.clock.elapsed_ms
        for slot in slots:
            if slot.step + 1 < slot.steps:
                self._shared.registry.publish(Progress(slot.id, slot.step + 1, slot.steps, tick, tick_ms))
        self.heartbeat.beat()

    def _quarantine(self, slot: Slot, step: int) -> None:
        if self._shared.registry.holds(slot.work.request):
            error = NonFiniteError(
                f"generation {slot.id} became non-finite in step {step}",
                fix="lower guidance, scales or noise; other generations are not affected",
            )
            self._remove(slot.id, Failed(slot.id, error), "nonfinite")

    def _fail(self, slots: Sequence[Slot], error: TickError) -> None:
        for slot in slots:
            if self.scheduler.find(slot.id) is slot:
                self._remove(slot.id, Failed(slot.id, error), "engine_error")

    def _remove(self, request_id: str, event: Event, outcome: str) -> None:
        slot = self.scheduler.remove(request_id)
        if isinstance(slot, Slot):
            slot.runner.vacate(slot)
        self._shared.registry.leave(event, outcome)

    def _wait_for_message(self) -> None:
        self.heartbeat.rest()
        # Until any thread sends something: nothing is live.
        message = self._shared.inbox.wait()
        self.heartbeat.beat()
        self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Submit():
                self._take(message)
            case Update(works):
                for request_id, work in works.items():
                    self._update(request_id, work)
            case Cancel(request_id):
                self._remove(request_id, Cancelled(request_id), "cancelled")
            case Snapshot():
                self._snapshots.append(message)
            case Swap() | Rehearse() | BoundCaptures():
                self._swaps.append(message)
            case Stop():
                self._stopped = True

    def _take(self, message: Submit) -> None:
        request, work = message.request, message.work
        if not self._shared.registry.holds(request):
            return  # cancelled before it arrived
        if isinstance(request, GenerationRequest) and request.denoise <= DENOISE_MIN:
            assert request.start is not None
            self._shared.registry.leave(Finished(request.id, request.start.copy(), self.scheduler.tick, 0), "ok")
            return
        submission = Submission(
            id=request.id,
            runner=self._language if isinstance(work, SequenceWork) else self._denoise,
            work=work,
            bucket=work.bucket,
            steps=work.steps,
            session=request.session,
            client=request.client,
            is_urgent=request.is_urgent,
        )
        replaced = self.scheduler.push(submission)
        if replaced is not None:
            self._shared.registry.leave(Cancelled(replaced.id, replaced_by=request.id), "replaced")

    def _update(self, request_id: str, work: Any) -> None:
        submission = self.scheduler.find(request_id)
        if submission is None:
            return
        submission.work = work
        self._updated.append(request_id)
        if isinstance(submission, Slot):
            self._attempt(submission, submission.runner.update)

    def _publish_updates(self) -> None:
        """Before a tick is planned: a slot that took its last step since its update has left."""
        for request_id in self._updated:
            if self.scheduler.find(request_id) is not None:
                self._shared.registry.publish(Updated(request_id, self.scheduler.tick))
        self._updated.clear()

    def _take_snapshots(self) -> None:
        """Between two ticks, when a slot's state and its step agree."""
        while self._snapshots:
            message = self._snapshots.popleft()
            self._answer(message.reply, partial(self._snapshot, message.request_id))

    def _take_swaps(self) -> None:
        """Before a tick is planned, when every launched tick is in flight and can be waited for."""
        while self._swaps:
            message = self._swaps.popleft()
            if isinstance(message, Swap):
                self._answer(message.reply, partial(self._swap, message.engines))
            else:
                work = self._rehearse if isinstance(message, Rehearse) else self._bound_captures
                self._answer(message.reply, work)

    def _answer(self, reply: Future[Any], work: Callable[[], Any]) -> None:
        """Carry out what was asked for; its error is that of the answer alone, unless no tick can run any more."""
        try:
            reply.set_result(work())
        except BaseException as error:
            reply.set_exception(failure_of(error, "what was asked of the tick loop"))
            if isinstance(error, EngineDeadError):
                raise

    def _rehearse(self) -> None:
        if self._language is not None:
            self._language.rehearse()

    def _bound_captures(self) -> None:
        for runner in self._runners:
            runner.bound_captures()

    def _snapshot(self, request_id: str) -> Any:
        slot = self.scheduler.find(request_id)
        if slot is None or not (isinstance(slot, Slot) or slot.frozen):
            raise RequestError(f"no generation {request_id} is in flight", field="id")
        return slot.runner.snapshot(slot)

    def _swap(self, engines: EngineSet) -> None:
        """What is launched runs to its end on the old engines, the next tick is launched on the new ones."""
        check_replaceable(self._shared.engines, engines)
        self._complete_all()
        old, self._shared.engines = self._shared.engines, engines
        for runner in self._runners:
            runner.use(engines)
        self._generation += 1
        # Nothing uses them any more: runners have the new ones, and what was launched is complete.
        self._beside.submit(old.close)

    def _record(self, plan: Plan) -> TickRecord:
        parts = [part for _, part in plan]
        return TickRecord(
            tick=self.scheduler.tick,
            slots=sum([len(part.slots) for part in parts]),
            rows=sum([part.num_rows for part in parts]),
            frames=tuple([frames for part in parts for frames in part.frames]),
            executes=sum([part.num_executes for part in parts]),
            variants=tuple([variant for part in parts for variant in part.variants]),
            queue_depth=self.scheduler.num_waiting,
            generation=self._generation,
            frozen=tuple(self._frozen),
            resumed=tuple(self._resumed),
        )

    def _count(self, record: TickRecord) -> None:
        """Note what was allocated, bound, captured and replayed since the tick before."""
        allocations, counts = self._counted
        now = self.launch_counts()
        record.allocations = self._context.device.allocations - allocations
        record.count(now.since(counts))
        self._counted = (self._context.device.allocations, now)

    def _observe(self, completed: Sequence[TickRecord]) -> None:
        """Pass on the records of ticks that are over, on the host and on the device."""
        for record in completed:
            for observer in tuple(self._shared.observers):
                observer(record)

    def _end(self) -> None:
        """End all generations that are still in the loop, and wake what waits for its end."""
        # Threads that submit see this before they look for a place, or end what they have put in themselves.
        self._shared.ended.set()
        self._in_flight.clear()
        self._shared.end_leftovers([*self._snapshots, *self._swaps])
