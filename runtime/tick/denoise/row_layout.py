"""Which rows the decoder's batch has for the live slots of one length, and how they are split into executes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runtime.config.deployment import HOST_TARGETS, Deployment
from runtime.engines.adapters import Adapter
from runtime.requests.request import Condition, GenerationRequest
from runtime.tick.denoise.prepared import PreparedGeneration, VelocityParts
from runtime.tick.denoise.slot_fields import GUIDANCE_FEATURES, PAUSED_GUIDANCE
from runtime.tick.scheduling.slot import Slot

# Of a loop, its frames and by how many of them a step turns it.
Turn = tuple[int, int]


class DecoderRow(NamedTuple):
    """One row of the decoder's batch: which slot's latents, under which condition."""

    slot_index: int
    condition: Condition
    request: GenerationRequest


class Execute(NamedTuple):
    """One execute of the decoder: rows `begin..end`, conditions padded to `tokens`."""

    begin: int
    end: int
    tokens: int


class LaunchKey(NamedTuple):
    """Everything that a captured graph bakes in: shapes, engines, and which sides of the state are read."""

    frames: int
    slot_count: int
    executes: tuple[Execute, ...]
    widths: tuple[int, int]
    step: frozenset[str]
    rows: frozenset[str] | None
    adapter_rank: int
    has_rings: bool
    sides: tuple[int, ...]
    generation: int


@dataclass(slots=True, eq=False)
class LiveSlot:
    """A slot with what was prepared for it, and the rows of its next step, which `refresh` computes.

    has_cached_negative: its negative velocity is kept from here on, or its difference for a step. previous: the parts
    of its last step's velocity, None where the next one cannot extrapolate from it. The rows stay as they are before
    step `rows_until`.
    """

    slot: Slot
    work: PreparedGeneration
    has_cached_negative: bool
    previous: VelocityParts | None = None
    positives: tuple[DecoderRow, ...] = ()
    negatives: tuple[DecoderRow, ...] = ()
    is_guided: bool = False
    velocity_parts: VelocityParts | None = None
    uses_cached_negative: bool = False
    keeps_difference: bool = False
    rows_until: int = 0

    def __post_init__(self) -> None:
        self.refresh()

    @property
    def pauses_guidance(self) -> bool:
        """Whether the next step is outside of its guidance interval."""
        return self.work.values.is_guided and not self.is_guided

    @property
    def features(self) -> frozenset[str]:
        """What the step graph must be able to do in the next step."""
        features = self.work.values.features
        return features - GUIDANCE_FEATURES if self.pauses_guidance else features

    @property
    def extrapolation(self) -> float:
        """How far the next step extrapolates its velocity; 0 where it cannot, or where the solver does not."""
        if self.previous is None or "ab2" not in self.work.values.features or self.previous != self.velocity_parts:
            return 0.0
        return self.work.extrapolation[self.slot.step]

    @property
    def turn(self) -> Turn | None:
        """That of the next step; None where it is no loop."""
        loop = self.work.request.loop_frames
        return None if loop is None else (loop, self.work.shifts[self.slot.step])

    @property
    def guidance_fields(self) -> Mapping[str, Any]:
        """Rows of the fields that differ where guidance pauses."""
        fields = self.work.values.fields
        if self.pauses_guidance:
            return PAUSED_GUIDANCE if fields["momentum"] is not None else PAUSED_GUIDANCE | {"momentum": None}
        return {name: fields[name] for name in PAUSED_GUIDANCE}

    def refresh(self) -> None:
        """The rows of the next step: no negatives without guidance, outside of its interval, or where residual guidance
        has the velocity.

        That is the initial noise (mode "self"), or an earlier step's ("initialize"). In mode "alternate" every second
        guided step keeps the difference of the one before.
        """
        work, step, mode = self.work, self.slot.step, self.work.request.guidance_mode
        self.uses_cached_negative = work.values.is_guided and (
            mode == "self" or (mode == "initialize" and self.has_cached_negative)
        )
        phase = work.phase(step)
        self.is_guided = work.is_guided(step)
        self.velocity_parts = VelocityParts(phase.positives, phase.negatives if self.is_guided else None)
        self.keeps_difference = self.is_guided and self.has_cached_negative and mode == "alternate"
        later = range(step + 1, phase.end)
        self.rows_until = next((k for k in later if work.is_guided(k) != self.is_guided), phase.end)
        if self.is_guided and mode == "alternate":
            self.rows_until = step + 1
        self.positives = tuple([self._row(condition) for condition in phase.positives])
        has_negatives = self.is_guided and not (self.uses_cached_negative or self.keeps_difference)
        self.negatives = tuple([self._row(condition) for condition in phase.negatives]) if has_negatives else ()

    def _row(self, condition: Condition) -> DecoderRow:
        """The same row as before, where there was one: it need not be uploaded again."""
        index, request = self.slot.index, self.work.request
        known = (row for row in (*self.positives, *self.negatives) if row.condition is condition)
        return next(known, None) or DecoderRow(index, condition, request)


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """The rows of one length's live slots: every slot's positives in slot order, then every slot's negatives.

    A tick covers the slots with an index below `slot_count`. positives, negatives: per live slot, its rows. Rows
    between two executes are spare. has_rings: some are loops, which the decoder sees turned. is_identity: row i simply
    is slot i, and the decoder reads the latents where they lie. The layout holds for `num_ticks` ticks, unless a slot
    joins, leaves or changes.
    """

    frames: int
    slots: tuple[Slot, ...]
    slot_count: int
    rows: tuple[DecoderRow, ...]
    is_identity: bool
    executes: tuple[Execute, ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...]
    uses_cached_negative: tuple[bool, ...]
    keeps_difference: tuple[bool, ...]
    features: frozenset[str]
    row_features: frozenset[str]
    adapters: frozenset[Adapter]
    has_rings: bool
    num_ticks: int

    @property
    def num_rows(self) -> int:
        """Rows that the decoder executes."""
        return sum(end - begin for begin, end, _ in self.executes)

    @property
    def widths(self) -> tuple[int, int]:
        """K and N: the most positive and negative rows that a slot has; at least 1."""
        return max(map(len, self.positives)), max(1, *map(len, self.negatives))


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """How rows share executes. folds_tokens: rows of unequal L may share one (the decoder has a condition mask);
    row_multiple: at which rows an execute may begin.

    On a GPU few shapes occur, so that captured graphs come back: a tick covers all slots, and L stays where that costs
    at most half of it.
    """

    deployment: Deployment
    folds_tokens: bool
    row_multiple: int

    def lay_out(self, frames: int, live: Sequence[LiveSlot], previous: RowLayout | None = None) -> RowLayout:
        """The layout of live slots, in slot order. Rows of `previous` stay where they are, where that costs nothing."""
        rows = [row for item in live for row in item.positives]
        num_positives = len(rows)
        rows += [row for item in live for row in item.negatives]
        places, executes = self._place(frames, rows, num_positives, previous)
        positives = _split(places[:num_positives], [len(item.positives) for item in live])
        negatives = _split(places[num_positives:], [len(item.negatives) for item in live])
        blends = any(len(own) > 1 for own in (*positives, *negatives))
        features = frozenset[str]().union(*[item.features for item in live])
        row_features = frozenset[str]().union(*[item.work.values.row_features for item in live])
        laid, slot_count = _in_places(rows, places), self._slot_count(live)
        return RowLayout(
            frames=frames,
            slots=tuple([item.slot for item in live]),
            slot_count=slot_count,
            rows=laid,
            is_identity=not row_features and self._is_identity(laid, slot_count),
            executes=executes,
            positives=positives,
            negatives=negatives,
            uses_cached_negative=tuple([item.uses_cached_negative for item in live]),
            keeps_difference=tuple([item.keeps_difference for item in live]),
            features=features | {"blend"} if blends else features,
            row_features=row_features,
            adapters=frozenset([use.adapter for item in live for use in item.work.values.adapters]),
            has_rings=any(item.work.shifts for item in live),
            num_ticks=min([item.rows_until - item.slot.step for item in live]),
        )

    def _place(
        self, frames: int, rows: Sequence[DecoderRow], num_positives: int, previous: RowLayout | None
    ) -> tuple[list[int], tuple[Execute, ...]]:
        """Where each row goes in the decoder's batch, and the executes over it."""
        indices = list(range(len(rows)))
        is_fused = self.deployment.runtime.fused_guidance
        passes = [indices] if is_fused else [indices[:num_positives], indices[num_positives:]]
        groups = [group for part in passes for group in self._groups(part, rows)]
        if len(groups) == 1 and (self._has_few_shapes or not _are_in_order(rows)):
            groups = [_in_earlier_places(rows, previous)]
        places, executes, end = [0] * len(rows), list[Execute](), 0
        for group in groups:
            tokens = self._padded(frames, max([len(rows[index].condition.tokens) for index in group]), previous)
            limit = self.deployment.rows_limit(frames, tokens)
            for first in range(0, len(group), limit):
                chunk = group[first : first + limit]
                begin = -(-end // self.row_multiple) * self.row_multiple
                end = begin + len(chunk)
                executes.append(Execute(begin, end, tokens))
                for place, index in enumerate(chunk, begin):
                    places[index] = place
        return places, tuple(executes)

    def _groups(self, indices: list[int], rows: Sequence[DecoderRow]) -> list[list[int]]:
        """Rows that may share an execute: all of them, or, without a condition mask, those of equal L."""
        if self.folds_tokens:
            return [indices] if indices else []
        lengths = sorted({len(rows[index].condition.tokens) for index in indices})
        return [[index for index in indices if len(rows[index].condition.tokens) == length] for length in lengths]

    @property
    def _has_few_shapes(self) -> bool:
        return self.deployment.target not in HOST_TARGETS

    def _slot_count(self, live: Sequence[LiveSlot]) -> int:
        return self.deployment.runtime.depth if self._has_few_shapes else live[-1].slot.index + 1

    def _is_identity(self, rows: Sequence[DecoderRow], slot_count: int) -> bool:
        """On a GPU with several slots never: as many rows as slots would be two shapes, in order and not."""
        return len(rows) == slot_count and _are_in_order(rows) and (slot_count == 1 or not self._has_few_shapes)

    def _padded(self, frames: int, tokens: int, previous: RowLayout | None) -> int:
        """L of an execute: with a mask, rounded up so that few shapes occur; without one, exact."""
        if not self.folds_tokens:
            return tokens
        multiple = self.deployment.token_multiple
        rounded = -(-tokens // multiple) * multiple
        if previous is not None and self._has_few_shapes and len(previous.executes) == 1:
            before = previous.executes[0].tokens
            rounded = before if rounded <= before <= 2 * rounded else rounded
        ranges = [shape.tokens for shape in self.deployment.shapes if shape.frames.holds(frames)]
        return min([allowed.nearest(rounded) for allowed in ranges if allowed.max >= tokens])


def _are_in_order(rows: Sequence[DecoderRow]) -> bool:
    """Whether row i is slot i: that needs no rows graph."""
    return [row.slot_index for row in rows] == list(range(len(rows)))


def _in_earlier_places(rows: Sequence[DecoderRow], previous: RowLayout | None) -> list[int]:
    """Indices of rows in the order of their places: a row that `previous` has stays in its place, so that it is not
    uploaded again."""
    indices = list(range(len(rows)))
    if previous is None:
        return indices
    places = {id(row): place for place, row in enumerate(previous.rows)}
    kept: dict[int, int] = {}
    moved: list[int] = []
    for index, row in enumerate(rows):
        place = places.get(id(row), len(rows))
        if place < len(rows) and place not in kept:
            kept[place] = index
        else:
            moved.append(index)
    rest = iter(moved)
    return [kept[place] if place in kept else next(rest) for place in indices]


def _in_places(rows: Sequence[DecoderRow], places: Sequence[int]) -> tuple[DecoderRow, ...]:
    """The rows by their place; a place between two executes repeats the row before it."""
    by_place = dict(zip(places, rows, strict=True))
    laid: list[DecoderRow] = []
    for place in range(max(places) + 1):
        laid.append(by_place.get(place) or laid[-1])
    return tuple(laid)


def _split(places: Sequence[int], counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Consecutive parts of `places`, `counts[i]` of them in part i."""
    rest = iter(places)
    return tuple([tuple([next(rest) for _ in range(count)]) for count in counts])
