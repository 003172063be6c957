"""Drafts: tokens that are likely to come next, which one execute verifies together.

Speculation is exact: the token at a place is drawn from the same distribution with the same random number as without,
and a draft counts only where it is that token.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 3, 2
# Of the last verified drafts, how much the newest counts; below LEAST_TRUST nothing is looked up.
MEMORY, LEAST_TRUST, RECOVERY = 0.2, 0.4, 0.01


class History:
    """The last tokens of a sequence, at least `keep` of them, and what followed each of their n-grams last.

    The draft is what followed the last tokens when they came before (prompt lookup: Saxena, 2023).
    """

    def __init__(self, tokens: Sequence[int], keep: int, *, is_indexed: bool) -> None:
        self._keep, self._is_indexed = keep, is_indexed
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}
        for token in tokens:
            self.append(token)

    def append(self, token: int) -> None:
        """Add the newest token."""
        if len(self.tokens) >= 2 * self._keep:
            kept = self.tokens[-self._keep :]
            self.tokens, self._after = [], {}
            for old in kept:
                self.append(old)
        if self._is_indexed:
            for size in range(SHORTEST, LONGEST + 1):
                if len(self.tokens) >= size:
                    self._after[tuple(self.tokens[-size:])] = len(self.tokens)
        self.tokens.append(token)

    def draft(self, known: Sequence[int], count: int) -> list[int]:
        """At most `count` tokens that may follow the last ones, which `known` ends."""
        last = [*self.tokens[-LONGEST:], *known][-LONGEST:]
        for size in range(LONGEST, SHORTEST - 1, -1):
            place = self._after.get(tuple(last[-size:]))
            if place is not None and len(last) >= size:
                return self.tokens[place : place + count]
        return []


class Trust:
    """Whether looking up pays: the share of drafts that came true lately. It recovers while nothing is looked up."""

    def __init__(self, share: float = 1.0) -> None:
        self.share = share

    def is_worth(self) -> bool:
        """Whether to look up a draft now."""
        self.share = min(1.0, self.share + RECOVERY)
        return self.share >= LEAST_TRUST

    def note(self, accepted: int, drafts: int) -> None:
        """Of so many drafts, so many came true."""
        self.share += MEMORY * (accepted / drafts - self.share)
