"""The waiting queue: fair between clients, newest wins within a session."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.tick.scheduling.slot import Submission, WaitingQueue


def submission(name: str, client: str = "", session: str = "", *, is_urgent: bool = False) -> Submission:
    return Submission(
        id=name, runner=None, work=None, bucket=16, steps=4, session=session, client=client, is_urgent=is_urgent
    )


def test_clients_are_served_round_robin() -> None:
    queue = WaitingQueue()
    for name, client in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c")):
        queue.push(submission(name, client))
    assert [queue.pop().id for _ in range(5)] == ["a1", "b1", "c1", "a2", "a3"]


def test_urgent_submissions_leave_first() -> None:
    queue = WaitingQueue()
    queue.push(submission("slow", "a"))
    for name, client in (("a1", "a"), ("a2", "a"), ("b1", "b")):
        queue.push(submission(name, client, is_urgent=True))
    assert queue.remove("a2") is not None
    assert [queue.pop().id for _ in range(3)] == ["a1", "b1", "slow"]


def test_removing() -> None:
    queue = WaitingQueue()
    for name in "ab":
        queue.push(submission(name))
    assert queue.remove("a") is not None
    assert queue.remove("a") is None
    assert len(queue) == 1
    assert queue.pop().id == "b"


def test_the_newest_of_a_session_replaces_the_one_that_waits() -> None:
    queue = WaitingQueue()
    assert queue.push(submission("old", session="s")) is None
    assert queue.push(submission("other", session="t")) is None
    replaced = queue.push(submission("new", session="s"))
    assert replaced is not None
    assert replaced.id == "old"
    assert [item.id for item in queue] == ["other", "new"]


def test_submissions_without_a_session_replace_nothing() -> None:
    queue = WaitingQueue()
    assert [queue.push(submission(name)) for name in "ab"] == [None, None]
    assert len(queue) == 2


def test_one_that_left_the_queue_is_not_replaced() -> None:
    queue = WaitingQueue()
    queue.push(submission("running", session="s"))
    queue.pop()
    assert queue.push(submission("next", session="s")) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "s", "t"]), st.booleans()), max_size=40))
def test_every_submission_leaves_exactly_once(steps: list[tuple[str, str, bool]]) -> None:
    queue, left, pushed = WaitingQueue(), list[str](), 0
    for client, session, pops in steps:
        replaced = queue.push(submission(str(pushed), client, session))
        pushed += 1
        left += [] if replaced is None else [replaced.id]
        if pops:
            left.append(queue.pop().id)
    while len(queue):
        left.append(queue.pop().id)
    assert sorted(left) == sorted(str(index) for index in range(pushed))
