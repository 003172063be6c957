"""What is known of the song that a session plays by: its sections, bars and hints, by frames that begin at 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from runtime.config.codec import Latents
from runtime.config.plan_spec import METER
from runtime.live.playback.bars import Bar, BarGrid
from runtime.live.playback.canvas import Canvas, CanvasPart
from runtime.live.protocol.actions import SongFacts
from runtime.music.sections import SongSection, sixteenths_of
from runtime.music.tempo import Tempo


class SongOutline:
    """Sections and header as far as they are made, and hints up to frame `end`; before frame `first` nothing is shown.

    origin: the canvas frame of its frame 0; None after a reset, until there is something new. seq: of the newest edit
    that was taken. is_idle: the session plays something else.
    """

    def __init__(self, facts: SongFacts, frame_rate_hz: float) -> None:
        self.facts = facts
        self.seq: int | None = None
        self._frame_rate_hz = frame_rate_hz
        self.restart(0)

    def restart(self, origin: int | None) -> None:
        """Nothing is known of it."""
        self.origin, self.is_idle = origin, False
        self.header: Mapping[str, Any] = {}
        self.sections: tuple[SongSection, ...] = ()
        self.end = self.first = 0
        self.known_hints = Canvas()

    @property
    def is_known(self) -> bool:
        """Whether there are sections, and where they are played."""
        return bool(self.sections) and self.origin is not None

    @property
    def published(self) -> tuple[Any, ...]:
        """What clients are sent of it."""
        return (self.origin, self.header, self.sections, self.seq, self.is_idle)

    def hints(self, start: int, frames: int) -> Latents | None:
        """Those of canvas frames from `start` on, at most `[frames, C]`; None where there are none.

        What it does not have before them is not generated: it is there already.
        """
        first = 0 if self.origin is None else start - self.origin
        known = range(max(first, self.known_hints.start), min(first + frames, self.end))
        if not known:
            return None
        return self.known_hints.rows([known.start] * (known.start - first) + list(known))  # [known.stop - first, C]

    def has_hints(self, canvas_end: int) -> bool:
        """Whether they are known up to a canvas frame; frames are the song's after a reset."""
        return self.end >= canvas_end - (self.origin or 0)

    def sections_in(self, start: int, frames: int) -> tuple[SongSection, ...]:
        """Those of canvas frames from `start` on; theirs count from there."""
        first = 0 if self.origin is None else start - self.origin
        return tuple(
            replace(each, start_frame=each.start_frame - first, end_frame=each.end_frame - first)
            for each in self.sections
            if each.start_frame < first + frames and each.end_frame > first
        )

    @property
    def grids(self) -> list[BarGrid]:
        """The bars of its sections, by canvas frames."""
        return [self._grid(each) for each in self._timed]

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Those of its sections."""
        found = list[Bar]()
        for section in self._timed:
            grid = self._grid(section)
            lines = [grid.frame_of(section.first_bar + bar) for bar in range(section.bars + 1)]
            # What was stored without its sections' meters has one.
            sixteenths = section.sixteenths or sixteenths_of(self.header.get(METER, "4/4"))
            found += [Bar(*line, sixteenths) for line in pairwise(lines)]
        return tuple(found)

    @property
    def _timed(self) -> list[SongSection]:
        """The sections whose tempo is known."""
        return [each for each in self.sections if each.bpm and each.beats]

    def _grid(self, section: SongSection) -> BarGrid:
        tempo, start = Tempo(section.bpm, section.beats), (self.origin or 0) + section.start_frame
        return BarGrid(start + section.offset, tempo, tempo.bar_frames(self._frame_rate_hz), section.first_bar)

    def is_bar(self, frame: int) -> bool:
        """Whether a bar of its sections begins nearest to a frame."""
        first = frame + (self.origin or 0)
        before = [grid for grid in self.grids if grid.first_frame < first + 0.5]
        if not before:
            return False
        grid = before[-1]
        return abs(grid.frame_of(round((first - grid.first_frame) / grid.bar_frames) + grid.first_bar) - first) <= 0.5

    def code_frame(self, frame: int, *, up: bool = False) -> int:
        """Where the code of a frame begins, or the first one from it on."""
        size = self.facts.frames_per_code
        return -(-frame // size) * size if up else frame // size * size

    def add(self, hints: CanvasPart) -> None:
        """Hints that continue what is known."""
        self.known_hints = Canvas((*self.known_hints.parts, hints))
        self.end = hints.end

    def cut(self, frame: int) -> None:
        """Hints from a frame on are not known any more."""
        if frame < self.end:
            self.known_hints = self.known_hints.cut(self.known_hints.start, frame)
            self.end = frame

    def show(self, sections: Iterable[SongSection]) -> None:
        """The sections are these, but for those that are not shown any more."""
        self.sections = tuple(section for section in sections if section.end_frame > self.first)

    def forget(self, first: int) -> None:
        """Before this frame nothing is shown."""
        self.first = first
        if self.known_hints.parts and self.known_hints.parts[0].end <= first:
            self.known_hints = Canvas(tuple(part for part in self.known_hints.parts if part.end > first))
            self.show(self.sections)
