"""Progress of a generation and of tasks: a bar on a terminal, lines elsewhere, silent where quiet."""

from __future__ import annotations

import io
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from rich.console import Console

from runtime.commands.progress import (
    REDRAW_INTERVAL_S,
    ProgressBar,
    ProgressLines,
    ProgressMeter,
    TaskProgress,
    at_intervals,
    duration_text,
    open_progress,
    waiting,
)
from runtime.tick.loop.events import Finished, Started
from runtime.tick.loop.events import Progress as StepDone


def after_half(meter: ProgressMeter) -> ProgressMeter:
    """The meter after one and a half of two segments of four steps."""
    for event in (
        Started("a", 0),
        *(StepDone("a", step, 4, step, 10.0) for step in range(1, 5)),
        Finished("a", np.zeros((2, 2), np.float32), 4, 4),
        Started("b", 4),
        *(StepDone("b", step, 4, step, 12.0) for step in range(1, 3)),
    ):
        meter.on_event(event)
    meter.add_audio(5.0)
    return meter


def test_the_meter_counts_segments_steps_and_audio() -> None:
    meter = after_half(ProgressMeter(2))
    assert (meter.segment, meter.step, meter.steps, meter.tick_ms) == (2, 2, 4, 12.0)
    assert meter.share == 0.75
    before, speed, after = meter.elapsed_s, meter.speed, meter.elapsed_s
    assert 5.0 / after <= speed <= 5.0 / before


def test_lines_are_few_and_the_last_one_is_after_half() -> None:
    text = io.StringIO()
    lines = ProgressLines(50, Console(file=text, width=120))
    for index in range(50):
        lines.on_event(Started(str(index), index))
        lines.on_event(Finished(str(index), np.zeros((2, 2), np.float32), index, 4))
    assert [line.split(":")[0] for line in text.getvalue().splitlines()] == ["segment 1/50", "segment 50/50"]


def test_a_long_segment_has_lines_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, text = [0.0], io.StringIO()
    monkeypatch.setattr("runtime.commands.progress.time.monotonic", lambda: now_s[0])
    lines = ProgressLines(1, Console(file=text, width=120))
    lines.on_event(Started("a", 0))
    for step in range(1, 9):
        now_s[0] += 3.0
        lines.on_event(StepDone("a", step, 8, step, 3000.0))
    assert [line.split(",")[0] for line in text.getvalue().splitlines()] == [
        f"segment 1/1: step {step}/8" for step in (2, 4, 6, 8)
    ]


def test_lines_without_a_terminal_and_a_bar_on_one() -> None:
    text = io.StringIO()
    lines = open_progress(2, Console(file=text, width=120), quiet=False)
    assert isinstance(lines, ProgressLines)
    after_half(lines)
    assert text.getvalue().startswith("segment 1/2: 4 steps, 10 ms per tick")
    assert "\x1b" not in text.getvalue()
    screen = io.StringIO()
    bar = open_progress(2, Console(file=screen, width=120, force_terminal=True), quiet=False)
    assert isinstance(bar, ProgressBar)
    after_half(bar)
    assert bar._progress.tasks[0].percentage == 75.0
    bar.close()
    assert "segment 2/2, step 2/4, 12 ms per tick" in screen.getvalue()
    assert type(open_progress(2, Console(force_terminal=True), quiet=True)) is ProgressMeter


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("runtime.commands.progress.time.monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_without_a_terminal_each_finished_task_is_a_line(clock: Clock) -> None:
    text = io.StringIO()
    with TaskProgress([1.0, 3.0, 2.0], Console(file=text, width=120)) as progress:
        for name, took_s in (("a [b]", 10.0), ("c", 30.0)):
            with progress.task(name):
                clock.now_s += took_s
                progress.update(0.5)
        with suppress(ValueError), progress.task("fails"):
            raise ValueError
    assert text.getvalue().splitlines() == ["1/3 a [b]: 10.0 s, about 50 s left", "2/3 c: 30.0 s, about 20 s left"]


def test_on_a_terminal_a_bar_is_drawn_between_samples(clock: Clock) -> None:
    text = io.StringIO()
    with TaskProgress([1.0, 1.0], Console(file=text, width=120, force_terminal=True)) as progress:
        with progress.task("first"):
            clock.now_s = 60.0
            progress.update(0.5)
            progress.update(0.99)
        with progress.task("second"):
            pass
    assert "1/2 first, about 3:00 min left" in text.getvalue()
    assert text.getvalue().count("1/2 first, about") == 1
    assert "2/2 second" in text.getvalue()


def shows(text: io.StringIO, part: str) -> bool:
    """Whether another thread writes this within a time that no load exceeds."""
    end_s = time.monotonic() + 60.0
    while part not in text.getvalue() and time.monotonic() < end_s:
        time.sleep(0.001)
    return part in text.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_what_takes_long_is_never_silent(is_terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.commands.progress.SILENT_S", 0.002)
    text, before = io.StringIO(), set(threading.enumerate())
    with TaskProgress([1.0], Console(file=text, width=120, force_terminal=is_terminal)) as progress:
        assert shows(text, "preparing: 0 s so far")
        with progress.task("first"):
            assert shows(text, "1/1 first: 0 s so far")
            time.sleep(0.01)
            progress.update(0.0001)
            time.sleep(REDRAW_INTERVAL_S)
            progress.update(0.0001)
            assert shows(text, "so far, about ")
    assert not set(threading.enumerate()) - before


def test_a_wait_is_told_on_standard_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("a server"):
        pass
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("runtime.commands.progress.SILENT_S", 0.002)
    said = threading.Event()
    with at_intervals(lambda elapsed_s: said.set()):
        assert said.wait(60.0)


def test_without_weights_nothing_is_shown() -> None:
    for is_terminal in (False, True):
        text = io.StringIO()
        with TaskProgress(console=Console(file=text, force_terminal=is_terminal)) as progress:
            for _ in range(2):
                with progress.task("a"):
                    progress.update(0.5)
        assert text.getvalue() == ""


def test_the_rest_is_expected_to_cost_what_its_weights_say(clock: Clock) -> None:
    progress = TaskProgress([1.0, 1.0, 2.0], Console(file=io.StringIO()))
    assert progress.remaining_s() is None
    with progress.task("a"):
        clock.now_s = 5.0
        assert progress.remaining_s(0.5) == pytest.approx(35.0)
        clock.now_s = 10.0
    assert progress.remaining_s() == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00 min"), (125, "2:05 min"), (3725, "1:02:05 h")]
)
def test_durations_as_text(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
