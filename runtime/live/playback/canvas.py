"""The latents that a session plays, and where on the play axis they lie. All values are immutable.

A *canvas frame* counts frames of the canvas, a *play frame* frames of the play axis; a sample is on the play axis.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from runtime.config.codec import Latents
from runtime.music.part_moods import NO_MOODS, PartMoods
from runtime.music.tempo import Tempo
from runtime.requests.ring import stretched

Band = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Piece:
    """Latents `[n, C]` that never change, under a name that no other piece of the session has."""

    name: str
    latents: Latents


@dataclass(frozen=True, eq=False)
class CanvasPart:
    """Canvas frames `start` .. `end`: the rows of a piece from `row` on, and the seqs that they were made with."""

    piece: Piece
    row: int
    start: int
    end: int
    first_seq: int
    full_seq: int

    def cut(self, start: int, end: int) -> CanvasPart | None:
        """What of it lies in canvas frames `start` .. `end`."""
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        return replace(self, row=self.row + first - self.start, start=first, end=last)

    def is_same_frame(self, other: CanvasPart, frame: int, other_frame: int) -> bool:
        """Whether its canvas frame `frame` is the same latent as frame `other_frame` of another part."""
        return self.piece is other.piece and self.row + frame - self.start == other.row + other_frame - other.start


@dataclass(frozen=True, eq=False)
class Canvas:
    """Parts that follow each other without a gap. tempo: of a loop, whose bar 0 begins at frame 0; None: not known.

    moods: of single layers; their levels count where it is heard.
    """

    parts: tuple[CanvasPart, ...] = ()
    tempo: Tempo | None = None
    moods: PartMoods = NO_MOODS

    @property
    def start(self) -> int:
        """The first frame that is known."""
        return self.parts[0].start if self.parts else 0

    @property
    def end(self) -> int:
        """The frame after the last one that is known."""
        return self.parts[-1].end if self.parts else 0

    @property
    def pieces(self) -> dict[str, Piece]:
        """Every piece in use, by name."""
        return {part.piece.name: part.piece for part in self.parts}

    def part_at(self, frame: int) -> CanvasPart | None:
        """The part that a frame is in; None where it is not known."""
        index = bisect_right(self.parts, frame, key=lambda part: part.start) - 1
        return self.parts[index] if index >= 0 and frame < self.parts[index].end else None

    def rows(self, frames: Iterable[int]) -> Latents:
        """Latents `[n, C]` of known frames, in any order."""
        found = [(self.part_at(frame), frame) for frame in frames]
        return np.stack(  # n rows [C] -> [n, C]
            [part.piece.latents[part.row + frame - part.start] for part, frame in found if part is not None]
        )

    def cut(self, start: int, end: int) -> Canvas:
        """What of it lies in frames `start` .. `end`."""
        return self._with(cut for part in self.parts if (cut := part.cut(start, end)) is not None)

    def with_part(self, new: CanvasPart) -> Canvas:
        """The same with a part in place of what was there."""
        return self._with((*self.cut(self.start, new.start).parts, new, *self.cut(new.end, self.end).parts))

    def with_seq(self, before: int, seq: int) -> Canvas:
        """The same where everything that was complete up to `before` is complete up to `seq`."""
        return self._with(
            replace(part, first_seq=max(seq, part.first_seq), full_seq=seq) if part.full_seq == before else part
            for part in self.parts
        )

    def _with(self, parts: Iterable[CanvasPart]) -> Canvas:
        return replace(self, parts=tuple(parts))


@dataclass(frozen=True, eq=False)
class PlacedSource:
    """Latents that generations start from; row 0 is canvas frame `start`, and they repeat.

    id: what the client named, None for what was written into the canvas.
    """

    id: str | None
    strength: float | None
    piece: Piece
    start: int = 0

    def frames(self, start: int, frames: int, loop: int | None = None) -> Latents:
        """Its `[frames, C]` from canvas frame `start` on. loop: the frames of a loop that it is to be as long as."""
        is_fitted = loop is not None and self.id is not None  # What was written lies where it is.
        latents = stretched(self.piece.latents, loop) if is_fitted and loop else self.piece.latents
        rows = (np.arange(start, start + frames) - self.start) % len(latents)  # [frames]
        return latents[rows]  # [frames, C]


@dataclass(frozen=True, eq=False)
class Placement:
    """From `from_sample` on a canvas is played, `play_frame` of the axis at `canvas_frame`; `band`, if any, repeats.

    is_chosen: a client has chosen the band. muted: layers that are silent, in the order of their names.
    """

    from_sample: int
    canvas: Canvas
    play_frame: int
    canvas_frame: int
    band: Band | None
    is_chosen: bool = False
    muted: tuple[str, ...] = ()

    def canvas_frame_at(self, play_frame: int) -> int:
        """The canvas frame that is played at a play frame."""
        frame = self.canvas_frame + play_frame - self.play_frame
        if self.band is None:
            return frame
        begin, end = self.band
        return begin + (frame - begin) % (end - begin)

    def continues(self, other: Placement) -> bool:
        """Whether both play the same positions."""
        moved = self.canvas_frame - self.play_frame, self.band, self.is_chosen
        return moved == (other.canvas_frame - other.play_frame, other.band, other.is_chosen)

    def part_at(self, play_frame: int) -> CanvasPart | None:
        """The part that is played at a play frame; None where the canvas is not known."""
        return self.canvas.part_at(self.canvas_frame_at(play_frame))

    def is_same_at(self, other: Placement, play_frame: int) -> bool:
        """Whether both have the same latents, and the same layers of them as loud, at a play frame."""
        if self.muted != other.muted or self.canvas.moods.level_db != other.canvas.moods.level_db:
            return False
        frame, other_frame = self.canvas_frame_at(play_frame), other.canvas_frame_at(play_frame)
        part, other_part = self.canvas.part_at(frame), other.canvas.part_at(other_frame)
        if part is None or other_part is None:
            return part is other_part
        return part.is_same_frame(other_part, frame, other_frame)


@dataclass(frozen=True, eq=False)
class PlayedPart:
    """Canvas frames `begin` .. `end` that were played. is_loop: they repeat. is_estimated: encoded audio is in them."""

    canvas: Canvas
    begin: int
    end: int
    is_loop: bool
    tempo: Tempo | None = None
    is_estimated: bool = False

    @property
    def frames(self) -> int:
        """How many."""
        return self.end - self.begin

    def rows(self) -> Latents:
        """Their latents `[n, C]`."""
        return self.canvas.rows(range(self.begin, self.end))

    def with_margins(self, margin: int, align: int = 1) -> tuple[int, Latents, int]:
        """With up to `margin` frames on both sides: how many before, latents `[n, C]`, a position of the first one.

        Those of a loop are its other end. align: the first one is a multiple of it on the canvas, and so is their
        number, but at the ends of what is known.
        """
        first, last = (self.begin - margin) // align * align, -(-(self.end + margin) // align) * align
        if self.is_loop:
            rows = self.canvas.rows(self.begin + (each - self.begin) % self.frames for each in range(first, last))
            before = self.begin - first
            return before, rows, self.begin + -(-before // self.frames) * self.frames - before
        first, last = max(first, -(-self.canvas.start // align) * align), min(last, self.canvas.end)
        first = min(first, self.begin)
        return self.begin - first, self.canvas.rows(range(first, last)), first


class Timeline:
    """The placements of a session in the order of their samples. `version` changes with every change.

    muted: layers that are silent from the beginning on, where there is no placement yet.
    """

    def __init__(self, placements: Iterable[Placement] = (), muted: Iterable[str] = ()) -> None:
        self.placements = list(placements)
        self.version = 0
        self._muted = tuple(sorted(muted))

    @property
    def newest(self) -> Placement | None:
        """The last placement; None before the first canvas."""
        return self.placements[-1] if self.placements else None

    @property
    def canvas(self) -> Canvas:
        """The newest canvas."""
        return self.placements[-1].canvas if self.placements else Canvas()

    @property
    def muted(self) -> tuple[str, ...]:
        """The layers that are silent in the end."""
        return self._muted if self.newest is None else self.newest.muted

    def at(self, sample: int) -> Placement | None:
        """The placement that is played at a sample; the first one also before it begins."""
        index = bisect_right(self.placements, sample, key=lambda placement: placement.from_sample) - 1
        return self.placements[max(index, 0)] if self.placements else None

    def next_start(self, sample: int) -> int | None:
        """Where the placement after the one at a sample begins; None where that is the last."""
        index = bisect_right(self.placements, sample, key=lambda placement: placement.from_sample)
        index = max(index, 1)
        return self.placements[index].from_sample if index < len(self.placements) else None

    def num_behind(self, sample: int) -> int:
        """How many placements begin behind a sample."""
        return len(self.placements) - bisect_right(self.placements, sample, key=lambda each: each.from_sample)

    def place(self, placement: Placement) -> None:
        """Play this from its sample on, and nothing that was to follow; layers are silent as they were to be."""
        here, sample = self.at(placement.from_sample), placement.from_sample
        kept = [before for before in self.placements if before.from_sample < sample]
        kept.append(replace(placement, muted=self._muted if here is None else here.muted))
        for after in self.placements:
            if after.from_sample > sample and after.muted != kept[-1].muted:
                kept.append(replace(placement, from_sample=after.from_sample, muted=after.muted))
        self._set(kept)

    def mute(self, from_sample: int, layers: Iterable[str]) -> None:
        """From a sample on these layers are silent, and no others."""
        here, self._muted = self.at(from_sample), tuple(sorted(layers))
        kept = [before for before in self.placements if before.from_sample < from_sample]
        later = [after for after in self.placements if after.from_sample > from_sample]
        begun = [] if here is None else [replace(here, from_sample=from_sample), *later]
        self._set([*kept, *(replace(item, muted=self._muted) for item in begun)])

    def place_canvas(self, from_sample: int, canvas: Canvas) -> None:
        """Play another canvas from a sample on, at the positions that were to be played there, and where it moves."""
        here = self.at(from_sample)
        assert here is not None
        kept = [before for before in self.placements if before.from_sample < from_sample]
        kept.append(replace(here, from_sample=from_sample, canvas=canvas))
        for after in self.placements:
            is_other = not after.continues(kept[-1]) or after.muted != kept[-1].muted
            if after.from_sample > from_sample and is_other:
                kept.append(replace(after, canvas=canvas))
        self._set(kept)

    def move(
        self, from_sample: int, play_frame: int, canvas_frame: int, band: Band | None, *, is_chosen: bool | None = None
    ) -> None:
        """From a sample on, continue at another position; what follows keeps its sample, and its position if it moves.

        is_chosen: None, as it is there.
        """
        here = self.at(from_sample)
        assert here is not None
        position: dict[str, Any] = {"play_frame": play_frame, "canvas_frame": canvas_frame, "band": band}
        position["is_chosen"] = here.is_chosen if is_chosen is None else is_chosen
        kept = [before for before in self.placements if before.from_sample < from_sample]
        later = [after for after in self.placements if after.from_sample > from_sample]
        moved = [replace(item, **position) if item.continues(here) else item for item in later]
        self._set([*kept, replace(here, from_sample=from_sample, **position), *moved])

    def set_seq(self, before: int, seq: int) -> None:
        """What was complete up to `before` is complete up to `seq`: the changes between them change no latents."""
        self._set([replace(item, canvas=item.canvas.with_seq(before, seq)) for item in self.placements])

    def forget(self, sample: int, first_frame: int | None = None) -> None:
        """Drop the placements that end before a sample, and canvas frames before `first_frame`."""
        while len(self.placements) > 1 and self.placements[1].from_sample <= sample:
            del self.placements[0]
        if first_frame is not None and self.canvas.start < first_frame:
            cut = [replace(item, canvas=item.canvas.cut(first_frame, item.canvas.end)) for item in self.placements]
            self._set(cut)

    def _set(self, placements: list[Placement]) -> None:
        self.placements = placements
        self.version += 1
