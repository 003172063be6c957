"""A bundle's planner: who asks for its sequences, their prompts in tokens, and their tokens as they come."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from runtime.base.errors import GenerationCancelledError, QueueTimeoutError
from runtime.config.bundle import Bundle
from runtime.config.planner import PlannerSpec
from runtime.pipeline.structure import StructureCodec
from runtime.pipeline.text_encoder import encoded, read_tokenizer
from runtime.requests.options import GenerationOptions
from runtime.requests.validation import plans_texts
from runtime.tick.language.constraints import Constraint
from runtime.tick.language.sequence import SequenceRequest
from runtime.tick.language.thinking import ThinkingGrammar
from runtime.tick.loop.events import Cancelled, Event, Failed, Finished, Started

if TYPE_CHECKING:
    from runtime.tick.loop.tick_loop import TickLoop

Prompts = tuple[tuple[int, ...], tuple[int, ...]]


class Caller:
    """Who waits for sequences. client: whose limit on generations applies. place_timeout_s: how long for a slot.

    Once `leave` is called, from any thread, its waiting calls raise TickError.
    """

    def __init__(self, client: str = "", place_timeout_s: float | None = None) -> None:
        self.client, self.place_timeout_s = client, place_timeout_s
        # Held for a few assignments; what is called on leaving is called without it.
        self._left, self._lock = threading.Event(), threading.Lock()
        self._on_leave: list[Callable[[], None]] = []

    @property
    def has_left(self) -> bool:
        """Whether `leave` was called."""
        return self._left.is_set()

    def leave(self) -> None:
        """Wait no more; again does nothing."""
        with self._lock:
            self._left.set()
            calls, self._on_leave = self._on_leave, []
        for call in calls:
            call()

    def on_leave(self, call: Callable[[], None]) -> None:
        """Call this once it leaves, or now; earlier ones are forgotten."""
        with self._lock:
            if not self._left.is_set():
                self._on_leave = [call]
                return
        call()


class SequenceRun:
    """One sequence in the loop: the tick thread adds tokens, another thread waits for them.

    note: called with how many tokens have come, on the tick thread.
    """

    def __init__(self, loop: TickLoop, caller: Caller, note: Callable[[int], None], **request: Any) -> None:
        # One thread waits for tokens in `wait`; the tick thread notifies it, and holds this for a few assignments.
        self._loop, self._note_tokens, self._changed = loop, note, threading.Condition()
        self._tokens: list[int] = []
        self._awaited = 0  # how many tokens are worth waking who waits for
        self._has_started = False  # or has ended before
        self._end: Event | None = None
        self._timeout_s, submitted_s = caller.place_timeout_s, time.monotonic()
        made = SequenceRequest(
            uuid.uuid4().hex, on_tokens=self._add, is_awaited=self._is_awaited, client=caller.client, **request
        )
        caller.on_leave(loop.wake)
        self._id = loop.submit_sequence(
            made, self._note, wait=True, timeout_s=self._timeout_s, has_left=lambda: caller.has_left
        )
        self._deadline_s = None if self._timeout_s is None else submitted_s + self._timeout_s
        caller.on_leave(self.cancel)

    def wait(self, count: int) -> list[int]:
        """The tokens so far, once there are `count` or it has ended. Raises TickError, also where it was cancelled."""
        with self._changed:
            self._awaited = count
            self._wait_for_slot()
            # Until the tick thread has added so many tokens or noted the end; the loop always sends one.
            self._changed.wait_for(lambda: len(self._tokens) >= count or self._end is not None)
            if len(self._tokens) < count and isinstance(self._end, Failed):
                raise self._end.error
            if len(self._tokens) < count and isinstance(self._end, Cancelled):
                raise GenerationCancelledError("the plan was cancelled")
            return list(self._tokens)

    def cancel(self) -> None:
        """End it, if it has not ended."""
        if self._end is None:
            self._loop.cancel(self._id)

    def _wait_for_slot(self) -> None:
        """Until it has a slot, or has ended, not longer than its caller waits. Raises QueueTimeoutError."""
        left_s = None if self._deadline_s is None else max(0.0, self._deadline_s - time.monotonic())
        if not self._changed.wait_for(lambda: self._has_started, left_s):
            self.cancel()
            raise QueueTimeoutError(f"the planner had no slot within {self._timeout_s:g} s")

    def _add(self, tokens: Sequence[int]) -> None:
        self._note_tokens(len(tokens))
        with self._changed:
            self._tokens += tokens
            if len(self._tokens) >= self._awaited:
                self._changed.notify_all()

    def _is_awaited(self) -> bool:
        """Without the lock: only the tick thread, which asks, adds tokens."""
        return len(self._tokens) < self._awaited

    def _note(self, event: Event) -> None:
        if isinstance(event, Started | Finished | Failed | Cancelled):
            with self._changed:
                self._has_started = True
                self._end = None if isinstance(event, Started) else event
                self._changed.notify_all()


@dataclass(frozen=True)
class SequenceOrder:
    """A sequence to start.

    opening_tokens, opening_seed: as SequenceRequest has them. is_guided: whether the options' guidance applies, with
    the second of `prompts` as negative. temperature, top_p: where the options have none; None: the sampler's.
    """

    prompts: Prompts
    constraint: Constraint
    max_tokens: int
    seed: int
    opening_tokens: int = 0
    opening_seed: int = 0
    is_guided: bool = True
    temperature: float | None = None
    top_p: float | None = None


class Planner:
    """The planner of one bundle: starts its sequences. Any thread. Raises ConfigError.

    observers: get the number of tokens of each tick, on the tick thread.
    """

    def __init__(self, bundle: Bundle, spec: PlannerSpec, loop: TickLoop, structure: StructureCodec) -> None:
        assert spec.tokenizer is not None
        self.bundle, self.spec, self.structure, self._loop = bundle, spec, structure, loop
        self.observers: list[Callable[[int], None]] = []
        self.tokenizer, self._unknown = read_tokenizer(bundle.folder / spec.tokenizer)

    @cached_property
    def grammar(self) -> ThinkingGrammar:
        """That of its thinking. Raises ConfigError."""
        return ThinkingGrammar(self.spec, self.tokenizer)

    def tokens(self, text: str) -> tuple[int, ...]:
        """A text's tokens, without unknown ones."""
        ids = encoded(self.tokenizer, text, add_special_tokens=False).ids
        return tuple(token for token in ids if token != self._unknown)

    def _note_tokens(self, number: int) -> None:
        for observer in self.observers:
            observer(number)

    def start(self, order: SequenceOrder, options: GenerationOptions, caller: Caller) -> SequenceRun:
        """A sequence in the loop, once there is a place. Raises as submit_sequence does."""
        defaults = self.spec.sampler
        guidance = defaults.guidance if options.plan_guidance is None else options.plan_guidance
        return SequenceRun(
            self._loop,
            caller,
            self._note_tokens,
            prompt=order.prompts[0],
            negative=order.prompts[1],
            max_tokens=order.max_tokens,
            seed=order.seed,
            opening_tokens=order.opening_tokens,
            opening_seed=order.opening_seed,
            guidance=guidance if order.is_guided else 1.0,
            temperature=_first(options.plan_temperature, order.temperature, defaults.temperature),
            top_k=defaults.top_k,
            top_p=_first(options.plan_top_p, order.top_p, defaults.top_p),
            constraint=order.constraint,
        )


def _first(*values: float | None) -> float:
    """The first that is given."""
    return next(value for value in values if value is not None)


def open_planner(bundle: Bundle, loop: TickLoop, structure: StructureCodec | None) -> Planner | None:
    """The bundle's planner; None where generations are not planned from their texts."""
    if bundle.planner is None or structure is None or not plans_texts(bundle):
        return None
    return Planner(bundle, bundle.planner, loop, structure)


def plan_seed(seed: int, *numbers: int) -> int:
    """The seed of one of a plan's sequences, by its numbers."""
    text = " ".join(map(str, ("tickrt plan", seed, *numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
