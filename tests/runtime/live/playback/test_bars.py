"""Bar lines on the play axis: of plans, of loops, where positions jump."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, FRAME_RATE, HOP, MODEL, RATE

from runtime.base.errors import RequestError
from runtime.live.playback.bars import BarGrid, BarLines, following, loop_grid, next_line
from runtime.live.playback.canvas import Band, Canvas, CanvasPart, Piece, Placement, Timeline
from runtime.live.protocol.messages import SetClock
from runtime.music.tempo import Tempo

LOOP = Tempo(290.0, 4)  # bars of 20.69 frames, of which a loop of 62 frames has three
FAST, SLOW = Tempo(250.0, 4), Tempo(200.0, 4)  # bars of 24 and of 30 frames


def placement(frames: int, tempo: Tempo | None, band: Band | None, from_sample: int = 0) -> Placement:
    part = CanvasPart(Piece("p", np.zeros((frames, CHANNELS), np.float32)), 0, 0, frames, 0, 0)
    return Placement(from_sample, Canvas((part,), tempo), from_sample // HOP, 0, band)


def grid(first_frame: float, tempo: Tempo, first_bar: int = 0) -> BarGrid:
    return BarGrid(first_frame, tempo, tempo.bar_frames(FRAME_RATE), first_bar)


def found(lines: BarLines, sample: int, count: int) -> list[tuple[int, int]]:
    several = (lines.after(sample, number) for number in range(1, count + 1))
    return [(line.sample, line.bar) for line in several if line is not None]


def test_a_loop_has_its_bars_in_every_pass_at_the_tempo_that_sounds() -> None:
    lines = BarLines(MODEL, Timeline([placement(64, LOOP, (0, 62))]), list)
    third = 62 * HOP / 3
    expected = [(round(number * third), number % 3) for number in range(8)]
    assert found(lines, 0, 8) == expected
    assert found(lines, 1, 2) == expected[1:3]
    line = lines.at(62 * HOP + 10)
    assert (line.sample, line.bar, line.bpm) == (62 * HOP, 0, pytest.approx(3 * 4 * 60 * FRAME_RATE / 62))


def test_a_band_that_is_no_whole_number_of_bars_has_those_inside() -> None:
    assert loop_grid(LOOP, (0, 64), FRAME_RATE).tempo == LOOP
    lines = BarLines(MODEL, Timeline([placement(64, LOOP, (10, 30))]), list)
    # Canvas frame 20.69 in every pass of 20 frames, the first of which began at canvas frame 0.
    assert found(lines, 11 * HOP, 2) == [(round(20.689655 * HOP), 1), (round(40.689655 * HOP), 1)]
    assert found(BarLines(MODEL, Timeline([placement(64, LOOP, (25, 35))]), list), 0, 1) == []


def test_sections_of_a_plan_change_the_tempo_at_a_bar() -> None:
    timeline = Timeline([placement(500, None, None)])
    lines = BarLines(MODEL, timeline, lambda: [grid(2.5, FAST), grid(50.5, FAST, 2), grid(98.5, SLOW)])
    frames = [2.5, 26.5, 50.5, 74.5, 98.5, 128.5, 158.5]
    assert found(lines, 0, 7) == [
        (round(frame * HOP), bar) for frame, bar in zip(frames, (0, 1, 2, 3, 0, 1, 2), strict=True)
    ]
    assert lines.at(0) is None
    last = lines.at(400 * HOP)
    assert (last.bar, last.bpm, last.beats) == (10, *SLOW)


def test_what_is_forgotten_of_a_song_has_the_bars_before() -> None:
    lines = BarLines(MODEL, Timeline([placement(500, None, None)]), lambda: [grid(100.0, FAST, 4)])
    assert found(lines, 20 * HOP, 2) == [(28 * HOP, 1), (52 * HOP, 2)]


def test_positions_that_jump_move_the_lines() -> None:
    timeline = Timeline([placement(500, None, None)])
    timeline.move(60 * HOP, 60, 100, None)
    lines = BarLines(MODEL, timeline, lambda: [grid(0.0, FAST)])
    assert [sample // HOP for sample, _ in found(lines, 0, 5)] == [0, 24, 48, 80, 104]


def test_without_a_beat() -> None:
    lines = BarLines(MODEL, Timeline([placement(64, None, (0, 64))]), list)
    assert (lines.at(0), lines.after(0)) == (None, None)
    with pytest.raises(RequestError, match="no beat") as error:
        next_line(lines, 0, field="at")
    assert error.value.field == "at"
    assert BarLines(MODEL, Timeline(), list).at(0) is None


class CountedTimeline(Timeline):
    """A timeline that counts how often it is looked up."""

    num_looked_up = 0

    def at(self, sample: int) -> Placement | None:
        self.num_looked_up += 1
        return super().at(sample)


def test_the_slowest_clock_in_the_shortest_loop_goes_through_its_bars_once() -> None:
    timeline = CountedTimeline([placement(64, LOOP, (0, 1))])  # a bar line in every frame
    clock = SetClock(seq=1, bpm=1.0, sample=0)
    beat = 60 * RATE
    line, sample = following(BarLines(MODEL, timeline, list), clock, 40, RATE)
    assert (line.sample, sample) == (beat // 2, beat)
    assert timeline.num_looked_up == 1
    with pytest.raises(RequestError, match="no beat"):
        following(BarLines(MODEL, Timeline(), list), clock, 0, RATE)
