"""What a generation on the command line tells its user: step, tick time, and speed against real time."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from runtime.tick.events import Event, Finished, Started
from runtime.tick.events import Progress as StepDone

LINE_EVERY_S = 5.0


class Meter:
    """Counts what it is told and shows nothing."""

    def __init__(self, segments: int) -> None:
        self.segments = segments
        self.segment = self.step = self.steps = 0
        self.tick_ms = self.audio_s = 0.0
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Since it was made."""
        return time.monotonic() - self._started_s

    @property
    def speed(self) -> float:
        """Seconds of audio per second."""
        return self.audio_s / max(self.elapsed_s, 1e-9)

    @property
    def share(self) -> float:
        """How much of all steps is done, 0..1."""
        return (max(self.segment - 1, 0) + self.step / max(self.steps, 1)) / self.segments

    def event(self, event: Event) -> None:
        """Take note of what the loop says."""
        if isinstance(event, Started):
            self.segment, self.step = self.segment + 1, 0
        elif isinstance(event, StepDone):
            self.step, self.steps, self.tick_ms = event.step, event.steps, event.tick_ms

    def audio(self, seconds: float) -> None:
        """Take note of audio that is written."""
        self.audio_s += seconds

    def close(self) -> None:
        """The end, good or bad."""


class Bar(Meter):
    """A bar on a terminal; gone when done."""

    def __init__(self, segments: int, console: Console) -> None:
        super().__init__(segments)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("waiting", total=1.0)
        self._progress.start()

    def event(self, event: Event) -> None:
        super().event(event)
        self._show()

    def audio(self, seconds: float) -> None:
        super().audio(seconds)
        self._show()

    def close(self) -> None:
        self._progress.stop()

    def _show(self) -> None:
        where = f"segment {self.segment}/{self.segments}, " if self.segments > 1 else ""
        speed = f", {self.speed:.1f} x real time" if self.audio_s else ""
        text = f"{where}step {self.step}/{self.steps}, {self.tick_ms:.0f} ms per tick{speed}"
        self._progress.update(self._task, completed=self.share, description=text)


class Lines(Meter):
    """A line every few seconds, where a segment is done: for logs and pipes."""

    def __init__(self, segments: int, console: Console) -> None:
        super().__init__(segments)
        self._console = console
        self._next_s = 0.0

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, Finished) and (self.elapsed_s >= self._next_s or self.segment == self.segments):
            self._next_s = self.elapsed_s + LINE_EVERY_S
            where = f"segment {self.segment}/{self.segments}"
            text = f"{where}: {self.steps} steps, {self.tick_ms:.0f} ms per tick, {self.elapsed_s:.1f} s so far"
            self._console.print(text, markup=False, highlight=False)


def open_meter(segments: int, console: Console, *, quiet: bool) -> Meter:
    """A bar on a terminal, lines elsewhere, nothing where it is to be quiet."""
    if quiet:
        return Meter(segments)
    return Bar(segments, console) if console.is_terminal else Lines(segments, console)
