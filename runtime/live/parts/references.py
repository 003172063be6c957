"""The audio that a session's generations are given: a source, a timbre, a structure, or a plan's hints."""

from __future__ import annotations

from typing import Any

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.live.parts.given_notes import GivenNotes
from runtime.live.parts.outline import SongOutline
from runtime.live.playback.bars import Bar
from runtime.live.playback.canvas import Piece, PlacedSource
from runtime.live.protocol.actions import CheckedControls, LiveModel
from runtime.live.protocol.messages import ReferenceKind, control_of
from runtime.music.first_bars import FirstBars
from runtime.music.note_levels import Phrase
from runtime.music.sections import SongSection, with_layers
from runtime.requests.segments import Segment


class References:
    """What is in force, from the next generation on; `version` counts the changes.

    source: latents `[N, C]` on the canvas; timbre: latents `[F, C]` of a reference; structure: hints `[N, C]` on the
    canvas. song: what is planned where there is neither source nor structure; None: nothing. notes: what the client
    plays; None where the model makes nothing of it. first_bars: those of the music where there is no planner.
    """

    def __init__(self, model: LiveModel) -> None:
        self.source: PlacedSource | None = None
        self.timbre: PlacedSource | None = None
        self.structure: PlacedSource | None = None
        self.song: SongOutline | None = None
        self.first_bars: FirstBars | None = None
        self.version = 0
        facts = model.notes
        has_notes = facts is not None and facts.takes_hints
        self.notes = GivenNotes(facts, model.frame_rate_hz) if facts is not None and has_notes else None
        self._untaken = model.untaken

    @property
    def is_planned(self) -> bool:
        """Whether generations follow the plan."""
        return self.song is not None and self.source is None and self.structure is None

    def put(self, kind: ReferenceKind, reference: PlacedSource | None) -> None:
        """Set or remove one of them."""
        setattr(self, kind, reference)
        self.version += 1

    def take(
        self, kind: ReferenceKind, source_id: str | None, strength: float | None, latents: Latents | None, seq: int
    ) -> CheckedControls:
        """Set one of them to an uploaded source's latents, or remove it; returns the controls that `strength` sets.

        A source of strength 0 is removed. Raises RequestError; then nothing has changed.
        """
        is_source, control = kind == "source", self.check(kind, source_id, latents)
        if latents is None or (is_source and strength == 0.0):
            self.put(kind, None)
        else:
            piece = Piece(f"{kind}/{seq}/{source_id}", latents)
            self.put(kind, PlacedSource(source_id, strength if is_source else None, piece))
        if strength is None:
            return CheckedControls({})
        return CheckedControls({control: 1.0 - strength if is_source else strength})

    def check(self, kind: ReferenceKind, source_id: str | None, latents: Latents | None) -> str:
        """The control that the strength of a reference sets. Raises RequestError where it cannot be taken."""
        control = control_of(kind, self._untaken)
        if source_id is not None and latents is None:
            raise RequestError(f"there is no source {source_id!r}", field="id", fix="POST it to /v1/sources")
        return control

    def inputs(self, segment: Segment, loop_frames: int | None = None) -> dict[str, Any]:
        """Members of a SessionJob: source, hints `[T, C]`, sections, notes of a segment's frames, timbre `[F, C]`.

        loop_frames: as SessionJob has it.
        """
        source, hints = (
            None if found is None else found.frames(segment.start_frame, segment.frames, loop_frames)
            for found in (self.source, self.structure)
        )
        sections: tuple[SongSection, ...] = ()
        if self.song is not None and self.is_planned:
            hints = self.song.hints(segment.start_frame, segment.frames)
            sections = self.song.sections_in(segment.start_frame, segment.frames)
        elif self.first_bars is not None and source is None and hints is None:
            hints = self.first_bars.hints(segment.start_frame, segment.frames)
        phrases: tuple[Phrase, ...] = ()
        exact: tuple[Phrase, ...] = ()
        if self.notes is not None:
            phrases, exact = self.notes.phrases(segment.start_frame, segment.frames, self.bars)
            played = ((note.layer, note.start_frame, note.end_frame) for phrase in phrases for note in phrase.notes)
            sections = with_layers(sections, played)
        timbre = None if self.timbre is None else self.timbre.piece.latents
        notes = {"phrases": phrases, "exact": exact}
        return {"source": source, "hints": hints, "timbre": timbre, "sections": sections, **notes}

    @property
    def bars(self) -> tuple[Bar, ...]:
        """Those that are planned; none where something else than a plan is played."""
        song = self.played_song
        return () if song is None else song.bars

    @property
    def played_song(self) -> SongOutline | None:
        """The song that is played; None: something else, or it is not known yet where on the canvas it is."""
        song = self.song
        return song if song is not None and self.is_planned and song.is_known and not song.is_idle else None
