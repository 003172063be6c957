"""MIDI clock, 24 pulses a beat: what a session's bar lines are as messages, and what tempo and beat pulses have."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from statistics import median

PULSES = 24
# A song position counts sixteenths, up to 14 bits.
PULSES_PER_POSITION, MOST_POSITIONS = 6, 2**14
CLOCK, START, CONTINUE, STOP, POSITION = 0xF8, 0xFA, 0xFB, 0xFC, 0xF2
# The tempo is the median over so many pulses.
PULSES_HEARD = 48
# A pulse that comes later than this belongs to a clock that began anew.
LONGEST_PULSE_S = 0.5


@dataclass(frozen=True)
class BarLine:
    """Where a bar begins on the play axis: its sample, its number, and the tempo that sounds from there on."""

    sample: int
    bar: int
    bpm: float
    beats: int


class ClockOut:
    """The clock of a session that plays: messages with the samples that they belong to.

    It begins with `start`, at the next sixteenth; lines may come late, and are those of `state.beat`.
    """

    def __init__(self, sample_rate_hz: int) -> None:
        self._rate_hz = sample_rate_hz
        self._lines: list[BarLine] = []
        self._next = 0.0  # Everything before was given.
        self._begins: float | None = None
        self._is_running = False

    def line(self, line: BarLine) -> None:
        """Take a bar line; it holds from its sample on, in place of all that were to follow."""
        kept = [before for before in self._lines if before.sample < line.sample]
        self._lines = [*kept[-4:], line]

    def start(self, sample: int) -> list[tuple[int, bytes]]:
        """Begin at the first sixteenth from a sample on; where it runs, it stops before. Returns what is to be sent."""
        stopped = self.stop(sample)
        self._begins = self._next = float(sample)
        return stopped

    def stop(self, sample: int) -> list[tuple[int, bytes]]:
        """Stop. Returns what is to be sent."""
        was_running, self._is_running, self._begins = self._is_running, False, None
        return [(sample, bytes([STOP]))] if was_running else []

    def until(self, sample: int) -> list[tuple[int, bytes]]:
        """The messages of what is played before a sample, in order, that were not given yet."""
        found: list[tuple[int, bytes]] = []
        if not self._lines:
            return found
        while True:
            line, number = self._pulse(self._next)
            place = line.sample + number * self._interval(line)
            if place >= sample:
                return found
            is_place = number % PULSES_PER_POSITION == 0 and line.bar * line.beats * PULSES + number >= 0
            if self._begins is not None and is_place:
                found += self._beginning(round(place), line, number)
            if self._is_running:
                found.append((round(place), bytes([CLOCK])))
            self._next = place + 0.5 * self._interval(line)

    def _beginning(self, sample: int, line: BarLine, number: int) -> list[tuple[int, bytes]]:
        self._begins, self._is_running = None, True
        position = (line.bar * line.beats * PULSES + number) // PULSES_PER_POSITION % MOST_POSITIONS
        if position == 0:
            return [(sample, bytes([START]))]
        return [(sample, bytes([POSITION, position & 0x7F, position >> 7])), (sample, bytes([CONTINUE]))]

    def _pulse(self, sample: float) -> tuple[BarLine, int]:
        """The first pulse at a sample or behind it: its bar line, and its number from there on."""
        index = max(bisect_right(self._lines, sample, key=lambda line: line.sample) - 1, 0)
        line = self._lines[index]
        number = -int((line.sample - sample) // self._interval(line))  # rounded up
        if index + 1 < len(self._lines):
            following = self._lines[index + 1]
            if line.sample + number * self._interval(line) > following.sample - 0.5 * self._interval(following):
                return following, 0
        return line, number

    def _interval(self, line: BarLine) -> float:
        return 60.0 * self._rate_hz / (PULSES * line.bpm)


class ClockIn:
    """A clock that is received: its tempo, and where its beats are. Times are seconds of any clock that does not jump.

    It counts beats from its start, or from the position that it continues at. is_running: None before it has said so.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=PULSES_HEARD + 1)
        self._count = 0  # of pulses since the beginning of the song: the number of the next one
        self.is_running: bool | None = None

    def receive(self, message: bytes, time_s: float) -> None:
        """Take a MIDI message; those that are not of a clock are ignored."""
        match message[0] if message else 0:
            case 0xF8:
                self._pulse(time_s)
            case 0xFA:
                self._count, self.is_running = 0, True
            case 0xFB:
                self.is_running = True
            case 0xFC:
                self.is_running = False
            case 0xF2 if len(message) == 3:
                self._count = PULSES_PER_POSITION * (message[1] + 128 * message[2])

    @property
    def bpm(self) -> float | None:
        """The median of its tempos over beats; None before two beats were heard."""
        if len(self._times) <= PULSES_HEARD:
            return None
        times = list(self._times)
        return 60.0 / median(later - earlier for earlier, later in zip(times, times[PULSES:], strict=False))

    @property
    def beat_s(self) -> float | None:
        """When its newest beat was, the median of what its pulses say; None before two beats were heard.

        None, too, of a clock that ran already when it was first heard: its beats are not known.
        """
        bpm = self.bpm
        if bpm is None or self.is_running is None:
            return None
        last = self._count - 1
        newest, interval = last - last % PULSES, 60.0 / (PULSES * bpm)
        first = last - len(self._times) + 1
        return median(time_s + (newest - number) * interval for number, time_s in enumerate(self._times, first))

    def _pulse(self, time_s: float) -> None:
        if self._times and not 0.0 < time_s - self._times[-1] < LONGEST_PULSE_S:
            self._times.clear()
        self._times.append(time_s)
        self._count += 1
