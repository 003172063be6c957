"""Where bars begin on the play axis: by the sections of a plan, or by a loop's tempo."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import NamedTuple

from runtime.base.errors import RequestError
from runtime.live.playback.canvas import Placement, Timeline
from runtime.live.protocol.actions import LiveModel
from runtime.live.protocol.messages import SetClock
from runtime.music.clock import BarLine
from runtime.music.tempo import Tempo

# What is so much nearer than a frame counts as equal.
CLOSE = 1e-6


@dataclass(frozen=True)
class BarGrid:
    """Bars of a canvas: number `first_bar` begins at frame `first_frame`, exactly, all others at equal distances.

    It holds from there on, and back to bar 0 where nothing else is known.
    """

    first_frame: float
    tempo: Tempo
    bar_frames: float
    first_bar: int = 0

    def bar_at(self, frame: float) -> int:
        """The number of the bar that a frame is in."""
        return self.first_bar + math.floor((frame - self.first_frame) / self.bar_frames + CLOSE)

    def frame_of(self, bar: int) -> float:
        """Where a bar begins."""
        return self.first_frame + (bar - self.first_bar) * self.bar_frames


class Bar(NamedTuple):
    """A bar in canvas frames, exactly, and how many sixteenths it has."""

    start: float
    end: float
    sixteenths: int


class BarLines:
    """The bar lines of a timeline. planned: the grids of the canvas that is planned, in order; [] where there is none.

    A loop has its own.
    """

    def __init__(self, model: LiveModel, timeline: Timeline, planned: Callable[[], Sequence[BarGrid]]) -> None:
        self._hop, self._rate_hz = model.hop_samples, model.frame_rate_hz
        self._timeline, self._planned = timeline, planned

    def at(self, sample: int) -> BarLine | None:
        """The bar that is played at a sample; None where no beat is known."""
        here = self._timeline.at(sample)
        if here is None or not (grids := self._grids(here)):
            return None
        frame = self._unwrapped(here, sample)
        begin, length = self._pass(here)
        shift = math.floor((frame - begin + CLOSE) / length) * length if length else 0.0
        grid = grids[0] if length and here.canvas.tempo else _grid_at(grids, frame - shift)
        if grid is None:
            return None
        bar = grid.bar_at(frame - shift)
        return self._line(here, grid, bar, shift)

    def after(self, sample: int, number: int = 1) -> BarLine | None:
        """The first bar line, or a later one by `number`, at a sample or behind it; None where no beat is known."""
        return next(islice(self.behind(sample), number - 1, None), None)

    def behind(self, sample: int) -> Iterator[BarLine]:
        """All bar lines at a sample and behind it, without an end; none where no beat is known."""
        while True:
            here, following = self._timeline.at(sample), self._timeline.next_start(sample)
            if here is None:
                return
            for line in self._lines(here, sample):
                if following is not None and line.sample >= following:
                    break
                yield line
            if following is None:
                return
            sample = following

    def _lines(self, here: Placement, sample: int) -> Iterator[BarLine]:
        """Those of a placement at a sample or behind it, as if it never ended."""
        grids = self._grids(here)
        begin, length = self._pass(here)
        frame = self._unwrapped(here, sample) - 0.5 / self._hop
        if not length:
            yield from (self._line(here, grid, bar, 0.0) for grid, bar in _bars(grids, frame, math.inf))
            return
        if next(_bars(grids, begin - CLOSE, begin + length - CLOSE), None) is None:
            return
        first = math.floor((frame - begin) / length)
        for index in count(first):
            shift = index * length
            start = max(frame - shift, begin - CLOSE)
            yield from (self._line(here, grid, bar, shift) for grid, bar in _bars(grids, start, begin + length - CLOSE))

    def _line(self, here: Placement, grid: BarGrid, bar: int, shift: float) -> BarLine:
        frame = grid.frame_of(bar) + shift + here.play_frame - here.canvas_frame
        return BarLine(round(frame * self._hop), max(bar, 0), *grid.tempo)

    def _unwrapped(self, here: Placement, sample: int) -> float:
        """The canvas frame of a sample, as if no band had repeated."""
        return sample / self._hop + here.canvas_frame - here.play_frame

    def _pass(self, here: Placement) -> tuple[int, int]:
        """The band's first frame and its length; 0: none."""
        begin, end = here.band or (0, 0)
        return begin, end - begin

    def _grids(self, here: Placement) -> Sequence[BarGrid]:
        tempo, band = here.canvas.tempo, here.band
        if tempo is None or band is None:
            return self._planned()
        return [loop_grid(tempo, band, self._rate_hz)]


def loop_grid(tempo: Tempo, band: tuple[int, int], frame_rate_hz: float) -> BarGrid:
    """The bars of a band; where that is a whole number of them, at the tempo that sounds then."""
    begin, end = band
    nominal = tempo.bar_frames(frame_rate_hz)
    bars = round((end - begin) / nominal)
    if bars < 1 or round(bars * nominal) != end - begin:
        return BarGrid(0.0, tempo, nominal)
    first = nominal * math.ceil((begin - 0.5 - CLOSE) / nominal)
    sounding = Tempo(60.0 * frame_rate_hz * bars * tempo.beats / (end - begin), tempo.beats)
    return BarGrid(begin if abs(first - begin) <= 0.5 else first, sounding, (end - begin) / bars)


def _grid_at(grids: Sequence[BarGrid], frame: float) -> BarGrid | None:
    """The last that has begun; the first one where that has bars before its first."""
    begun = [grid for grid in grids if grid.first_frame <= frame + CLOSE]
    if begun:
        return begun[-1]
    return grids[0] if grids and grids[0].bar_at(frame) >= 0 else None


def _bars(grids: Sequence[BarGrid], frame: float, end: float) -> Iterator[tuple[BarGrid, int]]:
    """The grid and number of every bar that begins at a frame or behind it, and before another."""
    for index, grid in enumerate(grids):
        last = min(end, grids[index + 1].first_frame - CLOSE) if index + 1 < len(grids) else end
        least = 0 if index == 0 else grid.first_bar
        bar = max(least, grid.bar_at(frame))
        while grid.frame_of(bar) < last:
            if grid.frame_of(bar) >= frame:
                yield grid, bar
            bar += 1


def next_line(lines: BarLines, sample: int, number: int = 1, *, field: str = "type") -> BarLine:
    """The first bar line from a sample on, or a later one by `number`. Raises RequestError where no beat is known."""
    line = lines.after(sample, number)
    if line is None:
        raise _no_beat(field)
    return line


def following(lines: BarLines, clock: SetClock, possible: int, rate_hz: int) -> tuple[BarLine, int]:
    """The next bar line of which the nearest beat of a clock is still possible, and the sample of that beat.

    That is the line's own where the clock does not say where its beats are. Raises RequestError where no beat is known.
    """
    if clock.sample is None:
        line = next_line(lines, possible)
        return line, line.sample
    beat = 60.0 * rate_hz / clock.bpm
    for line in lines.behind(possible):
        late = (line.sample - clock.sample + beat / 2) % beat - beat / 2
        if line.sample - late >= possible:
            return line, round(line.sample - late)
    raise _no_beat("type")


def _no_beat(field: str) -> RequestError:
    fix = 'play by a plan, or a loop whose tempo bpm or a prompt says, such as "120 bpm"'
    return RequestError("no beat is known", field=field, fix=fix)
