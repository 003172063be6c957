"""Queue and slots: what waits, what is in flight, and what finishes. Knows no model, no device and no latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

from runtime.scheduling.queue import WaitingQueue
from runtime.scheduling.slot import Slot, Submission

_NOTHING: tuple[Slot, ...] = ()


@dataclass
class Scheduler:
    """At most `depth` slots in all, but for runners in `depths`, which have so many of their own, and a queue.

    `tick` counts the ticks that were committed. One thread.
    """

    depth: int
    depths: Mapping[Any, int] = field(default_factory=dict)
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    slots: dict[str, Slot] = field(default_factory=dict)
    tick: int = 0

    def __post_init__(self) -> None:
        self._own = {runner: WaitingQueue() for runner in self.depths}
        self._queues = (self.waiting, *self._own.values())

    def push(self, submission: Submission) -> Submission | None:
        """Let it wait for a slot; returns the submission of the same session that it replaces, if one waited."""
        return self._own.get(submission.runner, self.waiting).push(submission)

    def admit(self) -> Sequence[Slot]:
        """Move waiting submissions into free slots; returns the new slots."""
        if not any(self._queues):
            return _NOTHING
        admitted = self._admit(self.waiting, self.depth - self.num_shared)
        for runner, waiting in self._own.items():
            taken = sum(slot.runner is runner for slot in self.slots.values())
            admitted += self._admit(waiting, self.depths[runner] - taken)
        return admitted

    @property
    def num_shared(self) -> int:
        """Slots that count against `depth`; any thread may ask."""
        if not self._own:
            return len(self.slots)
        return sum(slot.runner not in self._own for slot in tuple(self.slots.values()))

    @property
    def num_waiting(self) -> int:
        """Submissions that wait for a slot."""
        return sum(map(len, self._queues))

    def find(self, submission_id: str) -> Submission | None:
        """The slot or the waiting submission with this id."""
        waiting = (queue.get(submission_id) for queue in self._queues)
        return self.slots.get(submission_id) or next(filter(None, waiting), None)

    def remove(self, submission_id: str) -> Submission | None:
        """Take it out, waiting or in flight; None where it is neither."""
        waiting = (queue.remove(submission_id) for queue in self._queues)
        return self.slots.pop(submission_id, None) or next(filter(None, waiting), None)

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

    def _admit(self, waiting: WaitingQueue, free: int) -> list[Slot]:
        return [self._open_slot(waiting.pop()) for _ in range(min(free, len(waiting)))]

    def _open_slot(self, submission: Submission) -> Slot:
        """A slot with the lowest free index of its bucket."""
        taken = {slot.index for slot in self.slots.values() if slot.bucket == submission.bucket}
        index = next(index for index in count() if index not in taken)
        values = {item.name: getattr(submission, item.name) for item in fields(Submission)}
        slot = self.slots[submission.id] = Slot(**values, index=index)
        return slot
