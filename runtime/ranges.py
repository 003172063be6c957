"""Ticks and their phases as NVTX ranges, for Nsight Systems. Where no tool listens, a range costs next to nothing."""

from __future__ import annotations

import nvtx

from runtime.batch import PHASES
from runtime.flight import PhaseClock

_domain = nvtx.get_domain("tickrt")
_tick = _domain.get_event_attributes(message="tick")
_phases = {phase: _domain.get_event_attributes(message=phase) for phase in PHASES}


class RangedClock(PhaseClock):
    """A clock that shows a range for the tick, and in it one for each phase."""

    def begin(self, phase: str) -> None:
        """What happens from now on is this phase, as it may have been before; "" ends the tick."""
        if phase == self.phase:
            return
        if self.phase:
            _domain.pop_range()
        else:
            _domain.push_range(_tick)
        super().begin(phase)
        if phase:
            _domain.push_range(_phases[phase])
        else:
            _domain.pop_range()
