"""The tick thread: what it alone touches, the scheduler, runners, engines and ticks in flight."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from runtime.base.errors import EngineDeadError, TickError, UnitOfWork
from runtime.base.threads import Heartbeat, Workers
from runtime.devices.device import Event as DeviceEvent
from runtime.engines.engine import EngineSet, check_replaceable
from runtime.engines.launch_cache import LaunchCounts
from runtime.tick.clock import clock_of, phase
from runtime.tick.denoise.bucket import DenoiseParts
from runtime.tick.denoise.runner import DenoiseRunner
from runtime.tick.language.runner import LanguageRunner
from runtime.tick.language.sequence import SequenceWork
from runtime.tick.loop.events import Cancelled, Failed
from runtime.tick.loop.generations import Admitted
from runtime.tick.loop.in_flight import InFlight, TicksInFlight
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.shared import (
    Answers,
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
from runtime.tick.runner import Launched, Runner, TickContext
from runtime.tick.scheduling.scheduler import Scheduler
from runtime.tick.scheduling.slot import Slot

# By runner what it executes in one tick.
Work = list[tuple[Runner[Any], Any]]


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
        self._generations = Admitted(self.scheduler, shared.registry)
        most = context.runtime.ticks_in_flight
        self._in_flight = TicksInFlight(self._stream, shared, self.clock, most, self._generations.quarantine)
        self._snapshots = Answers[Snapshot](self._generations.snapshot)
        self._changes = Answers[Swap | Rehearse | BoundCaptures](self._change)
        self._counted = (context.device.allocations, self.launch_counts())
        self.heartbeat = Heartbeat()
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
            self._in_flight.complete_all()
        self._end()

    def run(self) -> None:
        """Tick until stopped. The one place that catches everything: an unknown error is fatal, and ends all."""
        try:
            while not self._stopped:
                self._shared.before_tick(self.scheduler.is_tick_urgent)
                if self.tick() is None and not self._stopped:
                    self._wait_for_message()
            self._in_flight.complete_all()
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
        return self._complete_due(self._commit(plan, launched))

    @phase("inbox")
    def _drain_inbox(self) -> None:
        for message in self._shared.inbox.drain():
            self._handle(message)

    @phase("schedule")
    def _between_ticks(self) -> None:
        """Answer what was asked about slots and engines; then free slots for urgent generations, and fill free ones."""
        self._snapshots.give()
        self._changes.give()
        self._generations.fill_slots()

    def _plan(self) -> Work | None:
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
        self._in_flight.complete_all()
        return None

    @phase("commit")
    def _commit(self, plan: Work, launched: Sequence[Launched]) -> TickRecord:
        """Advance every slot that was launched; begin to copy out the results of those that finish with this tick."""
        record, ready = self._record(plan), self._stream.record()
        done: list[DeviceEvent] = []
        finished: list[tuple[Slot, NDArray[Any]]] = []
        for (runner, part), part_launched in zip(plan, launched, strict=True):
            for slots, error in part_launched.failed:
                self._generations.fail(slots, error)
            runner.commit(part)
            self._generations.publish_progress(part.slots, self.clock.elapsed_ms)
            self.heartbeat.beat()
            ended = self.scheduler.commit(part.slots)
            results, copied = self._read_out(runner, ended, ready) if ended else ([], ready)
            finished += zip(ended, results, strict=False)
            done.append(copied)
        self.scheduler.tick += 1
        self._snapshots.give()
        self._in_flight.append(InFlight(launched, tuple(done), tuple(finished), record))
        return record

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
    def _complete_due(self, record: TickRecord) -> TickRecord:
        """Complete ticks that are done; wait for the oldest where as many as may be are in flight."""
        completed = self._in_flight.complete_due()
        self._count(record)
        self.clock.end()
        record.marks = tuple(self.clock.marks)
        record.tick_ms = (record.marks[-1][1] - record.started_s) * 1e3
        self._in_flight.observe(completed)
        return record

    def _wait_for_message(self) -> None:
        self.heartbeat.rest()
        # Until any thread sends something: nothing is live.
        message = self._shared.inbox.wait()
        self.heartbeat.beat()
        self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case Submit():
                is_sequence = isinstance(message.work, SequenceWork)
                self._generations.submit(message, self._language if is_sequence else self._denoise)
            case Update(works):
                self._generations.update(works)
            case Cancel(request_id):
                self._generations.remove(Cancelled(request_id), "cancelled")
            case Snapshot():
                self._snapshots.add(message)
            case Swap() | Rehearse() | BoundCaptures():
                self._changes.add(message)
            case Stop():
                self._stopped = True

    def _change(self, message: Swap | Rehearse | BoundCaptures) -> None:
        """Before a tick is planned, when every launched tick is in flight and can be waited for."""
        match message:
            case Swap(engines):
                self._swap(engines)
            case Rehearse():
                if self._language is not None:
                    self._language.rehearse()
            case BoundCaptures():
                for runner in self._runners:
                    runner.bound_captures()

    def _swap(self, engines: EngineSet) -> None:
        """What is launched runs to its end on the old engines, the next tick is launched on the new ones."""
        check_replaceable(self._shared.engines, engines)
        self._in_flight.complete_all()
        old, self._shared.engines = self._shared.engines, engines
        for runner in self._runners:
            runner.use(engines)
        self._generation += 1
        # Nothing uses them any more: runners have the new ones, and what was launched is complete.
        self._beside.submit(old.close)

    def _record(self, plan: Work) -> TickRecord:
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
            frozen=tuple(self._generations.frozen),
            resumed=tuple(self._generations.resumed),
        )

    def _count(self, record: TickRecord) -> None:
        """Note what was allocated, bound, captured and replayed since the tick before."""
        allocations, counts = self._counted
        now = self.launch_counts()
        record.allocations = self._context.device.allocations - allocations
        record.count(now.since(counts))
        self._counted = (self._context.device.allocations, now)

    def _end(self) -> None:
        """End all generations that are still in the loop, and wake what waits for its end."""
        # Threads that submit see this before they look for a place, or end what they have put in themselves.
        self._shared.ended.set()
        self._in_flight.drop()
        self._shared.end_leftovers([*self._snapshots.waiting, *self._changes.waiting])
