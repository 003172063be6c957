"""What a draft feeds again: the tokens behind which wrong drafts may lie, without crossing the end of a ring."""

from __future__ import annotations

import pytest

from runtime.tick.language.sequence import Draw, LiveSequence, SequenceRequest, SequenceWork
from runtime.tick.scheduling.slot import Slot


def live(count: int, keep: int = 100) -> LiveSequence:
    request = SequenceRequest("a", (1, 2, 3), negative=(8, 9), guidance=2.0)
    slot = Slot(id="a", runner=None, work=SequenceWork(request), bucket=0, steps=10)
    found = LiveSequence(slot, (0, 1), keep, speculates=True)
    found.prefilled = [2, 1]
    found.draws = [Draw((), None)] * count
    found.accept(list(range(10, 10 + count)))
    return found


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [1, 2, 3, 10, 11]), (2, [3, 10, 11, 12, 0]), (5, [12, 0, 0, 0, 0])]
)
def test_known_tokens_of_the_positive_row(start: int, expected: list[int]) -> None:
    assert live(3).known(0, start, 5) == expected


def test_known_tokens_of_the_negative_row_follow_its_own_prompt() -> None:
    assert live(3).known(1, 0, 5) == [8, 9, 10, 11, 12]


def test_the_last_tokens_are_known_of_a_long_sequence_too() -> None:
    found = live(500, keep=32)
    assert found.known(0, found.position(0) - 4, 5) == [505, 506, 507, 508, 509]
