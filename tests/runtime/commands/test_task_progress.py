"""Progress of tasks: a bar with the remaining time on a terminal, a line per task elsewhere."""

from __future__ import annotations

import io
import threading
import time
from contextlib import suppress

import pytest
from rich.console import Console

from runtime.commands import task_progress
from runtime.commands.task_progress import REDRAW_INTERVAL_S, TaskProgress, at_intervals, duration_text, waiting


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(task_progress.time, "monotonic", lambda: self.now_s)


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
    monkeypatch.setattr(task_progress, "SILENT_S", 0.002)
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
    monkeypatch.setattr(task_progress, "SILENT_S", 0.002)
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
