"""Queue and slots: what waits, what is in flight, and what finishes. Knows no model, no device and no latents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from runtime.scheduling.queue import WaitingQueue
from runtime.scheduling.slot import Slot, Submission

_NOTHING: tuple[Slot, ...] = ()


@dataclass
class Scheduler:
    """At most `depth` slots in all; `tick` counts the ticks that were committed. One thread."""

    depth: int
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    slots: dict[str, Slot] = field(default_factory=dict)
    tick: int = 0

    def admit(self) -> Sequence[Slot]:
        """Move waiting submissions into free slots; returns the new slots."""
        if not self.waiting or len(self.slots) >= self.depth:
            return _NOTHING
        admitted = []
        while self.waiting and len(self.slots) < self.depth:
            admitted.append(self._open_slot(self.waiting.pop()))
        return admitted

    def find(self, submission_id: str) -> Submission | None:
        """The slot or the waiting submission with this id."""
        return self.slots.get(submission_id) or self.waiting.get(submission_id)

    def remove(self, submission_id: str) -> Submission | None:
        """Take it out, waiting or in flight; None where it is neither."""
        return self.slots.pop(submission_id, None) or self.waiting.remove(submission_id)

    def commit(self, slots: Sequence[Slot]) -> list[Slot]:
        """These slots have taken their step; returns those that finished with it, no longer in flight.

        A slot that was removed since it was planned is left out.
        """
        finished = []
        for slot in slots:
            if self.slots.get(slot.id) is slot:
                if slot.is_last_step:
                    finished.append(self.slots.pop(slot.id))
                slot.step += 1
        return finished

    def _open_slot(self, submission: Submission) -> Slot:
        """A slot with the lowest free index of its bucket."""
        taken = {slot.index for slot in self.slots.values() if slot.bucket == submission.bucket}
        index = next(index for index in range(self.depth) if index not in taken)
        values = {item.name: getattr(submission, item.name) for item in fields(Submission)}
        slot = self.slots[submission.id] = Slot(**values, index=index)
        return slot
