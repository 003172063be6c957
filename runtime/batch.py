"""What a tick will execute, as a value; what it measured; and what listeners are told."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import TickError
from runtime.launches import LaunchCounts
from runtime.request import Condition, GenerationRequest

# What a tick's time is spent on, in order; the inbox is emptied again while the device works.
PHASES = ("inbox", "schedule", "upload", "launch", "commit", "wait", "deliver")


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


class PhaseSpan(NamedTuple):
    """A stretch of a tick: which phase it belongs to, when it began after the tick did, and how long it took."""

    phase: str
    begin_ms: float
    ms: float


class LaneSpan(NamedTuple):
    """A lane's executes on the device: when they began after those of the tick's first lane, how long they took."""

    frames: int
    slots: int
    rows: int
    executes: int
    begin_ms: float
    ms: float


@dataclass(slots=True)
class TickRecord:
    """What one tick measured. Times in milliseconds; `allocations` are the device's, zero in steady state.

    marks: when (perf_counter, in seconds) each phase began, and, named "", when the tick ended.
    lanes, engine_ms: the decoder's executes on the device; of lanes that replayed a captured graph, the whole graph.
    device_gap_ms: from when the device began the tick before to when it began this one, 0 for the first.
    bound, captured, replayed, evicted: what happened to launches (see LaunchCache); `generation` counts engine swaps.
    """

    tick: int
    slots: int
    rows: int
    frames: tuple[int, ...]
    executes: int
    variants: tuple[str, ...]
    queue_depth: int
    tick_ms: float = 0.0
    marks: tuple[tuple[str, float], ...] = ()
    engine_ms: float = 0.0
    lanes: tuple[LaneSpan, ...] = ()
    device_gap_ms: float = 0.0
    allocations: int = 0
    bound: int = 0
    captured: int = 0
    replayed: int = 0
    evicted: int = 0
    generation: int = 0
    finished: tuple[str, ...] = ()

    @property
    def started_s(self) -> float:
        """When the tick began, of perf_counter."""
        return self.marks[0][1] if self.marks else 0.0

    @property
    def spans(self) -> tuple[PhaseSpan, ...]:
        """The tick from its begin to its end, without gaps; the sum of the spans is tick_ms."""
        return tuple(
            PhaseSpan(phase, (begin_s - self.started_s) * 1e3, (end_s - begin_s) * 1e3)
            for (phase, begin_s), (_, end_s) in pairwise(self.marks)
        )

    @property
    def phases_ms(self) -> dict[str, float]:
        """Time in each of PHASES; the sum is tick_ms."""
        times = dict.fromkeys(PHASES, 0.0)
        for (phase, begin_s), (_, end_s) in pairwise(self.marks):
            times[phase] += (end_s - begin_s) * 1e3
        return times

    def count(self, counts: LaunchCounts) -> None:
        """Note what happened to launches in this tick."""
        self.bound, self.captured = counts.bound, counts.captured
        self.replayed, self.evicted = counts.replayed, counts.evicted


@dataclass(frozen=True, slots=True)
class Started:
    """A generation took a slot; its first step is in this tick."""

    request_id: str
    tick: int


@dataclass(frozen=True, slots=True)
class Progress:
    """`step` of `steps` are done."""

    request_id: str
    step: int
    steps: int
    tick: int
    tick_ms: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The clean latents `[T, C]` float32; the array belongs to the receiver."""

    request_id: str
    latents: NDArray[np.float32]
    tick: int
    steps: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The generation ended with an error."""

    request_id: str
    error: TickError


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The generation was cancelled; nothing of it runs any more."""

    request_id: str


Event = Started | Progress | Finished | Failed | Cancelled
