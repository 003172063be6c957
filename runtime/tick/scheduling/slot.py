"""A generation or sequence on its way through the tick loop: waiting in a queue, then in a slot."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
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


class WaitingQueue:
    """Urgent submissions first; round robin over clients, first in first out within a client. One thread."""

    def __init__(self) -> None:
        self._urgent: OrderedDict[str, deque[Submission]] = OrderedDict()
        self._others: OrderedDict[str, deque[Submission]] = OrderedDict()
        self._by_id: dict[str, Submission] = {}
        self._by_session: dict[str, Submission] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def num_urgent(self) -> int:
        """How many of those that wait are urgent."""
        return sum(map(len, self._urgent.values()))

    def get(self, submission_id: str) -> Submission | None:
        """The submission that waits under this id."""
        return self._by_id.get(submission_id)

    def push(self, submission: Submission) -> Submission | None:
        """Append to the client's queue; returns the submission of the same session that it replaces, if one waited."""
        replaced = self._by_session.get(submission.session) if submission.session else None
        if replaced is not None:
            self.remove(replaced.id)
        self._clients(submission).setdefault(submission.client, deque()).append(submission)
        self._by_id[submission.id] = submission
        if submission.session:
            self._by_session[submission.session] = submission
        return replaced

    def pop(self) -> Submission:
        """The first submission of the next client, which then moves behind the other clients."""
        clients = self._urgent or self._others
        client, submissions = clients.popitem(last=False)
        submission = submissions.popleft()
        if submissions:
            clients[client] = submissions
        self._forget(submission)
        return submission

    def remove(self, submission_id: str) -> Submission | None:
        """Take a submission out; None where it does not wait."""
        submission = self._by_id.get(submission_id)
        if submission is not None:
            clients = self._clients(submission)
            clients[submission.client].remove(submission)
            if not clients[submission.client]:
                del clients[submission.client]
            self._forget(submission)
        return submission

    def __iter__(self) -> Iterator[Submission]:
        return iter(self._by_id.values())

    def _clients(self, submission: Submission) -> OrderedDict[str, deque[Submission]]:
        return self._urgent if submission.is_urgent else self._others

    def _forget(self, submission: Submission) -> None:
        del self._by_id[submission.id]
        if submission.session:
            self._by_session.pop(submission.session, None)
