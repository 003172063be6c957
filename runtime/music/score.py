"""A piece's notes in seconds, and what a score says beside them: tempo, meter, key, sections, instruments."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from runtime.base.errors import RequestError

# A quantized note lies on one of these parts of a beat, where one is as near as a frame rounds.
PARTS_OF_BEAT = (4, 6)
SNAP_FRAMES = 0.525


class Note(NamedTuple):
    """A note of a layer. pitch: MIDI's, 0 to 127, of percussion the key; velocity: 1 to 127."""

    layer: str
    pitch: int
    velocity: int
    start_s: float
    seconds: float


class Instrument(NamedTuple):
    """Its name in the model, and its General MIDI program, 0 to 127."""

    name: str
    program: int


class Marker(NamedTuple):
    """Where a section of a plan begins."""

    start_s: float
    kind: str


@dataclass(frozen=True)
class Part:
    """The notes of one layer by start, and its instrument where its timbre tells one."""

    layer: str
    notes: tuple[Note, ...]
    is_percussion: bool = False
    instrument: Instrument | None = None


@dataclass(frozen=True)
class Score:
    """A part for every layer of the model, also of those that are silent, and the piece's length.

    bpm, time_signature (2, 3, 4, 6), key ("A minor"): None where nothing says them. sections: of its plan; where there
    are any, bar 0 begins at 0 s. frame_s: how exact the notes are. is_estimated: notes of uploaded audio are among
    them, which an encoder guesses.
    """

    parts: tuple[Part, ...]
    seconds: float
    frame_s: float
    bpm: float | None = None
    time_signature: int | None = None
    key: str | None = None
    sections: tuple[Marker, ...] = ()
    is_estimated: bool = False

    @property
    def notes(self) -> list[Note]:
        """Those of all layers by start."""
        return sorted((note for part in self.parts for note in part.notes), key=lambda note: note.start_s)

    def until(self, seconds: float) -> Score:
        """The same up to a time in s: notes that sound then end."""
        if seconds >= self.seconds:
            return self
        parts = (
            replace(
                part,
                notes=tuple(
                    note._replace(seconds=min(note.seconds, seconds - note.start_s))
                    for note in part.notes
                    if note.start_s < seconds
                ),
            )
            for part in self.parts
        )
        return replace(self, parts=tuple(parts), seconds=seconds)

    def quantized(self) -> Score:
        """Starts and ends on the nearest sixteenth or triplet, where one is within half a frame.

        Raises RequestError where no plan says where the beat is.
        """
        if self.bpm is None or not self.sections:
            raise RequestError("there is no beat to quantize to", field="quantize", fix="generate with a plan")
        parts = (replace(part, notes=tuple(map(self._snapped, part.notes))) for part in self.parts)
        return replace(self, parts=tuple(parts))

    def _snapped(self, note: Note) -> Note:
        start, end = self._snap(note.start_s), self._snap(note.start_s + note.seconds)
        return note if end <= start else note._replace(start_s=start, seconds=end - start)

    def _snap(self, time_s: float) -> float:
        assert self.bpm is not None
        beat = time_s * self.bpm / 60
        nearest = min((round(beat * parts) / parts for parts in PARTS_OF_BEAT), key=lambda place: abs(place - beat))
        place_s = nearest * 60 / self.bpm
        return place_s if abs(place_s - time_s) <= SNAP_FRAMES * self.frame_s else time_s
