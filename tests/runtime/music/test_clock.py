"""MIDI clock: pulses by bar lines, start, stop and position; tempo and beats of a clock that is heard."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from runtime.music.clock import CLOCK, CONTINUE, POSITION, START, STOP, BarLine, ClockIn, ClockOut

RATE = 48_000


def pulses(messages: list[tuple[int, bytes]]) -> list[int]:
    return [sample for sample, message in messages if message[0] == CLOCK]


@pytest.mark.parametrize("bpm", [97.0, 124.0, 124.3])
def test_ten_minutes_follow_the_formula(bpm: float) -> None:
    clock, bar = ClockOut(RATE), 4 * 60 * RATE / bpm
    clock.line(BarLine(0, 0, bpm, 4))
    clock.start(0)
    found = list[int]()
    for step in range(6000):
        sent = step * RATE // 10 + 19_200
        clock.line(BarLine(round(sent // bar * bar), int(sent // bar), bpm, 4))
        found += pulses(clock.until((step + 1) * RATE // 10))
    exact = [number * 60 * RATE / (24 * bpm) for number in range(len(found))]
    assert len(found) == pytest.approx(600 * 24 * bpm / 60, abs=2)
    assert max(abs(sample - place) for sample, place in zip(found, exact, strict=True)) <= 1.0


def test_another_tempo_begins_with_its_bar() -> None:
    clock = ClockOut(RATE)
    clock.line(BarLine(0, 0, 120.0, 4))
    clock.start(0)
    clock.line(BarLine(96_000, 1, 100.0, 4))
    found = pulses(clock.until(3 * RATE))
    steps = [after - before for before, after in pairwise(found)]
    assert steps[:96] == [1000] * 96
    assert steps[96:] == [1200] * len(steps[96:])
    assert 96_000 in found


def test_a_line_that_comes_late_gives_no_pulse_twice() -> None:
    clock = ClockOut(RATE)
    clock.line(BarLine(0, 0, 120.0, 4))
    clock.start(0)
    found = pulses(clock.until(96_500))
    clock.line(BarLine(96_001, 1, 120.0, 4))
    found += pulses(clock.until(98_500))
    assert found[-3:] == [96_000, 97_001, 98_001]


def test_it_starts_at_the_beginning_and_continues_elsewhere_with_its_position() -> None:
    clock = ClockOut(RATE)
    assert clock.until(RATE) == []
    clock.line(BarLine(1000, 0, 120.0, 4))
    assert clock.start(0) == []
    assert clock.until(2001) == [(1000, bytes([START])), (1000, bytes([CLOCK])), (2000, bytes([CLOCK]))]
    clock.line(BarLine(50_000, 33, 120.0, 4))
    assert clock.start(51_000) == [(51_000, bytes([STOP]))]
    position = 33 * 16 + 1
    first = [(56_000, bytes([POSITION, position % 128, position // 128])), (56_000, bytes([CONTINUE]))]
    assert clock.until(56_500) == [*first, (56_000, bytes([CLOCK]))]
    assert clock.stop(57_000) == [(57_000, bytes([STOP]))]
    assert clock.until(2 * RATE) == []
    assert clock.stop(58_000) == []


def test_tempo_and_beat_of_a_clock_with_jitter() -> None:
    clock, rng, interval = ClockIn(), random.Random(1), 60 / (24 * 124.3)
    clock.receive(bytes([START]), 0.0)
    for number in range(100):
        assert (clock.bpm is None) == (number <= 48)
        clock.receive(bytes([CLOCK]), 5.0 + number * interval + rng.uniform(-0.002, 0.002))
    assert clock.is_running
    assert clock.bpm == pytest.approx(124.3, abs=0.3)
    assert clock.beat_s == pytest.approx(5.0 + 96 * interval, abs=0.002)


def test_a_clock_that_continues_has_its_beats_by_its_position() -> None:
    clock = ClockIn()
    clock.receive(bytes([POSITION, 2, 0]), 0.0)
    clock.receive(bytes([CONTINUE]), 0.0)
    for number in range(60):
        clock.receive(bytes([CLOCK]), number * 0.02)
    assert clock.beat_s == pytest.approx(36 * 0.02)
    clock.receive(bytes([0x90, 60, 1]), 3.0)
    clock.receive(bytes([CLOCK]), 3.0)
    assert clock.bpm is None
    clock.receive(bytes([STOP]), 3.1)
    assert not clock.is_running


def test_a_clock_that_ran_already_has_a_tempo_and_no_beats_until_it_starts() -> None:
    clock = ClockIn()
    for number in range(60):
        clock.receive(bytes([CLOCK]), number * 0.02)
    assert (clock.is_running, clock.bpm, clock.beat_s) == (None, pytest.approx(125.0), None)
    clock.receive(bytes([START]), 1.19)
    clock.receive(bytes([CLOCK]), 1.2)
    assert clock.is_running
    assert clock.beat_s == pytest.approx(1.2)
