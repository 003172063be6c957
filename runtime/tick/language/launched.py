"""What the planner executes in one tick, and a launched one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from runtime.devices.device import Event, Stream
from runtime.tick.language.sequence import PromptChunk
from runtime.tick.runner import BucketSpan, LaunchFailures
from runtime.tick.scheduling.slot import Slot

# The width of a launch that drafts.
DRAFT = 0


class LanguageKey(NamedTuple):
    """Everything that a captured graph of decodes, a verify or drafts bakes in.

    width: tokens that an execute feeds per row; draws: how many it draws; steps: executes of a chain.
    """

    width: int
    draws: int
    steps: int
    rows: int
    sequences: int
    span: int
    generation: int


@dataclass(frozen=True, slots=True, eq=False)
class LanguagePart:
    """What one tick executes: a chunk of a prompt, and `step` over the rows of all sequences; either may be None."""

    slots: tuple[Slot, ...]
    chunk: PromptChunk | None
    step: LanguageKey | None
    num_rows: int
    num_executes: int
    frames: tuple[int, ...] = ()

    @property
    def variants(self) -> tuple[str, ...]:
        """Whether it prefills, and decodes, verifies or drafts."""
        prefill = () if self.chunk is None else ("prefill",)
        if self.step is None:
            return prefill
        if self.step.width == DRAFT:
            return (*prefill, "draft")
        return (*prefill, "decode" if self.step.draws == 1 else "verify")


@dataclass(frozen=True, slots=True, eq=False)
class LanguageLaunch:
    """A launched part; `done` is recorded behind it, on a stream of its own: the rest of its tick may be done before.

    collect: takes its tokens, once. bad: sequences with logits that are not numbers, with the token it happened at, of
    this launch and of earlier ones.
    """

    collect: Callable[[LanguageLaunch], None]
    part: LanguagePart
    failed: LaunchFailures
    begin: Event
    done: Event
    bad: list[tuple[Slot, int]]

    def spans(self, stream: Stream, first: Event) -> list[BucketSpan]:
        """When its executes ran, as one span of length 0; none where they still run. Valid when the tick is done."""
        if not self.done.is_done:
            return []
        begin_ms = 0.0 if first is self.begin else stream.elapsed_ms(first, self.begin)
        part, ms = self.part, stream.elapsed_ms(self.begin, self.done)
        return [BucketSpan(0, len(part.slots), part.num_rows, part.num_executes, begin_ms, ms)]

    def non_finite(self) -> Iterator[tuple[Slot, int]]:
        """What is new in `bad`. Valid when the tick is done; where this still runs, a later launch tells it."""
        if self.done.is_done:
            self.collect(self)
        while self.bad:
            yield self.bad.pop(0)
