"""What a tick will execute, as a value; what it measured; and what listeners are told."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.requests.request import Condition, GenerationRequest


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the decoder's batch: which slot's latents, under which condition."""

    slot_index: int
    condition: Condition
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class SlotStep:
    """One slot's part in a tick: its step k of K, from `time` to `next_time`, and which rows are its own."""

    slot_index: int
    request: GenerationRequest
    step: int
    steps: int
    time: float
    next_time: float
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    use_cached_negative: bool

    @property
    def is_last(self) -> bool:
        """Whether the generation is finished after this step."""
        return self.step + 1 == self.steps


@dataclass(frozen=True, slots=True)
class BucketBatch:
    """All slots of one length T. Rows: every slot's positives in slot order, then every slot's negatives.

    `slot_count`: this tick covers the slots with indices below it; `executes` are row ranges (begin, end), each one
    execute of the decoder, with the number of condition tokens it is padded to. Rows between two of them are spare.
    """

    frames: int
    slot_count: int
    slots: tuple[SlotStep, ...]
    rows: tuple[Row, ...]
    executes: tuple[tuple[int, int, int], ...]
    features: frozenset[str]
    row_features: frozenset[str]

    def begin_of(self, row: int) -> int:
        """The first row of the execute that a row is in."""
        return next(begin for begin, end, _ in reversed(self.executes) if begin <= row)


@dataclass(frozen=True, slots=True)
class TickBatch:
    """Everything one tick executes."""

    tick: int
    buckets: tuple[BucketBatch, ...]

    @property
    def slots(self) -> int:
        """Live slots."""
        return sum(len(bucket.slots) for bucket in self.buckets)

    @property
    def rows(self) -> int:
        """Rows that the decoder executes, over all buckets."""
        return sum(end - begin for bucket in self.buckets for begin, end, _ in bucket.executes)
