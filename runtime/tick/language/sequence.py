"""What a caller asks the planner for, and the random numbers of a sequence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runtime.base.errors import CheckpointError, RequestError
from runtime.config.planner import PlannerSpec
from runtime.engines.engine import PlannerEngines
from runtime.tick.language.constraints import Constraint

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

    def check(self, request: SequenceRequest, engines: PlannerEngines, spec: PlannerSpec) -> None:
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
