"""Splits a tick's time into phases."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from runtime.devices.device import Device

if TYPE_CHECKING:
    import nvtx

# What a tick's time is spent on, in order; the inbox is emptied again while the device works.
PHASES = ("inbox", "schedule", "upload", "launch", "commit", "wait", "deliver")


class PhaseClock:
    """Splits a tick's time into phases without gaps: where one begins, the one before it ends.

    `phase` is the current one, "" between ticks.
    """

    def __init__(self) -> None:
        self.phase = ""
        self.marks: list[tuple[str, float]] = []

    @property
    def elapsed_ms(self) -> float:
        """Since the first phase began."""
        return (time.perf_counter() - self.marks[0][1]) * 1e3

    def begin(self, phase: str) -> None:
        """What happens from now on is this phase; the first one begins a tick."""
        if phase != self.phase:
            if not self.phase:
                self.marks = []
            self.phase = phase
            self.marks.append((phase, time.perf_counter()))

    def end(self) -> None:
        """The tick is over."""
        self.begin("")


class NvtxClock(PhaseClock):
    """A clock that also shows the tick, and in it each phase, as NVTX ranges, for Nsight Systems.

    Where no tool listens, a range costs next to nothing.
    """

    def __init__(self, domain: nvtx.Domain, tick: Any, phases: Mapping[str, Any]) -> None:
        super().__init__()
        self._domain, self._tick, self._phases = domain, tick, phases

    def begin(self, phase: str) -> None:
        """What happens from now on is this phase; "" ends the tick."""
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


def clock_of(device: Device) -> PhaseClock:
    """The clock for ticks on a device: on a GPU, where package nvtx is installed, one that shows ranges."""
    if device.kind == "cpu" or importlib.util.find_spec("nvtx") is None:
        return PhaseClock()
    return nvtx_clock()


def nvtx_clock() -> NvtxClock:
    """A clock that shows NVTX ranges. Needs package nvtx."""
    import nvtx

    domain = nvtx.get_domain("tickrt")
    phases = {phase: domain.get_event_attributes(message=phase) for phase in PHASES}
    return NvtxClock(domain, domain.get_event_attributes(message="tick"), phases)


class _HasClock(Protocol):
    @property
    def clock(self) -> PhaseClock:
        """Where phases are noted."""


S = TypeVar("S", bound=_HasClock)
A = ParamSpec("A")
R = TypeVar("R")


def phase(name: str) -> Callable[[Callable[Concatenate[S, A], R]], Callable[Concatenate[S, A], R]]:
    """Method decorator: from its call on, time counts for this phase of the tick."""

    def decorate(method: Callable[Concatenate[S, A], R]) -> Callable[Concatenate[S, A], R]:
        def timed(self: S, /, *args: A.args, **kwargs: A.kwargs) -> R:
            self.clock.begin(name)
            return method(self, *args, **kwargs)

        return timed

    return decorate
