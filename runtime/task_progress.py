"""Progress of a run of several tasks: a bar with the remaining time on a terminal, a line per task elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from runtime.terminal import Terminal, print_line

REDRAW_INTERVAL_S = 0.5


class TaskProgress:
    """Tasks that run one after the other, shown on standard error; a context manager.

    weights: the expected cost of each task, in any unit; without weights nothing is shown. No thread draws the bar, so
    that drawing takes no time from what is measured: it changes in `update` and between tasks.
    """

    def __init__(self, weights: Sequence[float] = (), console: Console | None = None) -> None:
        self._weights = weights
        self._console = console or Terminal(stderr=True)
        self._num_done = 0
        self._name = ""
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @contextmanager
    def task(self, name: str) -> Iterator[None]:
        """Run the next task in this block; its line is printed at the end, unless it fails."""
        begin_s, self._name = time.monotonic(), name
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
        if self._bar is None:
            return
        done = (sum(self._weights[: self._num_done]) + share * self._weights[self._num_done]) / sum(self._weights)
        text = f"{self._num_done + 1}/{len(self._weights)} {self._name}{self._remaining(share)}"
        self._bar.update(self._bar.task_ids[0], completed=done, description=text)
        self._bar.refresh()
        self._next_draw_s = time.monotonic() + REDRAW_INTERVAL_S


def duration_text(seconds: float) -> str:
    """A duration as text: 9 s, 2:05 min, 1:02:05 h."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02} h"
    return f"{minutes}:{rest:02} min" if minutes else f"{rest} s"
