"""Generations of music without an end: each continues what is known, or what comes after the playhead anew.

With a song, a generation starts once the hints of its frames are there; one with a change of the client does not wait
for them: what it makes without hints is made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.core import SessionCore
from runtime.live.parts.followers import Cut, NoteFollower, SongFollower
from runtime.live.parts.pieces import Pieces
from runtime.live.parts.running import Running
from runtime.live.parts.song import basis_of
from runtime.live.playback.canvas import Canvas, CanvasPart, Piece, PlacedSource
from runtime.live.protocol.actions import CancelJob, StopHints
from runtime.live.protocol.messages import PlayNotes, Reset, SetPlan
from runtime.live.storage.document import StoredGenerations
from runtime.music.envelopes import HEARD_FRAMES, Breath, Marks
from runtime.music.first_bars import MOST_BARS, FirstBars
from runtime.music.part_moods import PartMoods
from runtime.music.tempo import tempo_of
from runtime.requests.seeds import segment_seed
from runtime.requests.segments import Segment

HISTORY_S = 600.0


class _Begun(NamedTuple):
    """What the music is for by now, the canvas frame that it began at, and how many generations were placed then."""

    basis: tuple[Any, ...]
    start_frame: int
    num_placed: int


class ExtendMode:
    """One generation in flight: an append where little is left to play, or a refresh after a change.

    song, notes: what it follows; None: nothing. `context_frame`: where what generations continue begins; None after a
    reset, until there is something new.
    """

    def __init__(self, core: SessionCore) -> None:
        self.cut = Cut(core)
        self.song: SongFollower | None = None
        notes = core.references.notes
        self.notes = None if notes is None else NoteFollower(core, notes, self.cut)
        self.context_frame: int | None = 0
        self._core, self._model, self._frames = core, core.model, core.frames
        self._controls, self._timeline, self._playhead = core.controls, core.timeline, core.playhead
        self._references, self._flights = core.references, core.flights
        self._begun: _Begun | None = None

    def follow_song(self) -> SongFollower:
        """Play by a song that begins at canvas frame 0."""
        self.song = SongFollower(self._core, self.cut)
        self.song.begin(0)
        return self.song

    @property
    def takes(self) -> tuple[type, ...]:
        """Messages."""
        return (Reset, *([] if self.song is None else [SetPlan]), *([] if self.notes is None else [PlayNotes]))

    def handle(self, message: Reset | SetPlan | PlayNotes) -> None:
        """After a reset, what is generated next is played from its beginning, as soon as it is there.

        Raises RequestError; then nothing has changed.
        """
        if isinstance(message, SetPlan):
            assert self.song is not None
            self.song.edit(message)
            return
        if isinstance(message, PlayNotes):
            assert self.notes is not None
            self.notes.play(message)
            return
        self._core.outbox += [CancelJob(job_id) for job_id in self._flights.clear()]
        self._flights.latest = self.context_frame = self.cut.stale_frame = None
        self._begun = self._references.first_bars = None
        if self._references.notes is not None:
            self._references.notes.clear()
        if self.notes is not None:
            self.notes.is_played = False
        if self.song is not None:
            self.song.reset()

    def stop(self) -> list[StopHints]:
        """What is being made of the song is forgotten."""
        return [StopHints()] if self.song is not None and self.song.maker.stop() else []

    def note(self) -> None:
        """Note which canvas frames the playhead has reached, and forget those of long ago."""
        self.cut.note()
        if self.notes is not None:
            self.notes.note()
        self._timeline.forget(0, self.cut.position - round(HISTORY_S * self._model.frame_rate_hz))

    @property
    def is_ending(self) -> bool:
        """Whether what is known ends soon, and something plays."""
        return self._timeline.newest is not None and not self._flights.running and self._is_short

    @property
    def is_pending(self) -> bool:
        """An edit of the song is complete once it is made, or of no effect any more; a note, once its bar is closed."""
        given = self._references.notes
        return (self.song is not None and self.song.has_edits) or (given is not None and given.is_waiting)

    @property
    def due_s(self) -> float:
        """When a bar of notes closes."""
        return math.inf if self.notes is None else self.notes.due_s

    @property
    def lead_time_s(self) -> float:
        """A song's part is made before what is played by it."""
        return self._flights.times.estimate_s + (0.0 if self.song is None else self.song.maker.duration_s())

    @property
    def is_dirty(self) -> bool:
        """Whether no generation has what holds now."""
        return self.cut.stale_frame is not None or self._flights.is_changed

    @property
    def ready_s(self) -> float:
        """When the next generation may start."""
        return self._flights.retry_s

    @property
    def is_wanted(self) -> bool:
        """Whether one more generation is wanted."""
        if self._flights.running or not (self.is_dirty or self._is_short):
            return False
        return self.song is None or self.song.has_hints(self._segment()) or self._cannot_wait(self.song)

    def _cannot_wait(self, song: SongFollower) -> bool:
        """Whether a change is made, or what is known ends so soon that it is continued, without hints."""
        is_begun = self._timeline.newest is not None and self.context_frame is not None
        if is_begun and not song.waits:
            is_played = self.notes is not None and self.notes.is_played
            return self.cut.left < self.cut.soon or is_played or self._flights.is_changed
        return song.maker.has_failed if is_begun else song.maker.is_late

    @property
    def _is_short(self) -> bool:
        """Whether what is known ends within half a canvas, or within the time that some generations take."""
        newest = self._timeline.newest
        if newest is None or newest.band is not None:
            return newest is None
        return self.cut.left < max(self._frames // 2, self.cut.soon)

    def new(self, job_id: str, may_draft: bool) -> Running:
        """The next generation; there are no drafts."""
        canvas, is_dirty, segment = self._timeline.canvas, self.is_dirty, self._segment()
        cut = segment.start_frame + segment.keep_frames
        if self._model.plan is None:
            self._note_first_bars(cut)
        if self.song is not None and not self.song.has_hints(segment):
            self.song.note_bare(cut)
        running = self._flights.new(
            job_id,
            segment,
            tail=canvas.rows(range(segment.start_frame, cut)) if segment.keep_frames else None,  # [keep_frames, C]
            noise=None,
            seed=segment_seed(int(self._controls.value("seed")), self._flights.num_placed),
            is_refresh=cut < canvas.end,
        )
        running.is_append = not is_dirty
        running.is_beginning = self.context_frame is None
        self.cut.stale_frame = None
        if self.notes is not None:
            self.notes.is_played = False
        return running

    def _note_first_bars(self, cut: int) -> None:
        """Without a planner what follows has the beat of the first bars that prompts, tempo and key are the same of."""
        given, canvas, options = self._references, self._timeline.canvas, self._controls.final_options()
        basis, facts = basis_of(options), self._model.notes
        if self._begun is None and self.context_frame is not None:
            self._begun = _Begun(basis, max(self.context_frame, canvas.start), -1)
        elif self._begun is None or self._begun.basis != basis:
            self._begun, given.first_bars = _Begun(basis, cut, self._flights.num_placed), None
        tempo = tempo_of(options, self._model.ranges.bpm)
        is_made = self._flights.num_placed > self._begun.num_placed
        if given.first_bars is not None or not is_made or tempo is None or facts is None or not facts.takes_hints:
            return
        bar_frames = tempo.bar_frames(self._model.frame_rate_hz)
        start = max(self._begun.start_frame, canvas.start)
        known = range(start, min(canvas.end, start + math.ceil(MOST_BARS * bar_frames)))
        if len(known) >= bar_frames:
            latents = canvas.rows(known)  # [n, C]
            given.first_bars = FirstBars(facts.spec, facts.silence, latents, bar_frames, start)

    def _segment(self) -> Segment:
        """The frames of a generation that starts now."""
        canvas = self._timeline.canvas
        cut = self.cut.frame if self.is_dirty else canvas.end
        context = 0 if self.context_frame is None else cut - max(self.context_frame, canvas.start)
        keep = max(0, min(self._model.overlap_frames, self._frames // 2, context))
        if context:
            keep += (cut - keep) % self._model.align_frames  # Its frames are in the groups of the canvas.
        return Segment(cut - keep, self._frames, keep)

    def shaped(self, breath: Breath, done: Running, latents: Latents, marks: Marks) -> Latents:
        """Behind the canvas as it was when the generation began; what was made anew since has the same levels there."""
        keep, canvas = done.job.segment.keep_frames, self._timeline.canvas
        cut = done.job.segment.start_frame + keep
        if keep:
            breath.hear(canvas.rows(range(max(canvas.start, cut - HEARD_FRAMES), cut)))
        return np.concatenate((latents[:keep], breath.shaped(latents[keep:], marks.part(keep))))

    def place(self, done: Running, piece: Piece, moods: PartMoods) -> bool:
        """New frames in place of everything after the cut; where that has been played by now, only what comes after."""
        segment, canvas = done.job.segment, self._timeline.canvas
        if self._timeline.newest is None:
            start, from_sample = 0, 0
        else:
            from_sample = self.cut.from_sample(done.from_sample)
            start = self.cut.first_unplayed(from_sample)
            if done.is_beginning:
                start = -(-start // self._model.align_frames) * self._model.align_frames
            else:
                start = max(segment.start_frame + segment.keep_frames, start)
            if start >= canvas.end:  # Nothing that is known changes.
                start, from_sample = canvas.end, min(self._playhead.reach, self._playhead.sent_until)
        row = 0 if done.is_beginning else start - segment.start_frame
        if row >= segment.frames:
            self._flights.latest = None
            return False
        if done.is_beginning:
            self.context_frame = start
            if self.song is not None:
                self.song.outline.origin = start
        end = start + segment.frames - row
        new = CanvasPart(piece, row, start, end, done.basis.first_seq, done.basis.full_seq)
        extended = Canvas((*canvas.cut(canvas.start, start).parts, new), moods=moods)
        if self._timeline.newest is None:
            self._core.place_first(extended, None)
        else:
            self._timeline.place_canvas(from_sample, extended)
        return True

    def check_bars(self, values: Mapping[str, Any], field: str) -> None:
        """Raise RequestError where controls set `loop_bars`."""
        if values.get("loop_bars") is not None:
            raise RequestError("music without an end has no loop", field=field, fix="open the session with mode loop")

    def region(self, start: int, frames: int) -> int:
        """A write has to lie in what is known."""
        canvas = self._timeline.canvas
        if not canvas.start <= start <= canvas.end - frames:
            known = [f"{frame / self._model.frame_rate_hz:.2f}" for frame in (canvas.start, canvas.end)]
            raise RequestError(f"the canvas is known from {known[0]} to {known[1]} s", field="at_s")
        return start

    def write(self, start: int, piece: Piece, seq: int) -> None:
        """Put latents from frame `start` on into the canvas, and let them be the source.

        What has been played, or is played before the change can arrive, stays.
        """
        reach = self._playhead.reach
        first = max(start, self.cut.first_unplayed(reach))
        part = CanvasPart(piece, 0, start, start + len(piece.latents), seq, seq).cut(first, start + len(piece.latents))
        if part is not None:
            self._timeline.place_canvas(reach, self._timeline.canvas.with_part(part))
        self._references.put("source", PlacedSource(None, None, piece, start))

    def stored(self, pieces: Pieces) -> dict[str, Any]:
        """Members of StoredGenerations, which `restore` takes."""
        return {"heard_frame": self.cut.played_frame, "context_frame": self.context_frame}

    def restore(self, stored: StoredGenerations, pieces: Pieces) -> None:
        """Go on with a canvas, and with a song. Raises RequestError and StoreError."""
        if stored.plan is not None:
            self.follow_song().maker.restore(stored.plan, pieces)
        self.cut.played_frame, self.context_frame = stored.heard_frame, stored.context_frame
