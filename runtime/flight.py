"""Ticks that have been launched, and what can be said about the loop from outside."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.batch import LaneBatch, LaneSpan, TickBatch, TickRecord
from runtime.device import Device, Stream
from runtime.device import Event as DeviceEvent
from runtime.scheduler import Slot


@dataclass(frozen=True, slots=True)
class Launched:
    """A lane's part of a launched tick: events around the decoder, and where its finite flags `[seats]` arrive."""

    batch: LaneBatch
    begin: DeviceEvent
    end: DeviceEvent
    finite: NDArray[np.bool_]

    def span(self, stream: Stream, first: DeviceEvent) -> LaneSpan:
        """When it ran, from `first` on; its events are done."""
        batch = self.batch
        rows = sum(end - begin for begin, end, _ in batch.executes)
        begin_ms = 0.0 if first is self.begin else stream.elapsed_ms(first, self.begin)
        ms = stream.elapsed_ms(self.begin, self.end)
        return LaneSpan(batch.frames, len(batch.slots), rows, len(batch.executes), begin_ms, ms)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched tick: once `done`, its flags and finished latents can be read."""

    batch: TickBatch
    lanes: tuple[Launched, ...]
    done: DeviceEvent
    finished: tuple[tuple[Slot, NDArray[np.float32]], ...]
    record: TickRecord


@dataclass(frozen=True, slots=True)
class LoopStats:
    """A snapshot: `outcomes` counts every terminal event since the start."""

    slots_active: int
    slots_capacity: int
    queue_depth: int
    ticks: int
    outcomes: dict[str, int]
    is_alive: bool
    is_idle: bool
    is_draining: bool
    last_tick_s: float


class PhaseClock:
    """Splits a tick's time into phases without gaps: where one begins, the one before it ends.

    `phase` is the one that goes on, "" before the first and after the last.
    """

    def __init__(self) -> None:
        self.phase = ""
        self.marks: list[tuple[str, float]] = []

    @property
    def elapsed_ms(self) -> float:
        """Since the first phase began."""
        return (time.perf_counter() - self.marks[0][1]) * 1e3

    def begin(self, phase: str) -> None:
        """What happens from now on is this phase, as it may have been before."""
        if phase != self.phase:
            self.phase = phase
            self.marks.append((phase, time.perf_counter()))

    def end(self) -> None:
        """The tick is over, and with it the phase that was last begun."""
        self.begin("")

    def note(self, record: TickRecord) -> None:
        """Write what was measured into a tick's record."""
        record.marks = tuple(self.marks)
        record.tick_ms = (self.marks[-1][1] - self.marks[0][1]) * 1e3


def clock_of(device: Device) -> type[PhaseClock]:
    """The clock for ticks on a device: on a GPU, where package nvtx is installed, one that shows ranges."""
    if device.kind == "cpu" or importlib.util.find_spec("nvtx") is None:
        return PhaseClock
    from runtime.ranges import RangedClock

    return RangedClock
