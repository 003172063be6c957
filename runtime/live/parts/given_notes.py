"""Notes that a client plays: what generations follow, by canvas frames, and what of it waits for the end of its bar."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from runtime.base.errors import RequestError
from runtime.live.playback.bars import Bar
from runtime.live.protocol.actions import NoteFacts
from runtime.live.protocol.messages import NoteItem, PlayNotes
from runtime.live.storage.document import StoredNotes
from runtime.music.note_levels import MIN_FRAMES, Phrase, key_of
from runtime.music.tracker import FrameNote

# The echoes of a bar are made together so long before it begins, or as long before as a generation takes, and a little
# more; what comes later is made for itself as long before its own place, else it is of the next pass.
CLOSE_S, CLOSE_MARGIN_S = 0.3, 0.1
# Those of one session that are not played yet.
MAX_NOTES = 4096
# The layers that a chord is held in, its lowest pitch in the second one.
CHORD, BASS = "pad", "bass"
# A held chord is struck with every bar, its bass every second beat.
BASS_SIXTEENTHS = 8


@dataclass(frozen=True)
class GivenPhrase:
    """A phrase in canvas frames. is_exact: it is written into what is generated. is_waiting: its bar may get more."""

    phrase: Phrase
    is_exact: bool = False
    is_waiting: bool = False


class Held(NamedTuple):
    """Pitches that are held from a canvas frame on, until others are; none: the plan's. layer: that of the chord."""

    from_frame: int
    pitches: tuple[int, ...]
    velocity: int
    layer: str | None
    is_exact: bool


