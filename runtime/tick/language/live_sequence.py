"""A sequence in its slot: its rows, what of its prompts is in the cache, and the tokens that it has so far."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from numpy.typing import NDArray

from runtime.tick.language.constraints import Constraint
from runtime.tick.language.sequence import SequenceState, SequenceWork
from runtime.tick.language.speculative import History, Trust
from runtime.tick.language.thinking import Mask
from runtime.tick.scheduling.slot import Slot


class PromptChunk(NamedTuple):
    """Tokens of a prompt for the cache of one row, from position `start` on."""

    row: int
    start: int
    tokens: tuple[int, ...]


class Draw(NamedTuple):
    """One step of a chain: the forced tokens that it feeds behind the newest one, each with the constraint's key before
    it, and the key of what it draws from."""

    forced: tuple[tuple[int, Hashable], ...]
    key: Hashable


class LiveSequence:
    """Knows no device. The next execute feeds its newest token, at `position`; the sampler draws number `count`.

    The last token of a prompt is fed by the first decode, so that a prefill needs no logits. `keep`: how many of its
    tokens are kept at least. was_fed: the launch that is pending draws tokens for it; draws: the steps of its chain.
    num_used: of what the last launch drew for it, how many were taken.
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
        self.draws: list[Draw] = []
        self.num_used = 0
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

    def take_chunk(self, size: int) -> PromptChunk:
        """The next tokens of a prompt; they count as prefilled from now on."""
        for place, prompt in enumerate(self.prompts):
            start, end = self.prefilled[place], len(prompt) - 1
            if start < end:
                self.prefilled[place] = min(start + size, end)
                return PromptChunk(self.rows[place], start, prompt[start : self.prefilled[place]])
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

    def forced_run(self, constraint: Constraint | None, limit: int) -> tuple[tuple[int, Hashable], ...]:
        """The tokens that must come next, at most `limit`, as Draw has them; the constraint goes on behind them.

        The last token of all is left to be drawn.
        """
        if constraint is None or not self._speculates or limit == 0:
            return ()
        run = []
        for token in constraint.forced(limit):
            ahead = copy.copy(constraint)
            ahead.advance(token)
            if ahead.is_done:
                break
            run.append((token, constraint.key))
            constraint.advance(token)
        return tuple(run)

    def forced_runs(self, steps: int, limit: int, scratch: Mask) -> list[int]:
        """How many tokens each step of a chain can feed along, at most `limit`. scratch: bool `[V]`, is written to."""
        if self.constraint is None or not self._speculates:
            return [0] * steps
        constraint, found = copy.copy(self.constraint), list[int]()
        while len(found) < steps and not constraint.is_done:
            found.append(len(self.forced_run(constraint, limit)))
            constraint.write_allowed(scratch)
            constraint.advance(int(scratch.argmax()))
        return found

    def accept(self, drawn: Sequence[int]) -> list[int]:
        """Take the tokens of a chain, forced ones and drawn ones, as long as what they could be (`draws`) was right."""
        taken: list[int] = []
        self.num_used, self.drafts = 0, []
        for token, draw in zip(drawn, self.draws, strict=False):
            for one, key in (*draw.forced, (token, draw.key)):
                if self.has_ended or (self.constraint is not None and self.constraint.key != key):
                    return taken
                taken.append(self._take(one))
            self.num_used += 1
        return taken

    def accept_verified(self, drawn: Sequence[int]) -> list[int]:
        """Take the tokens of a verify, as long as the drafts before them are the tokens that came."""
        taken = []
        for token, draft in zip(drawn, [*self.drafts, -1], strict=False):
            taken.append(self._take(token))
            if self.has_ended or token != draft:
                break
        self.num_used = len(taken)
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
