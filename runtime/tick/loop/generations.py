"""Generations and sequences on their way through the loop: they wait, take a slot, and end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from runtime.base.errors import EngineDeadError, EngineError, NonFiniteError, RequestError, TickError, UnitOfWork
from runtime.requests.request import DENOISE_MIN, GenerationRequest
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished, Progress, Started, Updated
from runtime.tick.loop.registry import Registry
from runtime.tick.loop.shared import Snapshot, Submit
from runtime.tick.runner import Runner
from runtime.tick.scheduling.scheduler import Scheduler
from runtime.tick.scheduling.slot import Slot, Submission


class Admitted:
    """Moves generations and sequences between the scheduler and their runners, and tells their listeners. One thread.

    frozen, resumed: the ids of those that lost their slot, or have one again, since the last tick.
    """

    def __init__(self, scheduler: Scheduler, registry: Registry) -> None:
        self._scheduler, self._registry = scheduler, registry
        self._updated: list[str] = []
        self.frozen: list[str] = []
        self.resumed: list[str] = []

    def submit(self, message: Submit, runner: Runner[Any] | None) -> None:
        """Let what was submitted wait for a slot of its runner."""
        request, work = message.request, message.work
        if not self._registry.holds(request):
            return  # cancelled before it arrived
        if isinstance(request, GenerationRequest) and request.denoise <= DENOISE_MIN:
            assert request.start is not None
            self._registry.leave(Finished(request.id, request.start.copy(), self._scheduler.tick, 0), "ok")
            return
        submission = Submission(
            id=request.id,
            runner=runner,
            work=work,
            bucket=work.bucket,
            steps=work.steps,
            session=request.session,
            client=request.client,
            is_urgent=request.is_urgent,
        )
        replaced = self._scheduler.push(submission)
        if replaced is not None:
            self._registry.leave(Cancelled(replaced.id, replaced_by=request.id), "replaced")

    def update(self, works: Mapping[str, Any]) -> None:
        """Take new step parameters, by generation; those that have left are passed over."""
        for request_id, work in works.items():
            submission = self._scheduler.find(request_id)
            if submission is None:
                continue
            submission.work = work
            self._updated.append(request_id)
            if isinstance(submission, Slot):
                self._attempt(submission, submission.runner.update)

    def fill_slots(self) -> None:
        """Free slots for urgent generations, and fill free ones; then tell what was updated."""
        self.frozen = [slot.id for slot in self._scheduler.to_freeze() if self._freeze(slot)]
        self.resumed = [slot.id for slot in self._scheduler.admit() if self._admit(slot)]
        # Before a tick is planned: a slot that took its last step since its update has left.
        for request_id in self._updated:
            if self._scheduler.find(request_id) is not None:
                self._registry.publish(Updated(request_id, self._scheduler.tick))
        self._updated.clear()

    def _freeze(self, slot: Slot) -> bool:
        """Take a slot from a generation, which is continued later; one that cannot be copied keeps it."""
        try:
            self._scheduler.freeze(slot, slot.runner.freeze(slot))
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
            self._registry.publish(Started(slot.id, self._scheduler.tick))
        return was_frozen

    def _attempt(self, slot: Slot, call: Callable[[Slot], None]) -> bool:
        """Let a runner take a slot's values; False where it cannot: the generation ends with the error."""
        with UnitOfWork(f"generation {slot.id}", partial(self.fail, (slot,))):
            call(slot)
        return self._scheduler.find(slot.id) is slot

    def publish_progress(self, slots: Sequence[Slot], tick_ms: float) -> None:
        """Tell of a step that is not the last one."""
        for slot in slots:
            if slot.step + 1 < slot.steps:
                self._registry.publish(Progress(slot.id, slot.step + 1, slot.steps, self._scheduler.tick, tick_ms))

    def quarantine(self, slot: Slot, step: int) -> None:
        """End a generation whose state is not finite since this step."""
        if self._registry.holds(slot.work.request):
            error = NonFiniteError(
                f"generation {slot.id} became non-finite in step {step}",
                fix="lower guidance, scales or noise; other generations are not affected",
            )
            self.remove(Failed(slot.id, error), "nonfinite")

    def fail(self, slots: Sequence[Slot], error: TickError) -> None:
        """End those that are still in their slots with an error."""
        for slot in slots:
            if self._scheduler.find(slot.id) is slot:
                self.remove(Failed(slot.id, error), "engine_error")

    def remove(self, event: Event, outcome: str) -> None:
        """End a generation wherever it is, with its terminal event."""
        slot = self._scheduler.remove(event.request_id)
        if isinstance(slot, Slot):
            slot.runner.vacate(slot)
        self._registry.leave(event, outcome)

    def snapshot(self, message: Snapshot) -> Any:
        """Copies of what is in flight or frozen. Raises RequestError where it is neither."""
        slot = self._scheduler.find(message.request_id)
        if slot is None or not (isinstance(slot, Slot) or slot.frozen):
            raise RequestError(f"no generation {message.request_id} is in flight", field="id")
        return slot.runner.snapshot(slot)
