"""Progress counts events and audio; it is a bar on a terminal, lines elsewhere, silent where quiet."""

import io

import numpy as np
import pytest
from rich.console import Console

from runtime.commands.progress import ProgressBar, ProgressLines, ProgressMeter, open_progress
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
