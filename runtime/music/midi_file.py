"""Scores as Standard MIDI Files, format 1: tempo, meter, key and sections in the first track, a track per layer.

Files of others are read as notes, at any tempo or in frames of video, up to what cannot be read of each track.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from mido import Message, MetaMessage, MidiFile, MidiTrack, bpm2tempo, second2tick
from pydantic_core import from_json

from runtime.base.errors import RequestError
from runtime.base.files import MAX_JSON_BYTES, losses, read_file, tell_loss
from runtime.base.midi_events import (
    END_OF_TRACK,
    MAGIC,
    META,
    TAG,
    TEMPO,
    TRACK_NAME,
    UNREADABLE,
    Event,
    read_midi,
    unreadable_midi,
)
from runtime.base.untrusted import plain_utf8
from runtime.config.notes import MAX_END_S, MAX_NOTES, NotesSpec
from runtime.music.score import Part, Score

TICKS_PER_QUARTER = 480
DEFAULT_BPM = 120.0
PERCUSSION_CHANNEL = 9
CHANNELS = [channel for channel in range(16) if channel != PERCUSSION_CHANNEL]
# Numerator and denominator of a time signature, and how many quarters its beat has.
METERS = {2: (2, 4, 1.0), 3: (3, 4, 1.0), 4: (4, 4, 1.0), 6: (6, 8, 1.5)}
NATURALS = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
ACCIDENTALS = {"#": 1, "♯": 1, "b": -1, "♭": -1}
# Semitones from a mode's tonic down to that of the major scale with the same notes; "minor": written as such.
MAJOR_BELOW = {"major": 0, "dorian": 2, "phrygian": 4, "lydian": 5, "mixolydian": 7, "pentatonic": 0}
MINOR_MODES = ("minor", "harmonic minor", "aeolian", "blues")
MAJOR_KEYS = ("C", "Db", "D", "Eb", "E", "F", "F#", "G", "Ab", "A", "Bb", "B")
MINOR_KEYS = ("Cm", "C#m", "Dm", "Ebm", "Em", "Fm", "F#m", "Gm", "G#m", "Am", "Bbm", "Bm")

MAX_FILE_BYTES = 2**20
NOTE_OFF = 0x80  # and NOTE_ON, 0x90: one bit more
DEFAULT_TEMPO = 500_000  # microseconds of a quarter, where a file says none
MIN_NOTE_S = 1e-3
SEVERAL_SONGS, IN_FRAMES = 2, 2**15  # format and division

Timed = tuple[int, Message | MetaMessage]


class _TempoChange(NamedTuple):
    """From a tick on, so many seconds after the beginning, a tick takes `tick_s`."""

    tick: int
    start_s: float
    tick_s: float

    def seconds_at(self, tick: int) -> float:
        """When a later tick is, if the tempo stays."""
        return self.start_s + (tick - self.tick) * self.tick_s


@dataclass
class _Track:
    """What a track says, in ticks since the beginning of the piece.

    tempos: their ticks and microseconds per quarter. played: channel, pitch, velocity, start, end. begun: velocity and
    start of the notes that sound, by channel and pitch. fault: what could not be read behind `end`.
    """

    end: int
    name: str = ""
    tempos: list[tuple[int, int]] = field(default_factory=list)
    played: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    begun: dict[tuple[int, int], deque[tuple[int, int]]] = field(default_factory=dict)
    fault: RequestError | None = None

    def tell(self) -> None:
        """Tell what could not be read of it, and which notes it does not end."""
        if self.fault is not None:
            reason = self.fault.what.removeprefix(f"notes: {UNREADABLE}").removeprefix(UNREADABLE)
            tell_loss(f"of the MIDI file what follows is left out where {reason}")
        if unended := sum(map(len, self.begun.values())):
            tell_loss(f"the MIDI file does not end {unended} of the notes of a track: they are ended")


def midi_bytes(score: Score, tag: str = "") -> bytes:
    """A MIDI file. tag: what it was made from, as a text event.

    Times are exact at any tempo; where no tempo is known, it says so and counts in 120 quarters per minute. It says
    where notes are estimates, too.
    """
    file = MidiFile(type=1, ticks_per_beat=TICKS_PER_QUARTER, charset="utf-8")
    numerator, denominator, quarters = METERS[score.time_signature or 4]
    tempo = bpm2tempo((score.bpm or DEFAULT_BPM) * quarters)
    first: list[Timed] = [
        (0, MetaMessage("set_tempo", tempo=tempo)),
        (0, MetaMessage("time_signature", numerator=numerator, denominator=denominator)),
    ]
    if score.bpm is None:
        first.append((0, MetaMessage("text", text="tempo unknown")))
    if score.is_estimated:
        first.append((0, MetaMessage("text", text="notes of uploaded audio are estimated")))
    if score.key is not None:
        first.append((0, MetaMessage("text", text=f"key {score.key}")))
        if (signature := key_signature(score.key)) is not None:
            first.append((0, MetaMessage("key_signature", key=signature)))
    if tag:
        first.append((0, MetaMessage("text", text=f"{TAG}={tag}")))
    first += [(_tick(start_s, tempo), MetaMessage("marker", text=kind)) for start_s, kind in score.sections]
    end = _tick(score.seconds, tempo)
    file.tracks.append(_track(first, end))
    channels = iter(CHANNELS)
    for part in score.parts:
        channel = PERCUSSION_CHANNEL if part.is_percussion else next(channels)
        if part.notes:
            file.tracks.append(_track(_events(part, channel, tempo), end))
    buffer = io.BytesIO()
    file.save(file=buffer)
    return buffer.getvalue()


def notes_of_midi(data: bytes, spec: NotesSpec) -> list[dict[str, Any]]:
    """The notes of a MIDI file by start, as values of the option `notes`.

    A track that is named as a layer is of it, what is on channel 10 of the first layer of percussion, all else of the
    layer that has the pitch. Raises RequestError.
    """
    if len(data) > MAX_FILE_BYTES:
        what = f"the MIDI file has {len(data)} bytes, the limit is {MAX_FILE_BYTES}"
        raise RequestError(what, field="notes", fix="leave out tracks that are not to be played, or controllers")
    with losses() as lost:
        found = _found_notes(data, spec)
    if not found:
        what = "; ".join(["the MIDI file has no notes that can be played", *lost])
        raise RequestError(what, field="notes", fix="export it again")
    for text in lost:
        tell_loss(text)
    return sorted(found, key=lambda note: float(note["start_s"]))


def _found_notes(data: bytes, spec: NotesSpec) -> list[dict[str, Any]]:
    """The notes of all tracks. Raises RequestError."""
    file, tracks, end = read_midi(data), list[_Track](), 0
    beat = file.division if file.division < IN_FRAMES else 12 * (file.division & 0xFF)
    for number in range(len(file.tracks)):
        tracks.append(_read_track(file.events(number), end, beat))
        end = tracks[-1].end if file.format == SEVERAL_SONGS else 0
    tempos = _tempos((change for track in tracks for change in track.tempos), file.division)
    found = list(islice((note for track in tracks for note in _notes(track, tempos, spec)), MAX_NOTES + 1))
    for track in tracks:
        track.tell()
    num_left_out = sum(len(track.played) for track in tracks) - len(found)
    if len(found) <= MAX_NOTES and num_left_out:
        what = f"are percussion that the model does not have, or begin behind {MAX_END_S:g} s"
        tell_loss(f"{num_left_out} notes of the MIDI file {what}: they are left out")
    if len(found) > MAX_NOTES:
        raise RequestError(f"the MIDI file has more than {MAX_NOTES} notes", field="notes", fix="leave some out")
    return found


def _notes(track: _Track, tempos: Sequence[_TempoChange], spec: NotesSpec) -> Iterator[dict[str, Any]]:
    """Those of a track that begin within the longest generation."""
    percussion = next((layer.name for layer in spec.layers if layer.is_percussion), None)
    name = track.name.strip().casefold()
    named = next((layer.name for layer in spec.layers if layer.name.casefold() == name), None)
    for channel, pitch, velocity, start, end in track.played:
        is_percussion, start_s = channel == PERCUSSION_CHANNEL, _seconds(start, tempos)
        layer = named or (percussion if is_percussion else None)
        if start_s + MIN_NOTE_S <= MAX_END_S and (layer or not is_percussion):
            seconds = max(min(_seconds(end, tempos), MAX_END_S) - start_s, MIN_NOTE_S)
            note = {"pitch": pitch, "velocity": velocity, "start_s": start_s, "seconds": seconds}
            yield note if layer is None else {"layer": layer, **note}


def _read_track(events: Iterable[Event], begin: int, beat: int) -> _Track:
    """A track from the tick `begin` on.

    Notes that nothing ends end with the last event before the track's end; those that are it last for a beat at most.
    """
    track, last = _Track(begin), begin
    try:
        for tick, status, data in events:
            track.end = begin + tick
            if status != META or data[0] != END_OF_TRACK:
                last = track.end
            _take(track, status, data)
    except RequestError as error:
        track.fault = error
    for key, notes in track.begun.items():
        for velocity, start in notes:
            end = last if last > start else start + min(beat, track.end - start or beat)
            track.played.append((*key, velocity, start, end))
    return track


def _take(track: _Track, status: int, data: bytes) -> None:
    """Add an event at the track's end to what is known of the track."""
    if status == META and data[0] == TRACK_NAME:
        track.name = track.name or data[1:].decode("utf-8", "replace")
    elif status == META and data[0] == TEMPO and len(data) == 4:
        track.tempos.append((track.end, int.from_bytes(data[1:])))
    elif status & 0xE0 == NOTE_OFF:
        key = (status & 0x0F, data[0])
        if status & 0x10 and data[1]:
            track.begun.setdefault(key, deque()).append((data[1], track.end))
        elif track.begun.get(key):
            track.played.append((*key, *track.begun[key].popleft(), track.end))