class GivenNotes:
    """The notes of one session."""

    def __init__(self, facts: NoteFacts, frame_rate_hz: float) -> None:
        self._facts, self._rate_hz = facts, frame_rate_hz
        self._given: list[GivenPhrase] = []
        self._held: list[Held] = []

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for the end of its bar."""
        return any(each.is_waiting for each in self._given)

    def clear(self) -> None:
        """Forget all of it."""
        self._given.clear()
        self._held.clear()

    def check_room(self, num: int, what: str, fix: str) -> None:
        """Whether so many notes may be added. what, fix: of notes that are there. Raises RequestError."""
        if sum(len(each.phrase.notes) for each in self._given) + num > MAX_NOTES:
            raise RequestError(f"{MAX_NOTES} notes {what}", field="items", fix=fix)

    def placed(self, message: PlayNotes, item: NoteItem, index: int, frame: float) -> FrameNote:
        """A note of a message that begins at a canvas frame. Raises RequestError."""
        layer, key = key_of(self._facts.spec, message.layer, item.pitch, f"items.{index}")
        start, seconds = round(frame), item.seconds
        num_frames = max(MIN_FRAMES, round(frame + seconds * self._rate_hz) - start)
        return FrameNote(layer.name, key, item.velocity, start, num_frames)

    def add(self, notes: Sequence[FrameNote], *, is_exact: bool) -> int:
        """Play notes as they are, each layer from its first to its last one. Returns the first canvas frame of them."""
        for name in dict.fromkeys(note.layer for note in notes):
            those = tuple(note for note in notes if note.layer == name)
            start, end = min(note.start_frame for note in those), max(note.end_frame for note in those)
            self._given.append(GivenPhrase(Phrase(name, start, end, those), is_exact))
        return min(note.start_frame for note in notes)

    def echo(self, note: FrameNote, bar: Bar, *, is_exact: bool, is_waiting: bool = True) -> None:
        """Play a note in a bar in which its layer plays what is echoed alone, and what sounds on from before.

        is_waiting: the bar closes later.
        """
        layer, start, end = note.layer, round(bar.start), max(round(bar.end), note.end_frame)
        is_new, before = True, dict[FrameNote, None]()
        for index, each in enumerate(self._given):
            phrase = each.phrase
            if phrase.layer != layer:
                continue
            is_same = phrase.start_frame == start and phrase.end_frame >= round(bar.end)
            if is_same or note.start_frame < phrase.start_frame < note.end_frame:
                longer = max(phrase.end_frame, note.end_frame)
                phrase = phrase._replace(end_frame=longer, notes=(*phrase.notes, note))
                self._given[index] = replace(each, phrase=phrase)
            is_new = is_new and not is_same
            before |= dict.fromkeys(other for other in phrase.notes if other.start_frame < start < other.end_frame)
        if is_new:
            given = GivenPhrase(Phrase(layer, start, end, (*before, note)), is_exact, is_waiting)
            later = (index for index, each in enumerate(self._given) if each.phrase.start_frame > start)
            self._given.insert(next(later, len(self._given)), given)

    def hold(self, message: PlayNotes, from_frame: int) -> None:
        """Let a chord be the harmony from a bar on. Raises RequestError."""
        pitches = tuple(sorted({item.pitch for item in message.items}))
        velocity = max((item.velocity for item in message.items), default=100)
        held = Held(from_frame, pitches, velocity, message.layer, message.exact)
        self._check_chord(held)
        self._held = [each for each in self._held if each.from_frame < from_frame] + [held]

    def _check_chord(self, held: Held) -> None:
        """Whether the model has what is held. Raises RequestError."""
        if held.pitches:
            self._chord(held, Bar(held.from_frame, held.from_frame + self._rate_hz, 16))

    def close(self, frame: float) -> int | None:
        """Let bars that begin before a canvas frame get no more; the first frame of what is now to be played."""
        closing = [each for each in self._given if each.is_waiting and each.phrase.start_frame <= frame]
        self._given = [replace(each, is_waiting=False) if each in closing else each for each in self._given]
        return min((each.phrase.start_frame for each in closing), default=None)

    @property
    def next_bar_frame(self) -> int | None:
        """Where the first bar begins that may get more; None where there is none."""
        return min((each.phrase.start_frame for each in self._given if each.is_waiting), default=None)

    def forget(self, frame: int) -> None:
        """Drop what ends before a canvas frame."""
        self._given = [each for each in self._given if each.phrase.end_frame > frame]
        later = [each.from_frame for each in self._held[1:]]
        self._held = self._held[bisect_right(later, frame) :]

    def remove(self, layer: str | None) -> None:
        """Drop what was played in a layer; None: in all."""
        self._given = [each for each in self._given if layer not in (None, each.phrase.layer)]

    def phrases(self, start: int, frames: int, bars: Iterable[Bar]) -> tuple[tuple[Phrase, ...], tuple[Phrase, ...]]:
        """Those of canvas frames from `start` on, counted from there; then those of them that are exact."""
        made = [each for each in self._given if not each.is_waiting]
        if self._held:
            made = [*self._held_in(start, start + frames, bars), *made]
        those = [each for each in made if each.phrase.start_frame < start + frames and each.phrase.end_frame > start]
        moved = [(each.phrase.moved(-start), each.is_exact) for each in those]
        return tuple(phrase for phrase, _ in moved), tuple(phrase for phrase, is_exact in moved if is_exact)

    def _held_in(self, start: int, end: int, bars: Iterable[Bar]) -> Iterable[GivenPhrase]:
        for bar in bars:
            if bar.start < end and bar.end > start:
                held = next((each for each in reversed(self._held) if each.from_frame <= round(bar.start)), None)
                if held is not None and held.pitches:
                    yield from (GivenPhrase(phrase, held.is_exact) for phrase in self._chord(held, bar))

    def _chord(self, held: Held, bar: Bar) -> list[Phrase]:
        """What is held in one bar. Raises RequestError where the model has no layer for it."""
        spec, names = self._facts.spec, [layer.name for layer in self._facts.spec.layers]
        sixteenth, step = (bar.end - bar.start) / bar.sixteenths, min(BASS_SIXTEENTHS, bar.sixteenths)
        layers = [(held.layer, held.pitches, bar.sixteenths)]
        if held.layer is None:
            layers = [(CHORD, held.pitches, bar.sixteenths), (BASS, held.pitches[:1], step)]
        phrases = []
        for name, pitches, length in layers:
            if name not in names:
                continue
            keys = dict.fromkeys(key_of(spec, name, pitch, "items")[1] for pitch in pitches)
            places = [bar.start + place * sixteenth for place in range(0, bar.sixteenths, length)]
            spans = [(round(place), round(place + length * sixteenth)) for place in places]
            notes = tuple(
                FrameNote(name, key, held.velocity, start, max(MIN_FRAMES, end - start))
                for start, end in spans
                for key in keys
            )
            phrases.append(Phrase(name, round(bar.start), round(bar.end), notes))
        if not phrases:
            wanted = held.layer or f"{CHORD} or {BASS}"
            raise RequestError(f"the model has no layer {wanted}", field="layer", fix=f"one of {', '.join(names)}")
        return phrases

    def stored(self) -> StoredNotes:
        """What `restore` takes."""
        given = [
            (*each.phrase[:3], each.is_exact, each.is_waiting, [note[1:] for note in each.phrase.notes])
            for each in self._given
        ]
        return StoredNotes(given=given, held=[(held[0], list(held.pitches), *held[2:]) for held in self._held])

    def restore(self, stored: StoredNotes) -> None:
        """Go on with notes, of layers and keys that the model has."""
        keys = {layer.name: layer.keys for layer in self._facts.spec.layers}
        for layer, start, end, is_exact, is_waiting, notes in stored.given:
            known = tuple(FrameNote(layer, *note) for note in notes if note[0] in keys.get(layer, ()))
            if layer in keys:
                self._given.append(GivenPhrase(Phrase(layer, start, end, known), is_exact, is_waiting))
        for from_frame, pitches, velocity, chord_layer, is_exact in stored.held:
            held = Held(from_frame, tuple(pitches), velocity, chord_layer, is_exact)
            with suppress(RequestError):
                self._check_chord(held)
                self._held.append(held)


def echoed(bars: Sequence[Bar], frame: float, later: int, *, quantize: bool) -> tuple[int, float]:
    """Index and offset in frames, of what was played at a canvas frame, in the bar that it is echoed in.

    bars: those that are known, in order. quantize: to sixteenths; what is played just before a bar is of that bar.
    Behind the last one they go on as that. Raises RequestError for what was played before the first one.
    """
    index = bisect_right([bar.start for bar in bars], frame) - 1
    if index < 0:
        raise RequestError("that is too long ago", field="items")
    bar = bars[index]
    length = bar.end - bar.start
    whole, offset = divmod(frame - bar.start, length)  # behind the last bar: so many bars behind it
    if quantize:
        sixteenth = round(offset / length * bar.sixteenths)
        offset = sixteenth % bar.sixteenths * length / bar.sixteenths
        whole += sixteenth // bar.sixteenths
    return index + int(whole) + later, offset


def bar_at(bars: Sequence[Bar], index: int) -> Bar:
    """A bar by index; behind the last one that is known they go on as that."""
    if index < len(bars):
        return bars[index]
    last = bars[-1]
    moved = (index - len(bars) + 1) * (last.end - last.start)
    return Bar(last.start + moved, last.end + moved, last.sixteenths)
