"""What a tick will execute, as a value; what it measured; and what listeners are told."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.requests.request import Condition, GenerationRequest


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the decoder's batch: which seat's latents, under which condition."""

    seat: int
    condition: Condition
    request: GenerationRequest


@dataclass(frozen=True, slots=True)
class SlotStep:
    """One slot's part in a tick: its step k of K, from `time` to `next_time`, and which rows are its own."""

    seat: int
    request: GenerationRequest
    step: int
    steps: int
    time: float
    next_time: float
    positives: tuple[int, ...]
    negatives: tuple[int, ...]
    use_kept: bool

    @property
    def is_last(self) -> bool:
        """Whether the generation is finished after this step."""
        return self.step + 1 == self.steps


@dataclass(frozen=True, slots=True)
class LaneBatch:
    """All slots of one length T. Rows: every slot's positives in seat order, then every slot's negatives.

    `seats` is the prefix of the lane's seats that this tick covers; `executes` are row ranges (begin, end), each one
    execute of the decoder, with the number of condition tokens it is padded to. Rows between two of them are spare.
    """

    frames: int
    seats: int
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
    lanes: tuple[LaneBatch, ...]

    @property
    def slots(self) -> int:
        """Live slots."""
        return sum(len(lane.slots) for lane in self.lanes)

    @property
    def rows(self) -> int:
        """Rows that the decoder executes, over all lanes."""
        return sum(end - begin for lane in self.lanes for begin, end, _ in lane.executes)
