"""Which rows a bucket's batch has, and how they are split into executes of the decoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runtime.requests.request import Condition
from runtime.scheduling.batch import Row, SlotStep
from runtime.scheduling.slot import Slot, uses_cached_negative


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Which rows a bucket has, and per slot which are its own: the same object as long as nobody comes, goes or
    changes."""

    rows: tuple[Row, ...]
    executes: tuple[tuple[int, int, int], ...]
    positives: tuple[tuple[int, ...], ...]
    negatives: tuple[tuple[int, ...], ...]
    features: frozenset[str]
    row_features: frozenset[str]


TOKEN_MULTIPLE = 8


def active_conditions(slot: Slot) -> tuple[Condition, ...]:
    """The positive conditions of the slot's present step; the first one where none is active."""
    conditions = slot.request.conditions
    return tuple(c for c in conditions if c.active(slot.step, slot.steps)) or conditions[:1]


def active_negatives(slot: Slot) -> tuple[Condition, ...]:
    """The negative conditions to execute now: none without guidance or where a kept velocity stands in."""
    if not slot.is_guided or uses_cached_negative(slot):
        return ()
    negatives = slot.request.negatives
    return tuple(c for c in negatives if c.active(slot.step, slot.steps)) or negatives[:1]


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)


def _slot_step(slot: Slot, positives: tuple[int, ...], negatives: tuple[int, ...]) -> SlotStep:
    return SlotStep(
        slot_index=slot.slot_index,
        request=slot.request,
        step=slot.step,
        steps=slot.steps,
        time=float(slot.times[slot.step]),
        next_time=float(slot.times[slot.step + 1]),
        positives=positives,
        negatives=negatives,
        use_cached_negative=uses_cached_negative(slot),
    )
