"""Ticks that have been launched and are not yet complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from runtime.devices.device import Event, Stream
from runtime.tick.loop.record import TickRecord
from runtime.tick.loop.runner import Launched
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
