"""What a caller asks the planner for, and a sequence in its slot: its drafts, its rows, its tokens."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from runtime.base.errors import CheckpointError, RequestError
from runtime.config.planner import PlannerSpec
from runtime.engines.engine import LanguageEngines
from runtime.tick.language.constraints import Constraint
from runtime.tick.language.thinking import Mask
from runtime.tick.scheduling.slot import Slot

# Of a sequence without an end.
ENDLESS = 1 << 62
# As many tokens may be drawn behind the last one that counts: the bound of planner_steps.
MOST_STEPS = 8
_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class SequenceRequest:
    """One sequence of the planner: tokens that follow a prompt.

    negative: the prompt of the negative row, which guidance other than 1 needs. It ends with end_token, where
    `constraint` is done, or after max_tokens. temperature 0: the likeliest token. top_k: 0 for no limit. The token at a
    place depends on seed and place alone, not on how it was batched; the first `opening_tokens` have `opening_seed`, so
    that another beginning is drawn and what follows goes on as behind any other. on_tokens: is called on the tick
    thread with the tokens of each tick, and must return at once. is_awaited: is asked on the tick thread whether tokens
    are waited for; while those of no sequence are, they are drawn in ticks without generations.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int = ENDLESS
    negative: tuple[int, ...] = ()
    seed: int = 0
    opening_tokens: int = 0
    opening_seed: int = 0
    guidance: float = 1.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    end_token: int | None = None
    constraint: Constraint | None = None
    session: str = ""
    client: str = ""
    is_urgent: bool = False
    on_tokens: Callable[[Sequence[int]], None] | None = None
    is_awaited: Callable[[], bool] = lambda: True

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        """The prompt of each of its rows, the positive one first."""
        return (self.prompt, self.negative) if self.guidance != 1.0 else (self.prompt,)

    def uniform(self, place: int) -> float:
        """The number that chooses its token number `place`."""
        return uniform(self.opening_seed if place < self.opening_tokens else self.seed, place)

    def check(self, spec: PlannerSpec) -> None:
        """Raises RequestError where a prompt is empty or has unknown tokens, a number is out of range, or a cache
        without a window is too small for prompt and new tokens."""
        for name, prompt in zip(("prompt", "negative"), self.prompts, strict=False):
            if not prompt or not 0 <= min(prompt) <= max(prompt) < spec.vocabulary:
                raise RequestError(
                    f"{name} has {len(prompt)} tokens, expected some of 0 to {spec.vocabulary - 1}", field=name
                )
        if self.max_tokens < 1 or not 0 <= self.temperature <= 10 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise RequestError("expected max_tokens >= 1, temperature 0 to 10, top_p above 0 to 1, top_k >= 0")
        most = room_for(spec, max(len(prompt) for prompt in self.prompts))
        if self.max_tokens > most:
            raise RequestError(
                f"max_tokens is {self.max_tokens}, the cache of {spec.capacity} tokens has room for {most} behind this "
                "prompt",
                field="max_tokens",
            )


def room_for(spec: PlannerSpec, prompt_tokens: int) -> int:
    """How many tokens may follow a prompt; with a window there is no end."""
    if spec.window:
        return ENDLESS
    return spec.capacity - max(spec.verify_tokens, MOST_STEPS) + 1 - prompt_tokens


@dataclass(frozen=True, eq=False)
class SequenceState:
    """A sequence between two ticks, as plain values.

    count: its new tokens; tokens: the last of them. constraint: as its `state` gave. trust: how often drafts came true.
    caches: of the planner, then of its draft graph, each of its rows' keys and values `[H,M,J]` of every layer.
    """

    count: int
    tokens: tuple[int, ...]
    constraint: tuple[int, ...]
    trust: float
    caches: tuple[tuple[tuple[NDArray[Any], ...], ...], ...]

    def check(self, request: SequenceRequest, engines: LanguageEngines, spec: PlannerSpec) -> None:
        """Raises CheckpointError where the state is not one of this request on these engines."""
        rows, is_constrained = len(request.prompts), request.constraint is not None
        if not 0 <= self.count < request.max_tokens or bool(self.constraint) != is_constrained:
            raise CheckpointError(f"the state of a sequence with {self.count} tokens is not one of this request")
        if request.constraint is not None:
            try:
                copy.copy(request.constraint).restore(self.constraint)
            except (ValueError, IndexError):
                raise CheckpointError("the constraint's state is not one of this request's constraint") from None
        graphs = zip(self.caches, (spec, spec.draft), (engines.planner, engines.draft), strict=False)
        for caches, graph, engine in graphs:
            if graph is None or engine is None:
                continue
            expected = [tuple(engine.inputs[name].shape[1:]) for name in graph.inputs.past]
            if len(caches) != rows or any([array.shape for array in row] != expected for row in caches):
                raise CheckpointError(
                    f"the caches are not those of {rows} rows of {len(expected)} of shape {expected[0]}"
                )
        if not self.caches:
            raise CheckpointError("the state has no caches")


@dataclass(frozen=True, eq=False)
class SequenceWork:
    """What a slot of the planner executes; with `state` it continues there."""

    request: SequenceRequest
    state: SequenceState | None = None
    bucket: int = 0

    @property
    def steps(self) -> int:
        """The most tokens."""
        return self.request.max_tokens


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1), the same for the same seed and place; 23 bits, exact in float32.

    Number `place` of the generator SplitMix64 (Steele, Lea, Flood 2014), which begins at the mixed seed.
    """
    mixed = _mix((_mix((seed + _GAMMA) & _MASK) + (place + 1) * _GAMMA) & _MASK)
    return (mixed >> 41) / (1 << 23)


def _mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


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
