"""Ticks that have been launched and are not yet complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runtime.devices.device import Event, Stream
from runtime.tick.clock import PhaseClock
from runtime.tick.loop.events import Finished
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.shared import LoopState
from runtime.tick.runner import Launched
from runtime.tick.scheduling.slot import Slot


@dataclass(frozen=True, slots=True, eq=False)
class InFlight:
    """A launched tick: once every event of `done` is, its flags and finished results can be read."""

    launched: Sequence[Launched]
    done: tuple[Event, ...]
    finished: tuple[tuple[Slot, NDArray[Any]], ...]
    record: TickRecord

    @property
    def is_done(self) -> bool:
        """Whether the device has completed it; never blocks."""
        return all(event.is_done for event in self.done)

    def wait(self) -> None:
        """Block until the device has completed it."""
        for event in self.done:
            event.wait()

    def note_device_times(self, stream: Stream, previous: Event | None) -> Event | None:
        """Write into the record when its executes ran; returns the first one's event. `previous`: the last tick's."""
        first = next((part.begin for part in self.launched if part.begin is not None and part.begin.is_done), None)
        if first is None:
            return previous
        self.record.buckets = tuple([span for part in self.launched for span in part.spans(stream, first)])
        self.record.engine_ms = sum([bucket.ms for bucket in self.record.buckets])
        if previous is not None:
            self.record.device_gap_ms = stream.elapsed_ms(previous, first)
        return first


class TicksInFlight:
    """Completes ticks in their order: quarantines what is not finite, delivers what is finished. The tick thread alone.

    most: how many may be in flight. quarantine: ends a generation that is not finite since a step.
    """

    def __init__(
        self,
        stream: Stream,
        shared: LoopState,
        clock: PhaseClock,
        most: int,
        quarantine: Callable[[Slot, int], None],
    ) -> None:
        self._stream, self._shared, self._clock = stream, shared, clock
        self._most, self._quarantine = most, quarantine
        self._ticks: deque[InFlight] = deque()
        self._last_begin: Event | None = None

    def append(self, tick: InFlight) -> None:
        """One more was launched."""
        self._ticks.append(tick)

    def complete_due(self) -> list[TickRecord]:
        """Complete ticks that are done; wait for the oldest where as many as may be are in flight."""
        completed = []
        while self._ticks and (self._ticks[0].is_done or len(self._ticks) >= self._most):
            if not self._ticks[0].is_done:
                self._clock.begin("wait")
                # Until the device has run the oldest tick: with two in flight, the next one is launched already.
                self._ticks[0].wait()
                self._clock.begin("deliver")
            completed.append(self._complete(self._ticks.popleft()))
        return completed

    def complete_all(self) -> None:
        """Wait for all of them, and pass on their records."""
        while self._ticks:
            # Until the device has run everything that was launched.
            self._ticks[0].wait()
            self.observe([self._complete(self._ticks.popleft())])

    def drop(self) -> None:
        """Forget them: nothing of them is delivered."""
        self._ticks.clear()

    def observe(self, completed: Iterable[TickRecord]) -> None:
        """Pass on the records of ticks that are over, on the host and on the device."""
        for record in completed:
            for observer in tuple(self._shared.observers):
                observer(record)

    def _complete(self, tick: InFlight) -> TickRecord:
        self._last_begin = tick.note_device_times(self._stream, self._last_begin) if self._shared.observers else None
        for part in tick.launched:
            for slot, step in part.non_finite():
                self._quarantine(slot, step)
        registry = self._shared.registry
        delivered = [(slot, result) for slot, result in tick.finished if registry.holds(slot.work.request)]
        for slot, result in delivered:
            registry.leave(Finished(slot.id, result, tick.record.tick, slot.steps), "ok")
        tick.record.finished = tuple([slot.id for slot, _ in delivered])
        return tick.record