def _tempos(told: Iterable[tuple[int, int]], division: int) -> list[_TempoChange]:
    """In order; the first one is at tick 0. Times in frames of video have no others. Raises RequestError."""
    if division >= IN_FRAMES:
        rate_hz, ticks = 256 - (division >> 8), division & 0xFF
        # 29 frames per second stand for NTSC's.
        return [_TempoChange(0, 0.0, 1 / (_ticks(ticks) * {29: 30_000 / 1001}.get(rate_hz, rate_hz)))]
    tick_s = 1e-6 / _ticks(division)
    found = [_TempoChange(0, 0.0, DEFAULT_TEMPO * tick_s)]
    for tick, tempo in sorted(told, key=lambda each: each[0]):
        found.append(_TempoChange(tick, found[-1].seconds_at(tick), tempo * tick_s))
    return found


def _ticks(num: int) -> int:
    if num == 0:
        raise unreadable_midi("its beat, or its frame, has 0 ticks")
    return num


def _seconds(tick: int, tempos: Sequence[_TempoChange]) -> float:
    last = tempos[bisect_right(tempos, tick, key=lambda change: change.tick) - 1]
    return float(round(last.seconds_at(tick), 6))


def key_signature(key: str) -> str | None:
    """A key such as "C# dorian" as MIDI names it: that of the same notes. None where it has none."""
    name, _, mode = key.strip().partition(" ")
    mode = mode.strip().lower() or "major"
    if name[:1].upper() not in NATURALS or any(sign not in ACCIDENTALS for sign in name[1:]):
        return None
    tonic = NATURALS[name[0].upper()] + sum(ACCIDENTALS[sign] for sign in name[1:])
    if mode in MINOR_MODES:
        return MINOR_KEYS[tonic % 12]
    return MAJOR_KEYS[(tonic - MAJOR_BELOW[mode]) % 12] if mode in MAJOR_BELOW else None


