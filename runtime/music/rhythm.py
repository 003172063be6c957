"""Bars on the grid of structure codes, and the markers that tell where in its bar a code lies."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rhythm:
    """Tempo and meter, and the grid of a model.

    beats: of a bar. first_frame: where bar 0 begins, exactly. bar_token, clock_token: the first of the markers of each
    kind. A clock is the part of a beat that `clocks_per_beat` counts.
    """

    bpm: float
    beats: int
    frame_rate_hz: float
    frames_per_code: int
    clocks_per_beat: int
    bar_token: int
    clock_token: int
    first_frame: float = 0.0

    def at(self, bpm: float, beats: int) -> Rhythm:
        """Another tempo and meter."""
        return replace(self, bpm=bpm, beats=beats)

    def exact_frame(self, bar: int) -> float:
        """Where a bar begins, between the frames."""
        return self.first_frame + bar * self.beats * 60.0 / self.bpm * self.frame_rate_hz

    def frame(self, bar: int) -> int:
        """The frame nearest to the first beat of a bar."""
        return _nearest(self.exact_frame(bar))

    def code_range(self, first_bar: int, bars: int) -> range:
        """The codes of some bars: the first holds the frame of their first beat."""
        size = self.frames_per_code
        return range(self.frame(first_bar) // size, self.frame(first_bar + bars) // size)

    def markers(self, code: int, first_bar: int, recalled: Sequence[int] = ()) -> tuple[int, ...]:
        """The tokens before a code of a section; `recalled` stand behind the bar's."""
        return (*self.bar_marker(code, first_bar), *recalled, self.clock_marker(code))

    def bar_marker(self, code: int, first_bar: int) -> tuple[int, ...]:
        """The token of the bar that begins in a code of a section, if one does."""
        bar, _ = self._place(code)
        return (self.bar_token + bar - first_bar,) if code == self.code_range(bar, 1).start else ()

    def clock_marker(self, code: int) -> int:
        """The token of where in its bar a code's last frame lies."""
        return self.clock_token + self._place(code)[1]

    def step_frames(self, code: int, steps: Collection[float]) -> int:
        """The frames of a code that are nearest to a step, one bit each, the lowest is its first. steps: in a beat."""
        first, beat = code * self.frames_per_code - self.first_frame, 60.0 / self.bpm * self.frame_rate_hz
        beats = range(math.floor(first / beat) - 1, math.ceil((first + self.frames_per_code) / beat) + 1)
        nearest = {_nearest(self.first_frame + (number + step) * beat) for number in beats for step in steps}
        return sum(1 << place for place, frame in enumerate(self._frames(code)) if frame in nearest)

    def _frames(self, code: int) -> range:
        return range(code * self.frames_per_code, (code + 1) * self.frames_per_code)

    def _place(self, code: int) -> tuple[int, int]:
        """Bar and clock of a code's last frame."""
        frame = self._frames(code)[-1]
        bar = int((frame - self.first_frame) / self.frame_rate_hz * self.bpm / 60.0 / self.beats)
        bar += int(frame >= self.frame(bar + 1)) - int(frame < self.frame(bar))
        beat = (frame - self.frame(bar)) / self.frame_rate_hz * self.bpm / 60.0
        return bar, min(int(beat * self.clocks_per_beat), self.beats * self.clocks_per_beat - 1)


def _nearest(position: float) -> int:
    """The frame nearest to a position in frames; halves go down, also where floating point leaves them a bit above."""
    return math.ceil(position - 0.501)
