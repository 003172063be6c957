"""A sequence in its slot: its rows, what of its prompts is in the cache, and the tokens that it has so far."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from runtime.language.sequence import SequenceState, SequenceWork
from runtime.language.speculative import History, Trust
from runtime.scheduling.slot import Slot


class Chunk(NamedTuple):
    """Tokens of a prompt for the cache of one row, from position `start` on."""

    row: int
    start: int
    tokens: tuple[int, ...]


class LiveSequence:
    """Knows no device. The next execute feeds its newest token, at `position`; the sampler draws number `count`.

    The last token of a prompt is fed by the first decode, so that a prefill needs no logits. `keep`: how many of its
    tokens are kept at least. was_fed: the launch that is pending draws tokens for it; keys: of what each of its steps
    could choose from.
    """

    def __init__(self, slot: Slot, rows: tuple[int, ...], keep: int, *, speculates: bool) -> None:
        work: SequenceWork = slot.work
        self.slot, self.rows, self.request, state = slot, rows, work.request, work.state
        self.prompts = self.request.prompts
        old = state or SequenceState(0, (), (), 1.0, ())
        self.constraint, self.count, self.trust = copy.copy(self.request.constraint), old.count, Trust(old.trust)
        if state is not None and self.constraint is not None:
            self.constraint.restore(state.constraint)
        self.history = History((*self.request.prompt, *old.tokens), keep, is_indexed=speculates)
        self.prefilled = [len(prompt) - 1 if state else 0 for prompt in self.prompts]
        self.drafts: list[int] = []
        self._num_forced = 0
        self.wants_drafts = False
        self.keys: list[Hashable] = []
        self._speculates = speculates
        self.has_ended = self.constraint is not None and self.constraint.is_done
        self.is_finite, self.was_fed = True, False

    @property
    def is_ready(self) -> bool:
        """Whether its prompts are in the cache."""
        return all(done >= len(prompt) - 1 for done, prompt in zip(self.prefilled, self.prompts, strict=True))

    @property
    def tokens(self) -> tuple[int, ...]:
        """Its new tokens; of a long one the last."""
        return tuple(self.history.tokens[-self.count :]) if self.count else ()

    def next_token(self, place: int) -> int:
        """What the next execute feeds to its row number `place`."""
        return self.history.tokens[-1] if self.count else self.prompts[place][-1]

    def position(self, place: int) -> int:
        """Where that lies; before it is ready, the first position that nothing was written to."""
        if not self.is_ready:
            return self.prefilled[place]
        return len(self.prompts[place]) - 1 + self.count

    def known(self, place: int, start: int, count: int) -> list[int]:
        """The tokens at positions from `start` on of its row number `place`, as far as they are known; 0 behind."""
        prompt, new = self.prompts[place], self.history.tokens[-self.count :] if self.count else []
        first = len(prompt) + self.count - len(new)  # of `new`, which may be the last ones only
        return [
            prompt[at] if at < len(prompt) else new[at - first] if 0 <= at - first < len(new) else 0
            for at in range(start, start + count)
        ]

    def take_chunk(self, size: int) -> Chunk:
        """The next tokens of a prompt; they count as prefilled from now on."""
        for place, prompt in enumerate(self.prompts):
            start, end = self.prefilled[place], len(prompt) - 1
            if start < end:
                self.prefilled[place] = min(start + size, end)
                return Chunk(self.rows[place], start, prompt[start : self.prefilled[place]])
        raise AssertionError("the sequence is ready")

    def draft(self, count: int) -> None:
        """Note at most `count` drafts of its next tokens, where it has none."""
        if not self._speculates or self.drafts:
            return
        self.drafts = [] if self.constraint is None else list(self.constraint.forced(count))
        self._num_forced = len(self.drafts)
        self.wants_drafts = len(self.drafts) < count and self.trust.is_worth()
        if self.wants_drafts:
            self.drafts += self.history.draft(self.drafts, count - len(self.drafts))

    def take_drafts(self, tokens: list[int]) -> None:
        """Note drafts of the draft graph, where it has none."""
        self.drafts = self.drafts or tokens

    @property
    def num_expected(self) -> float:
        """How many of its drafts will come true, as they did lately."""
        return self._num_forced + self.trust.share * (len(self.drafts) - self._num_forced)

    def accept(self, drawn: Sequence[int]) -> list[int]:
        """Take the tokens of chained executes, as long as what they could choose from (`keys`) was right."""
        taken: list[int] = []
        for token, key in zip(drawn, self.keys, strict=False):
            if self.has_ended or (self.constraint is not None and self.constraint.key != key):
                break
            taken.append(self._take(token))
        self.drafts = []
        return taken

    def accept_verified(self, drawn: Sequence[int]) -> list[int]:
        """Take the tokens of a verify, as long as the drafts before them are the tokens that came."""
        taken = []
        for token, draft in zip(drawn, [*self.drafts, -1], strict=False):
            taken.append(self._take(token))
            if self.has_ended or token != draft:
                break
        if self.drafts:
            right = sum(token == draft for token, draft in zip(taken, self.drafts, strict=False))
            self.trust.note(right, len(self.drafts))
        self.drafts = []
        return taken

    def state(self, caches: Sequence[tuple[tuple[NDArray[Any], ...], ...]]) -> SequenceState:
        """What it is continued from; `caches`: see SequenceState."""
        constraint = () if self.constraint is None else tuple(self.constraint.state())
        return SequenceState(self.count, self.tokens, constraint, self.trust.share, tuple(caches))

    def _take(self, token: int) -> int:
        self.history.append(token)
        self.count += 1
        if self.constraint is not None:
            self.constraint.advance(token)
        is_done = self.constraint is not None and self.constraint.is_done
        self.has_ended = is_done or token == self.request.end_token or self.count >= self.request.max_tokens
        return token
