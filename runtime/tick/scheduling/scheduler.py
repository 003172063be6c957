"""Queue and slots: what waits, what is in flight, and what finishes. Knows no model, no device and no latents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any

from runtime.tick.scheduling.slot import Slot, Submission, WaitingQueue

_NOTHING: tuple[Slot, ...] = ()


@dataclass
class Scheduler:
    """At most `depth` slots in all, but for runners in `depths`, which have so many of their own, and a queue.

    Urgent submissions that find no shared slot get those that others took last, which are `frozen` then. Free slots go
    to urgent submissions first, then to frozen ones, the last frozen first, since it began before the others; then to
    the rest. But one that has been frozen for as many ticks as it has steps comes before all of them, and is not frozen
    again: its time in flight at most doubles, but for one wait for a slot. `tick` counts the ticks that were
    committed. One thread.

    shares_ticks: false where an execute takes as long as it has rows. While urgent ones are in flight, others are
    frozen then, by the same rules, and of those that wait one gets a slot after as many ticks as it has steps.
    """

    depth: int
    depths: Mapping[Any, int] = field(default_factory=dict)
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    slots: dict[str, Slot] = field(default_factory=dict)
    frozen: dict[str, Submission] = field(default_factory=dict)
    tick: int = 0
    shares_ticks: bool = True
    _ticks_held: int = 0

    def __post_init__(self) -> None:
        self._own = {runner: WaitingQueue() for runner in self.depths}
        self._queues = (self.waiting, *self._own.values())

    def push(self, submission: Submission) -> Submission | None:
        """Let it wait for a slot; returns the submission of the same session that it replaces, if one waited."""
        return self._own.get(submission.runner, self.waiting).push(submission)

    def to_freeze(self) -> Sequence[Slot]:
        """The slots that urgent submissions need now, the newest first: `freeze` them before `admit`."""
        if not self.is_urgent_time:
            return _NOTHING
        if not self.shares_ticks:
            return self._newest()
        # Overdue frozen ones take their places before urgent ones do.
        free = self.depth - self.num_shared - sum(not each.may_freeze for each in self.frozen.values())
        missing = max(0, self.waiting.num_urgent - max(0, free))
        return self._newest()[:missing]

    def _newest(self) -> list[Slot]:
        """Slots that may be frozen, the newest first."""
        return [slot for slot in reversed(self.slots.values()) if slot.may_freeze and slot.runner not in self._own]

    @property
    def is_urgent_time(self) -> bool:
        """Whether urgent submissions need what others have: a slot, or the ticks."""
        if self.waiting.num_urgent:
            return True
        return not self.shares_ticks and any(slot.is_urgent for slot in self.slots.values())

    @property
    def is_tick_urgent(self) -> bool | None:
        """Whether the next tick is for urgent ones; None where it is for all, or for none."""
        if self.shares_ticks or not (self.num_shared or self.num_waiting):
            return None
        return self.is_urgent_time

    def freeze(self, slot: Slot, state: Any) -> None:
        """Take a slot's place; it is continued from `state` when there is one again."""
        del self.slots[slot.id]
        self.frozen[slot.id] = Submission(**{**_values(slot), "frozen": state})

    def admit(self) -> Sequence[Slot]:
        """Move frozen and waiting submissions into free slots; returns the new slots."""
        if not self.frozen and not any(self._queues):
            return _NOTHING
        admitted = []
        while self.num_shared < self.depth and (submission := self._next_shared()) is not None:
            admitted.append(self._open_slot(submission))
        for runner, waiting in self._own.items():
            free = self.depths[runner] - sum(slot.runner is runner for slot in self.slots.values())
            admitted += [self._open_slot(waiting.pop()) for _ in range(min(free, len(waiting)))]
        for frozen in self.frozen.values():
            frozen.ticks_frozen += 1
        self._ticks_held = self._ticks_held + 1 if self.is_urgent_time else 0
        return admitted

    @property
    def num_shared(self) -> int:
        """Slots that count against `depth`; any thread may ask."""
        if not self._own:
            return len(self.slots)
        # Of a copy: the thread of the ticks may change them meanwhile.
        return sum(slot.runner not in self._own for slot in tuple(self.slots.values()))

    @property
    def num_waiting(self) -> int:
        """Submissions that wait for a slot, also frozen ones."""
        return len(self.frozen) + sum(map(len, self._queues))

    def find(self, submission_id: str) -> Submission | None:
        """The slot, or the frozen or waiting submission with this id."""
        waiting = (queue.get(submission_id) for queue in self._queues)
        return self.slots.get(submission_id) or self.frozen.get(submission_id) or next(filter(None, waiting), None)

    def remove(self, submission_id: str) -> Submission | None:
        """Take it out, waiting, frozen or in flight; None where it is none of these."""
        waiting = (queue.remove(submission_id) for queue in self._queues)
        found = self.slots.pop(submission_id, None) or self.frozen.pop(submission_id, None)
        return found or next(filter(None, waiting), None)

    def commit(self, slots: Sequence[Slot]) -> list[Slot]:
        """These slots have taken their step; returns those that finished with it, no longer in flight.

        A slot that was removed since it was planned is left out.
        """
        finished = []
        for slot in slots:
            # By identity: a later submission may have the same id.
            if self.slots.get(slot.id) is slot:
                if slot.is_last_step:
                    finished.append(self.slots.pop(slot.id))
                slot.step += 1
        return finished

    def _next_shared(self) -> Submission | None:
        """What gets the next free shared slot, taken out of where it waits; None where nothing does."""
        overdue = next((each for each in self.frozen.values() if not each.may_freeze), None)
        if overdue is not None:
            return self.frozen.pop(overdue.id)
        if self.waiting.num_urgent:
            return self.waiting.pop()
        if self.is_urgent_time:
            return self._next_held()
        if self.frozen:
            return self.frozen.popitem()[1]
        return self.waiting.pop() if self.waiting else None

    def _next_held(self) -> Submission | None:
        """Of those that urgent ones in flight keep waiting, the next whose time has come; it is not frozen again."""
        if not self.waiting or self._ticks_held < next(iter(self.waiting)).steps:
            return None
        self._ticks_held = 0
        submission = self.waiting.pop()
        submission.ticks_frozen = submission.steps
        return submission

    def _open_slot(self, submission: Submission) -> Slot:
        """A slot with the lowest free index of its bucket."""
        taken = {slot.index for slot in self.slots.values() if slot.bucket == submission.bucket}
        index = next(index for index in count() if index not in taken)
        slot = self.slots[submission.id] = Slot(**_values(submission), index=index)
        return slot


def _values(submission: Submission) -> dict[str, Any]:
    return {item.name: getattr(submission, item.name) for item in fields(Submission)}