def _events(part: Part, channel: int, tempo: int) -> list[Timed]:
    events: list[Timed] = [(0, MetaMessage("track_name", name=part.layer))]
    if part.instrument is not None:
        events.append((0, MetaMessage("instrument_name", name=part.instrument.name)))
        events.append((0, Message("program_change", channel=channel, program=part.instrument.program)))
    for note in part.notes:
        start = _tick(note.start_s, tempo)
        end = max(_tick(note.start_s + note.seconds, tempo), start + 1)
        events.append((start, Message("note_on", channel=channel, note=note.pitch, velocity=note.velocity)))
        events.append((end, Message("note_off", channel=channel, note=note.pitch, velocity=0)))
    return events


def _tick(time_s: float, tempo: int) -> int:
    return int(second2tick(time_s, TICKS_PER_QUARTER, tempo))


def _track(events: list[Timed], end: int) -> MidiTrack:
    """Events with the ticks between them; notes end before others begin."""
    track, now = MidiTrack(), 0
    for tick, message in sorted(events, key=lambda event: (event[0], event[1].type == "note_on")):
        track.append(message.copy(time=tick - now))
        now = tick
    track.append(MetaMessage("end_of_track", time=max(end - now, 0)))
    return track


def read_notes(path: Path, spec: NotesSpec) -> Any:
    """Values of the option `notes`, those of JSON not validated yet. Raises RequestError, FileError."""
    data = read_file(path, MAX_JSON_BYTES)
    try:
        values = from_json(plain_utf8(data), allow_inf_nan=False)
    except ValueError as error:
        if MAGIC in data:
            return notes_of_midi(data, spec)
        raise RequestError(f"{path} is neither MIDI nor JSON: {error}", field="notes") from error
    return values["notes"] if isinstance(values, dict) and "notes" in values else values
