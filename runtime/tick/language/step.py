"""What the planner executes in one tick: its choice, the part, and a launched one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from runtime.config.deployment import RuntimeConfig
from runtime.config.planner import PlannerSpec
from runtime.devices.device import Event, Stream
from runtime.tick.language.sequence import LiveSequence, PromptChunk
from runtime.tick.runner import BucketSpan, LaunchFailures
from runtime.tick.scheduling.slot import Slot

# Of an execute that verifies 5 tokens, in decodes, on a CPU; a GPU reads the weights once for either.
VERIFY_COST = 1.7
# How many tokens a decode may feed: the newest one, and others that are forced behind it; besides as many as a verify
# does. What each one more costs, in decodes, on a CPU and on a GPU.
DECODE_WIDTHS = (1, 2, 4, 6)
WIDTH_COST, GPU_WIDTH_COST = 0.1, 0.02
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


class StepChoice:
    """Chooses what the next execute of all sequences is: drafts, a verify, or decodes.

    widths: how many tokens a decode may feed. capacity: of the cache, in tokens.
    """

    def __init__(
        self, spec: PlannerSpec, runtime: RuntimeConfig, capacity: int, *, is_on_gpu: bool, has_draft: bool
    ) -> None:
        self._spec, self._steps, self._capacity = spec, runtime.planner_steps, capacity
        self.is_on_gpu, self._has_draft, self._has_drafted = is_on_gpu, has_draft, False
        widths = sorted({*DECODE_WIDTHS, spec.verify_tokens}) if runtime.speculation else [1]
        self.widths = [width for width in widths if width <= spec.verify_tokens]
        # A verify costs more than a decode, and stands in the place of all decodes of a tick.
        self._verify_cost = max(1.1 if is_on_gpu else VERIFY_COST, self._steps)
        self._width_cost = GPU_WIDTH_COST if is_on_gpu else WIDTH_COST
        self._scratch = np.zeros(spec.vocabulary, np.bool_)  # [V]

    def chains(self, sequences: int) -> list[int]:
        """How many decodes a launch of at most so many sequences may have."""
        return sorted({self._steps, *(self._short_chain(number) for number in range(1, sequences + 1))})

    def next(self, going: Sequence[LiveSequence], is_beside_urgent: bool) -> tuple[int, int, int, int]:
        """Width, draws and steps (see LanguageKey), and the length that the longest row has then.

        A verify where it brings more than decodes, and no row would cross the end of its ring; else decodes. Where the
        bundle has a draft graph, and drafts are missing, they come first.
        """
        ready = [live for live in going if live.is_ready]
        lasts = [live.position(place) for live in going for place in range(len(live.rows))]
        if is_beside_urgent:
            return self._short(ready, lasts)
        for live in ready:
            live.draft(self._spec.verify_tokens - 1)
        width, steps = self._spec.verify_tokens, self._steps
        is_missing = any(live.wants_drafts and not live.drafts for live in ready)
        self._has_drafted = self._has_draft and not self._has_drafted and is_missing
        if self._has_drafted:
            return DRAFT, 1, width - 1, max(lasts) + width
        chain, tokens_per_decode = self.best_width(ready, lasts, self.widths, steps)
        expected = sum(1 + live.num_expected for live in ready)
        if not self._has_room(lasts, width) or expected < self._verify_cost * tokens_per_decode:
            for live in ready:
                live.drafts.clear()
            return chain, 1, steps, max(lasts) + chain * steps
        return width, width, 1, max(lasts) + width

    def _short(self, ready: Sequence[LiveSequence], lasts: Sequence[int]) -> tuple[int, int, int, int]:
        """Decodes beside urgent generations."""
        for live in ready:
            live.drafts.clear()
        self._has_drafted = False
        steps = self._short_chain(len(ready))
        chain, _ = self.best_width(ready, lasts, self.widths[:2], steps)
        return chain, 1, steps, max(lasts) + chain * steps

    def _short_chain(self, sequences: int) -> int:
        """The decodes that draw half of planner_steps tokens of so many sequences together, or one of each."""
        return max(1, self._steps // (2 * (1 if self.is_on_gpu else sequences)))

    def best_width(
        self, ready: Sequence[LiveSequence], lasts: Sequence[int], widths: Sequence[int], steps: int
    ) -> tuple[int, float]:
        """The width of decodes that brings the most tokens for its time, and how many those are for that of one."""
        best = (1, float(len(ready)))
        runs = [run for live in ready for run in live.forced_runs(steps, widths[-1] - 1, self._scratch)]
        for width in widths[1:] if any(runs) else ():
            if not self._has_room(lasts, width * steps):
                break
            tokens = sum(min(run, width - 1) + 1 for run in runs) / steps / (1 + self._width_cost * (width - 1))
            best = max(best, (width, tokens), key=lambda found: found[1])
        return best

    def _has_room(self, lasts: Sequence[int], tokens: int) -> bool:
        """Whether no row would cross the end of its cache, nor a ring lose what it still sees."""
        most = self._spec.prefill_tokens if self._spec.window else tokens
        return tokens <= max(most, self._spec.verify_tokens) and all(
            last % self._capacity + tokens <= self._capacity for last in lasts
        )
