"""A base for constraints of tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class CountedConstraint:
    """A constraint for tests that knows only how many tokens came, and ends after `length` of them."""

    length: int
    count: int = 0

    @property
    def is_done(self) -> bool:
        return self.count >= self.length

    @property
    def is_greedy(self) -> bool:
        return False

    def state(self) -> list[int]:
        return [self.count]

    def restore(self, state: Sequence[int]) -> None:
        (self.count,) = state

    def advance(self, token: int) -> None:
        self.count += 1
