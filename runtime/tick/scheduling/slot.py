"""A generation or sequence on its way through the tick loop: waiting, then in a slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True, eq=False)
class Submission:
    """What waits for a slot.

    `runner` executes it, `work` is what was prepared for that; `bucket` is the length T that it shares with others. At
    most one submission of a `session` waits; urgent ones go first, and clients take turns. It begins at `step`, later
    than 0 where it resumes.

    `frozen`: what its runner continues it from, where its slot was given to an urgent one; it has been without a slot
    for `ticks_frozen` ticks so far.
    """

    id: str
    runner: Any
    work: Any
    bucket: int
    steps: int
    session: str = ""
    client: str = ""
    is_urgent: bool = False
    step: int = 0
    frozen: Any = None
    ticks_frozen: int = 0

    @property
    def may_freeze(self) -> bool:
        """Whether an urgent submission may take its slot: it is frozen for no more ticks in all than it has steps."""
        return not self.is_urgent and self.ticks_frozen < self.steps


@dataclass(slots=True, eq=False)
class Slot(Submission):
    """A submission in flight: `index` is its row in the tensors of its bucket, `step` the next step of its `steps`."""

    index: int = 0

    @property
    def is_last_step(self) -> bool:
        """Whether it is finished after its next step."""
        return self.step + 1 >= self.steps
