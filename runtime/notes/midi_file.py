"""Scores as Standard MIDI Files, format 1: tempo, meter, key and sections in the first track, a track per layer.

Files of others are read as notes: format 0 and 1, at any tempo.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mido import (
    KeySignatureError,
    Message,
    MetaMessage,
    MidiFile,
    MidiTrack,
    bpm2tempo,
    second2tick,
    tick2second,
)

from runtime.audio.metadata import TAG
from runtime.config.notes import NotesSpec
from runtime.errors import RequestError
from runtime.notes.score import Part, Score

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

MAGIC = b"MThd"
MAX_FILE_BYTES = 2**20
DEFAULT_TEMPO = 500_000  # microseconds of a quarter, where a file says none

Timed = tuple[int, Message | MetaMessage]


class _TempoChange(NamedTuple):
    """From a tick on, so many seconds after the beginning, a tick takes `tick_s`."""

    tick: int
    start_s: float
    tick_s: float

    def seconds_at(self, tick: int) -> float:
        """When a later tick is, if the tempo stays."""
        return self.start_s + (tick - self.tick) * self.tick_s


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
    try:
        file = MidiFile(file=io.BytesIO(data))
    except (EOFError, OSError, ValueError, LookupError, TypeError, KeySignatureError) as error:
        raise RequestError(f"the file is not MIDI: {error}", field="notes") from None
    if file.type == 2 or not 0 < file.ticks_per_beat < 2**15:
        what = "several songs" if file.type == 2 else "times that are no parts of beats"
        raise RequestError(f"the MIDI file has {what}", field="notes", fix="save it as format 0 or 1, in ticks")
    tempos = _tempos(file)
    layers = {layer.name.casefold(): layer.name for layer in spec.layers}
    percussion = next((layer.name for layer in spec.layers if layer.is_percussion), None)
    found: list[dict[str, Any]] = []
    for track in file.tracks:
        named = layers.get(track.name.strip().casefold())
        for channel, pitch, velocity, start, end in _played(track):
            if channel == PERCUSSION_CHANNEL and named is None and percussion is None:
                continue
            layer = named or (percussion if channel == PERCUSSION_CHANNEL else None)
            start_s = _seconds(start, tempos)
            seconds = _seconds(end, tempos) - start_s
            note = {"pitch": pitch, "velocity": velocity, "start_s": start_s, "seconds": max(seconds, 1e-3)}
            found.append(note if layer is None else {"layer": layer, **note})
    return sorted(found, key=lambda note: float(note["start_s"]))


def _tempos(file: MidiFile) -> list[_TempoChange]:
    """In order; the first one is at tick 0."""
    told: list[tuple[int, int]] = []
    for track in file.tracks:
        tick = 0
        for message in track:
            tick += message.time
            if message.type == "set_tempo":
                told.append((tick, message.tempo))
    found = [_TempoChange(0, 0.0, tick2second(1, file.ticks_per_beat, DEFAULT_TEMPO))]
    for tick, tempo in sorted(told, key=lambda each: each[0]):
        found.append(_TempoChange(tick, found[-1].seconds_at(tick), tick2second(1, file.ticks_per_beat, tempo)))
    return found


def _seconds(tick: int, tempos: Sequence[_TempoChange]) -> float:
    last = tempos[bisect_right(tempos, tick, key=lambda change: change.tick) - 1]
    return float(round(last.seconds_at(tick), 6))


def _played(track: MidiTrack) -> Iterable[tuple[int, int, int, int, int]]:
    """Channel, pitch, velocity, and the ticks of its start and end, of every note; open ones end with the track."""
    tick, begun = 0, dict[tuple[int, int], deque[tuple[int, int]]]()
    for message in track:
        tick += message.time
        if message.type not in ("note_on", "note_off"):
            continue
        key = (message.channel, message.note)
        if message.type == "note_on" and message.velocity:
            begun.setdefault(key, deque()).append((message.velocity, tick))
        elif begun.get(key):
            yield (*key, *begun[key].popleft(), tick)
    for key, notes in begun.items():
        yield from ((*key, *note, tick) for note in notes)


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
