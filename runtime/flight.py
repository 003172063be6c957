"""Ticks that have been launched, and what can be said about the loop from outside."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runtime.batch import LaneBatch, TickBatch, TickRecord
from runtime.device import Event as DeviceEvent
from runtime.scheduler import Slot


@dataclass(frozen=True, slots=True)
class Launched:
    """A lane's part of a launched tick: events around the decoder, and where its finite flags `[seats]` arrive."""

    batch: LaneBatch
    begin: DeviceEvent
    end: DeviceEvent
    finite: NDArray[np.bool_]


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
    """Splits a tick's time into named phases."""

    def __init__(self, started_s: float) -> None:
        self._last_s = started_s
        self.phases_ms: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """What has happened since the last end was this phase."""
        now_s = time.perf_counter()
        self.phases_ms[phase] = self.phases_ms.get(phase, 0.0) + (now_s - self._last_s) * 1e3
        self._last_s = now_s
