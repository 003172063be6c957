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

    def __init__(self, stretches: int) -> None:
        self.stretches = stretches
        self.stretch = self.step = self.steps = 0
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
        return (max(self.stretch - 1, 0) + self.step / max(self.steps, 1)) / self.stretches

    def event(self, event: Event) -> None:
        """Take note of what the loop says."""
        if isinstance(event, Started):
            self.stretch, self.step = self.stretch + 1, 0
        elif isinstance(event, StepDone):
            self.step, self.steps, self.tick_ms = event.step, event.steps, event.tick_ms

    def audio(self, seconds: float) -> None:
        """Take note of audio that is written."""
        self.audio_s += seconds

    def close(self) -> None:
        """The end, good or bad."""


class Bar(Meter):
    """A bar on a terminal; gone when done."""

    def __init__(self, stretches: int, console: Console) -> None:
        super().__init__(stretches)
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
        where = f"stretch {self.stretch}/{self.stretches}, " if self.stretches > 1 else ""
        speed = f", {self.speed:.1f} x real time" if self.audio_s else ""
        text = f"{where}step {self.step}/{self.steps}, {self.tick_ms:.0f} ms per tick{speed}"
        self._progress.update(self._task, completed=self.share, description=text)


class Lines(Meter):
    """A line every few seconds, where a stretch is done: for logs and pipes."""

    def __init__(self, stretches: int, console: Console) -> None:
        super().__init__(stretches)
        self._console = console
        self._next_s = 0.0

    def event(self, event: Event) -> None:
        super().event(event)
        if isinstance(event, Finished) and (self.elapsed_s >= self._next_s or self.stretch == self.stretches):
            self._next_s = self.elapsed_s + LINE_EVERY_S
            where = f"stretch {self.stretch}/{self.stretches}"
            text = f"{where}: {self.steps} steps, {self.tick_ms:.0f} ms per tick, {self.elapsed_s:.1f} s so far"
            self._console.print(text, markup=False, highlight=False)


def open_meter(stretches: int, console: Console, *, quiet: bool) -> Meter:
    """A bar on a terminal, lines elsewhere, nothing where it is to be quiet."""
    if quiet:
        return Meter(stretches)
    return Bar(stretches, console) if console.is_terminal else Lines(stretches, console)
