"""A slot is its submission with a place and a next step."""

from __future__ import annotations

import pytest

from runtime.scheduling.slot import Slot


@pytest.mark.parametrize(("step", "expected"), [(0, False), (2, False), (3, True)])
def test_the_last_step_is_the_one_after_which_all_are_taken(step: int, expected: bool) -> None:
    assert Slot("a", None, None, bucket=16, steps=4, step=step).is_last_step is expected


def test_slots_of_equal_values_are_different_slots() -> None:
    one, other = (Slot("a", None, None, bucket=16, steps=4) for _ in range(2))
    assert one != other
