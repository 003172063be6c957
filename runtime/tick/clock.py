"""Splits a tick's time into phases."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from runtime.devices.device import Device
from runtime.tick.record import PHASES, TickRecord

if TYPE_CHECKING:
    import nvtx


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


class NvtxClock(PhaseClock):
    """A clock that also shows the tick, and in it each phase, as NVTX ranges, for Nsight Systems.

    Where no tool listens, a range costs next to nothing.
    """

    def __init__(self, domain: nvtx.Domain, tick: Any, phases: Mapping[str, Any]) -> None:
        super().__init__()
        self._domain, self._tick, self._phases = domain, tick, phases

    def begin(self, phase: str) -> None:
        """What happens from now on is this phase, as it may have been before; "" ends the tick."""
        if phase == self.phase:
            return
        if self.phase:
            self._domain.pop_range()
        else:
            self._domain.push_range(self._tick)
        super().begin(phase)
        if phase:
            self._domain.push_range(self._phases[phase])
        else:
            self._domain.pop_range()


def clock_of(device: Device) -> Callable[[], PhaseClock]:
    """What makes a tick's clock: on a GPU, where package nvtx is installed, one that shows ranges."""
    if device.kind == "cpu" or importlib.util.find_spec("nvtx") is None:
        return PhaseClock
    return nvtx_clock()


def nvtx_clock() -> Callable[[], NvtxClock]:
    """What makes clocks that show NVTX ranges. Needs package nvtx."""
    import nvtx

    domain = nvtx.get_domain("tickrt")
    phases = {phase: domain.get_event_attributes(message=phase) for phase in PHASES}
    return partial(NvtxClock, domain, domain.get_event_attributes(message="tick"), phases)
