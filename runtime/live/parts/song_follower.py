"""Follows a song's plan for a session: keeps its hints ahead of what is generated, and its music as it is planned."""

from __future__ import annotations

from runtime.live.parts.core import SessionCore
from runtime.live.parts.cut import Cut
from runtime.live.parts.song import SongMaker
from runtime.live.protocol.actions import MadeHints, MakeHints
from runtime.live.protocol.messages import SetPlan
from runtime.requests.seeds import segment_seed
from runtime.requests.segments import Segment


class SongFollower:
    """The song of one session. waits: time stands still while it is made."""

    def __init__(self, core: SessionCore, cut: Cut) -> None:
        self.maker = SongMaker(core.model, core.clock, core.frames)
        self.outline = core.references.song = self.maker.outline
        self.waits = False
        self._core, self._references, self._flights, self._cut = core, core.references, core.flights, cut
        self._bare_frame: int | None = None  # From here on what is known was made without hints.

    def begin(self, origin: int | None) -> None:
        """Begin a song, in place of one that there is. origin: the canvas frame of its beginning."""
        controls = self._core.controls
        seed = segment_seed(int(controls.defaults["seed"]), self._flights.num_started)
        self.maker.restart(controls.final_options(), seed, origin)

    def reset(self) -> None:
        """Begin a song with the next generation."""
        self._bare_frame = None
        self.begin(None)

    def work(self) -> MakeHints | None:
        """What to make now: anew where prompt, tempo or key have changed, else ahead of what is generated."""
        if not self._references.is_planned:
            self.outline.is_idle = True
            return None
        cut, core = self._cut.frame, self._core
        if self.outline.is_idle:
            self.begin(cut)
        self.maker.move(cut)
        self.maker.follow(core.controls.final_options(), cut)
        known = core.timeline.canvas.end if self.outline.origin is not None else 0
        return self.maker.work(self._cut.position - core.frames, known)

    def made(self, number: int, part: MadeHints) -> None:
        """Take what was made. Where what is known was made with other hints, or without, it is made again."""
        changed = [self.maker.made(number, part)]
        if self.outline.origin is None:
            return
        if self._bare_frame is not None and self.outline.has_hints(self._bare_frame + 1):
            changed.append(self._bare_frame)
            self._bare_frame = None
        self._cut.renew(*changed)

    def edit(self, message: SetPlan) -> None:
        """An edit is played from its beginning: the time to make it has to be left. Raises RequestError."""
        until_s = 2 * self._flights.times.estimate_s + self.maker.duration_s()
        self.maker.edit(message, self._cut.reached_in(until_s))

    @property
    def has_edits(self) -> bool:
        """Whether an edit that has an effect is not made yet."""
        return self.maker.has_edits and not self.outline.is_idle

    def has_hints(self, segment: Segment) -> bool:
        """Whether the hints of a generation are there, or it has none."""
        if not self._references.is_planned:
            return True
        start = 0 if self.outline.origin is None else segment.start_frame
        return not self.outline.is_idle and self.outline.has_hints(start + segment.frames)

    def note_bare(self, cut: int) -> None:
        """A generation without hints has new frames from this canvas frame on."""
        song = self.outline
        hints_end = 0 if song.is_idle or song.origin is None else song.origin + song.end
        bare = max(cut, hints_end)
        self._bare_frame = bare if self._bare_frame is None else min(bare, self._bare_frame)
