"""Ticks that have been launched, and what can be said about the loop from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.devices.device import Event as DeviceEvent
from runtime.devices.device import Stream
from runtime.scheduling.batch import BucketBatch, TickBatch
from runtime.scheduling.slot import Slot
from runtime.tick.record import BucketSpan, TickRecord


@dataclass(frozen=True, slots=True)
class Launched:
    """A bucket's part of a launched tick: events around the decoder, and where its finite flags `[S]` arrive."""

    batch: BucketBatch
    begin: DeviceEvent
    end: DeviceEvent
    finite: NDArray[np.bool_]

    def span(self, stream: Stream, first: DeviceEvent) -> BucketSpan:
        """When it ran, from `first` on; its events are done."""
        batch = self.batch
        rows = sum(end - begin for begin, end, _ in batch.executes)
        begin_ms = 0.0 if first is self.begin else stream.elapsed_ms(first, self.begin)
        ms = stream.elapsed_ms(self.begin, self.end)
        return BucketSpan(batch.frames, len(batch.slots), rows, len(batch.executes), begin_ms, ms)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched tick: once `done`, its flags and finished latents can be read."""

    batch: TickBatch
    buckets: tuple[Launched, ...]
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
