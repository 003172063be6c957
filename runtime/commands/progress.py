"""Progress on standard error: of a generation by its segments and steps, and of a run of several tasks.

A bar on a terminal, lines elsewhere. No command is silent for long: at_intervals has a say while one step of a large
model, or its loading, takes its time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from runtime.commands.terminal import Terminal, print_line
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


REDRAW_INTERVAL_S = 0.5
SILENT_S = 5.0
OPENING = "opening the engines"


@contextmanager
def at_intervals(say: Callable[[float], None]) -> Iterator[None]:
    """Call `say` on a thread with the seconds since the block began: after SILENT_S, and ever less often."""
    begin_s, is_over = time.monotonic(), threading.Event()

    def wait() -> None:
        while not is_over.wait(max(SILENT_S, (time.monotonic() - begin_s) / 4)):
            say(time.monotonic() - begin_s)

    thread = threading.Thread(target=wait, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on standard error, while the block takes long, what it waits for and for how long it has."""
    with at_intervals(lambda s: print_line(f"{what}: {duration_text(s)} so far", Terminal(stderr=True))):
        yield


class TaskProgress:
    """Tasks that run one after the other, shown on standard error; a context manager.

    weights: the expected cost of each task, in any unit; without weights nothing is shown. The bar changes in `update`
    and between tasks, so that drawing takes no time from what is measured; only where both are seconds apart, a thread
    says that the work goes on.
    """

    def __init__(self, weights: Sequence[float] = (), console: Console | None = None) -> None:
        self._weights = weights
        self._console = console or Terminal(stderr=True)
        self._num_done = 0
        self._name, self._due_s = "preparing", 0.0
        self._open = ExitStack()
        self._started_s = self._next_draw_s = time.monotonic()
        self._bar: Progress | None = None
        if weights and self._console.is_terminal:
            columns = (BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
            self._bar = Progress(
                *columns, console=self._console, transient=True, auto_refresh=False,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._bar.add_task("", total=1.0)

    def __enter__(self) -> TaskProgress:
        self._started_s = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._open.callback(self._bar.stop)
        if self._weights:
            self._open.enter_context(at_intervals(self._say))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """Run the next task in this block; its line is printed at the end, unless it fails."""
        begin_s, self._name = time.monotonic(), f"{self._num_done + 1}/{len(self._weights)} {name}"
        self._started_s = self._started_s if self._num_done else begin_s
        self._draw(0.0)
        yield
        self._num_done += 1
        if self._bar is None and self._weights:
            took = f"{name}: {time.monotonic() - begin_s:.1f} s"
            print_line(f"{self._num_done}/{len(self._weights)} {took}{self._remaining(0.0)}", self._console)

    def update(self, share: float) -> None:
        """Say that a share of the present task is done, 0..1; redraws at most every REDRAW_INTERVAL_S."""
        if time.monotonic() >= self._next_draw_s:
            self._draw(share)

    def remaining_s(self, share: float = 0.0) -> float | None:
        """Seconds left if the rest costs what its weights say; None before anything is done."""
        done = sum(self._weights[: self._num_done])
        if self._num_done < len(self._weights):
            done += share * self._weights[self._num_done]
        if done <= 0.0:
            return None
        return (time.monotonic() - self._started_s) * (sum(self._weights) / done - 1.0)

    def _remaining(self, share: float) -> str:
        remaining_s = self.remaining_s(share)
        return "" if not remaining_s else f", about {duration_text(remaining_s)} left"

    def _draw(self, share: float) -> None:
        self._next_draw_s = time.monotonic() + REDRAW_INTERVAL_S
        self._due_s = time.monotonic() + (self.remaining_s(share) or 0.0)
        if self._bar is not None and self._num_done < len(self._weights):
            done = (sum(self._weights[: self._num_done]) + share * self._weights[self._num_done]) / sum(self._weights)
            self._show(self._bar, self._name + self._remaining(share), done)

    def _say(self, elapsed_s: float) -> None:
        """What the latest task is at, `elapsed_s` after the first; the remaining time is what was left last, less the
        time since."""
        left_s = self._due_s - time.monotonic()
        left = f", about {duration_text(left_s)} left" if left_s > 0 else ""
        text = f"{self._name}: {duration_text(elapsed_s)} so far{left}"
        if self._bar is not None:
            self._show(self._bar, text)
        else:
            print_line(text, self._console)

    def _show(self, bar: Progress, text: str, completed: float | None = None) -> None:
        bar.update(bar.task_ids[0], description=text, completed=completed)
        bar.refresh()


def duration_text(seconds: float) -> str:
    """A duration as text: 9 s, 2:05 min, 1:02:05 h."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"
