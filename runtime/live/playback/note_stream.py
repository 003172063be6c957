"""The notes of a live session as what begins and ends, in the order of the audio that is taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from runtime.live.protocol.server_messages import LayerKeys, LiveNote, TrackedNotes
from runtime.music.score import Note, Part, Score

# So many events are kept until they are taken.
MAX_EVENTS = 65_536


class NoteEvent(NamedTuple):
    """A note begins, or ends where velocity is 0. sample: of the session; pitch: MIDI's, of percussion the key."""

    sample: int
    layer: str
    pitch: int
    velocity: int


@dataclass(frozen=True)
class _Span:
    """What is told of samples `start` .. `end`."""

    start: int
    end: int
    notes: list[LiveNote]


class NoteStream:
    """Turns the messages of a session into events, as its audio is taken. Every note that begins ends, once.

    `events`: those that are not taken yet. The caller sees to it that one thread uses it at a time.
    """

    def __init__(self) -> None:
        self.events: deque[NoteEvent] = deque(maxlen=MAX_EVENTS)
        self._position = 0
        self._spans: list[_Span] = []
        self._sounding: dict[tuple[str, int], int] = {}  # layer and pitch -> where it began
        self._recording: tuple[int, list[NoteEvent]] | None = None

    def clear(self, position: int) -> None:
        """Nothing is known from a sample on: what sounds has ended."""
        self._spans.clear()
        self._end_all(self._position)
        self._position = position

    def take(self, message: TrackedNotes) -> None:
        """What is told of these samples, in place of what was told of them before."""
        new = _Span(message.start_sample, message.end_sample, [*message.notes, *message.open])
        before = [replace(span, end=min(span.end, new.start)) for span in self._spans if span.start < new.start]
        after = [replace(span, start=max(span.start, new.end)) for span in self._spans if span.end > new.end]
        self._spans = [*before, new, *after]

    def advance(self, position: int) -> None:
        """The audio up to a sample is taken."""
        while self._spans and self._spans[0].start < position:
            span = self._spans[0]
            if span.end <= self._position:
                del self._spans[0]
                continue
            if span.start > self._position:  # nothing is told of what lies between
                self._end_all(self._position)
            end = min(span.end, position)
            for event in _events(span.notes, max(span.start, self._position), end, self._sounding):
                self._put(event)
            self._position = max(self._position, end)
            if end < span.end:
                break
            del self._spans[0]
        self._position = max(self._position, position)

    def record(self) -> None:
        """Remember what sounds from here on."""
        self._recording = (self._position, [])

    def recorded(self, layers: Iterable[LayerKeys], rate_hz: int, frame_s: float) -> Score:
        """The notes since `record`; those that sound at either end are cut there."""
        assert self._recording is not None
        (start, events), self._recording = self._recording, None
        begun: dict[tuple[str, int], NoteEvent] = {}
        found: dict[str, list[Note]] = {layer.name: [] for layer in layers}
        ends = [NoteEvent(self._position, *key, 0) for key in self._sounding]
        for event in (*events, *ends):
            key = (event.layer, event.pitch)
            if event.velocity:
                begun[key] = event
            elif (first := begun.pop(key, None)) is not None:
                times = ((first.sample - start) / rate_hz, (event.sample - first.sample) / rate_hz)
                found[event.layer].append(Note(*key, first.velocity, *times))
        percussion = {layer.name for layer in layers if layer.is_percussion}
        parts = (
            Part(name, tuple(sorted(notes, key=lambda note: note.start_s)), name in percussion)
            for name, notes in found.items()
        )
        return Score(tuple(parts), (self._position - start) / rate_hz, frame_s)

    def _end_all(self, sample: int) -> None:
        for layer, pitch in list(self._sounding):
            self._put(NoteEvent(sample, layer, pitch, 0))

    def _put(self, event: NoteEvent) -> None:
        """A key that is struck again ends first; what does not sound does not end."""
        key, parts = (event.layer, event.pitch), list[NoteEvent]()
        if self._sounding.pop(key, None) is not None:
            parts.append(event._replace(velocity=0))
        if event.velocity:
            self._sounding[key] = event.sample
            parts.append(event)
        self.events += parts
        if self._recording is not None:
            self._recording[1].extend(parts)


def _events(
    notes: Iterable[LiveNote], start: int, end: int, sounding: Mapping[tuple[str, int], int]
) -> list[NoteEvent]:
    """What begins and ends from sample `start` to before `end`, in order; what sounds and is not in notes ends."""
    held = {(note[0], note[1]): note[3] for note in notes if note[3] <= start < _end(note, end)}
    events = [NoteEvent(start, *key, 0) for key in sounding if key not in held]
    for note in notes:
        layer, pitch, velocity, sample, _ = note
        begins, ends = max(sample, start), _end(note, end)
        if begins >= min(ends, end):
            continue
        if sample >= start or (layer, pitch) not in sounding:
            events.append(NoteEvent(begins, layer, pitch, velocity))
        if ends < end:
            events.append(NoteEvent(ends, layer, pitch, 0))
    return sorted(events, key=lambda event: (event.sample, event.velocity > 0))


def _end(note: LiveNote, beyond: int) -> int:
    """The sample after a note; one that goes on ends behind `beyond`."""
    return beyond + 1 if note[4] is None else note[3] + note[4]
