"""Which rows the decoder's batch has for the live slots of one length, and how they are split into executes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runtime.config.deployment import Deployment
from runtime.denoise.prepared import Phase, PreparedGeneration
from runtime.requests.curves import Array
from runtime.requests.request import Condition, GenerationRequest
from runtime.scheduling.slot import Slot

TOKEN_MULTIPLE = 8


class Row(NamedTuple):
    """One row of the decoder's batch: which slot's latents, under which condition."""

    slot_index: int
    condition: Condition
    request: GenerationRequest


class Execute(NamedTuple):
    """One execute of the decoder: rows `begin..end`, conditions padded to `tokens`."""

    begin: int
    end: int
    tokens: int


@dataclass(slots=True, eq=False)
class LiveSlot:
    """A slot with what was prepared for it. `has_cached_negative`: its negative velocity is kept from here on."""

    slot: Slot
    work: PreparedGeneration
    has_cached_negative: bool
    first_step: int

    @property
    def first_noise(self) -> Array | None:
        """The step noise `[T, C]` of `first_step`, where that was drawn before admission."""
        return self.work.step_noise

    @property
    def uses_cached_negative(self) -> bool:
        """Residual guidance: the negative is the initial noise ("self") or an earlier velocity ("initialize")."""
        mode = self.work.request.guidance_mode
        return self.work.values.is_guided and (mode == "self" or (mode == "initialize" and self.has_cached_negative))

    @property
    def phase(self) -> Phase:
        """The conditions of its next step."""
        return self.work.phase(self.slot.step)

    def positives(self) -> tuple[Condition, ...]:
        """The positive conditions to execute in its next step."""
        return self.phase.positives

    def negatives(self) -> tuple[Condition, ...]:
        """The negative conditions to execute in its next step: none without guidance or with a cached velocity."""
        return self.phase.negatives if self.work.values.is_guided and not self.uses_cached_negative else ()


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """The rows of one length's live slots: every slot's positives in slot order, then every slot's negatives.

    A tick covers the slots with an index below `slot_count`. positives, negatives: per live slot, its rows. Rows
    between two executes are spare. The layout holds for `num_ticks` ticks, unless a slot joins, leaves or changes.
    """

    frames: int
    slots: tuple[Slot, ...]
    slot_count: int
    rows: tuple[Row, ...]
    executes: tuple[Execute, ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...]
    uses_cached_negative: tuple[bool, ...]
    features: frozenset[str]
    row_features: frozenset[str]
    num_ticks: int

    @property
    def num_rows(self) -> int:
        """Rows that the decoder executes."""
        return sum(end - begin for begin, end, _ in self.executes)

    @property
    def widths(self) -> tuple[int, int]:
        """K and N: the most positive and negative rows that a slot has; at least 1."""
        return max(map(len, self.positives)), max(1, *map(len, self.negatives))

    @property
    def is_identity(self) -> bool:
        """Whether row i simply is slot i: then the decoder reads the latents where they lie."""
        return not self.row_features and [row.slot_index for row in self.rows] == list(range(self.slot_count))


class _Item(NamedTuple):
    row: Row
    is_negative: bool


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """How rows share executes. folds_tokens: rows of unequal L may share one (the decoder has a condition mask);
    row_multiple: at which rows an execute may begin."""

    deployment: Deployment
    folds_tokens: bool
    row_multiple: int

    def lay_out(self, frames: int, live: Sequence[LiveSlot], previous: RowLayout | None = None) -> RowLayout:
        """The layout of live slots, in slot order. Rows of `previous` stay where they are, where that costs nothing."""
        positives = [(item, item.positives()) for item in live]
        negatives = [(item, item.negatives()) for item in live]
        placed, executes = self._place(frames, _items(positives, False), _items(negatives, True), previous)
        row_of = {(item.row.slot_index, id(item.row.condition), item.is_negative): row for row, item in placed}
        blends = any(len(conditions) > 1 for _, conditions in (*positives, *negatives))
        return RowLayout(
            frames=frames,
            slots=tuple(item.slot for item in live),
            slot_count=live[-1].slot.index + 1,
            rows=_with_spares(placed),
            executes=executes,
            positives=tuple(tuple(row_of[item.slot.index, id(c), False] for c in found) for item, found in positives),
            negatives=tuple(tuple(row_of[item.slot.index, id(c), True] for c in found) for item, found in negatives),
            uses_cached_negative=tuple(item.uses_cached_negative for item in live),
            features=_union(item.work.values.features for item in live) | ({"blend"} if blends else set()),
            row_features=_union(item.work.values.row_features for item in live),
            num_ticks=min(item.phase.end - item.slot.step for item in live),
        )

    def _place(
        self, frames: int, positives: list[_Item], negatives: list[_Item], previous: RowLayout | None
    ) -> tuple[list[tuple[int, _Item]], tuple[Execute, ...]]:
        """Every item with its row, and the executes over the rows."""
        is_fused = self.deployment.runtime.fused_guidance
        passes = [positives + negatives] if is_fused else [positives, negatives]
        groups = [group for part in passes for group in self._groups(part)]
        if len(groups) == 1:
            groups = [_in_earlier_rows(groups[0], previous)]
        placed: list[tuple[int, _Item]] = []
        executes: list[Execute] = []
        end = 0
        for group in groups:
            tokens = self._padded(max(len(item.row.condition.tokens) for item in group))
            limit = self.deployment.rows_limit(frames, tokens)
            for first in range(0, len(group), limit):
                chunk = group[first : first + limit]
                begin = -(-end // self.row_multiple) * self.row_multiple
                end = begin + len(chunk)
                executes.append(Execute(begin, end, tokens))
                placed += enumerate(chunk, begin)
        return placed, tuple(executes)

    def _groups(self, items: list[_Item]) -> list[list[_Item]]:
        """Items that may share an execute: all of them, or, without a condition mask, those of equal L."""
        if self.folds_tokens:
            return [items] if items else []
        lengths = sorted({len(item.row.condition.tokens) for item in items})
        return [[item for item in items if len(item.row.condition.tokens) == length] for length in lengths]

    def _padded(self, tokens: int) -> int:
        """L of an execute: with a mask, rounded up so that few shapes occur; without one, exact."""
        if not self.folds_tokens:
            return tokens
        least = min(shape.tokens.min for shape in self.deployment.shapes)
        return min(max(-(-tokens // TOKEN_MULTIPLE) * TOKEN_MULTIPLE, least), self.deployment.max_tokens)


def _items(conditions: Iterable[tuple[LiveSlot, tuple[Condition, ...]]], is_negative: bool) -> list[_Item]:
    return [
        _Item(Row(live.slot.index, condition, live.work.request), is_negative)
        for live, found in conditions
        for condition in found
    ]


def _in_earlier_rows(items: list[_Item], previous: RowLayout | None) -> list[_Item]:
    """The same items, those that `previous` has at the same rows: what stays is not uploaded again.

    In slot order where row i then is slot i, since no rows graph is needed in that case.
    """
    if previous is None or [item.row.slot_index for item in items] == list(range(len(items))):
        return items
    rows_of = {(row.slot_index, id(row.condition), id(row.request)): i for i, row in enumerate(previous.rows)}
    kept: dict[int, _Item] = {}
    moved: list[_Item] = []
    for item in items:
        row = rows_of.get((item.row.slot_index, id(item.row.condition), id(item.row.request)), len(items))
        if row < len(items) and row not in kept:
            kept[row] = item
        else:
            moved.append(item)
    return [kept[row] if row in kept else moved.pop(0) for row in range(len(items))]


def _with_spares(placed: list[tuple[int, _Item]]) -> tuple[Row, ...]:
    """Rows by their index; a row between two executes repeats the one before it."""
    rows: list[Row] = []
    for index, item in placed:
        rows += rows[-1:] * (index - len(rows))
        rows.append(item.row)
    return tuple(rows)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*sets)
