"""Progress of a generation on the command line: segment, step, tick time, and speed against real time."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from runtime.commands.terminal import print_line
from runtime.tick.loop.events import Event, Finished, Started
from runtime.tick.loop.events import Progress as StepDone

LINE_INTERVAL_S = 5.0


class ProgressMeter:
    """Counts segments, steps and audio; shows nothing."""

    def __init__(self, num_segments: int) -> None:
        self.num_segments = num_segments
        self.segment = self.step = self.steps = 0
        self.tick_ms = self.audio_s = 0.0
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the meter was made."""
        return time.monotonic() - self._started_s

    @property
    def speed(self) -> float:
        """Seconds of audio per second."""
        return self.audio_s / max(self.elapsed_s, 1e-9)

    @property
    def share(self) -> float:
        """The share of all steps that is done, 0..1."""
        return (max(self.segment - 1, 0) + self.step / max(self.steps, 1)) / self.num_segments

    @property
    def timing(self) -> str:
        """The elapsed time and the speed, as text."""
        return f"made in {self.elapsed_s:.2f} s ({self.speed:.1f} x real time)"

    def on_event(self, event: Event) -> None:
        """Count an event of the tick loop."""
        if isinstance(event, Started):
            self.segment, self.step = self.segment + 1, 0
        elif isinstance(event, StepDone):
            self.step, self.steps, self.tick_ms = event.step, event.steps, event.tick_ms

    def add_audio(self, seconds: float) -> None:
        """Count audio that was written."""
        self.audio_s += seconds

    def close(self) -> None:
        """End the display; may be called at any time."""


class ProgressBar(ProgressMeter):
    """A bar on a terminal, removed on close."""

    def __init__(self, num_segments: int, console: Console) -> None:
        super().__init__(num_segments)
        columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("waiting", total=1.0)
        self._progress.start()

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        self._update()

    def add_audio(self, seconds: float) -> None:
        super().add_audio(seconds)
        self._update()

    def close(self) -> None:
        self._progress.stop()

    def _update(self) -> None:
        segment = f"segment {self.segment}/{self.num_segments}, " if self.num_segments > 1 else ""
        speed = f", {self.speed:.1f} x real time" if self.audio_s else ""
        text = f"{segment}step {self.step}/{self.steps}, {self.tick_ms:.0f} ms per tick{speed}"
        self._progress.update(self._task, completed=self.share, description=text)


class ProgressLines(ProgressMeter):
    """For logs and pipes: a line after a segment or a step, at most one per LINE_INTERVAL_S, and one after the last
    segment."""

    def __init__(self, num_segments: int, console: Console) -> None:
        super().__init__(num_segments)
        self._console = console
        self._next_line_s = 0.0

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        is_due = self.elapsed_s >= self._next_line_s
        if isinstance(event, Finished) and (is_due or self.segment == self.num_segments):
            self._print(f"{self.steps} steps")
        elif isinstance(event, StepDone) and is_due and self.elapsed_s >= LINE_INTERVAL_S:
            self._print(f"step {self.step}/{self.steps}")

    def _print(self, done: str) -> None:
        self._next_line_s = self.elapsed_s + LINE_INTERVAL_S
        times = f"{self.tick_ms:.0f} ms per tick, {self.elapsed_s:.1f} s so far"
        print_line(f"segment {self.segment}/{self.num_segments}: {done}, {times}", self._console)


def open_progress(num_segments: int, console: Console, *, quiet: bool) -> ProgressMeter:
    """A bar on a terminal, lines elsewhere, no output where `quiet`."""
    if quiet:
        return ProgressMeter(num_segments)
    return (ProgressBar if console.is_terminal else ProgressLines)(num_segments, console)
