"""Scores as Standard MIDI Files, format 1: tempo, meter, key and sections in the first track, a track per layer."""

from __future__ import annotations

import io

from mido import Message, MetaMessage, MidiFile, MidiTrack, bpm2tempo, second2tick

from runtime.audio.metadata import TAG
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

Timed = tuple[int, Message | MetaMessage]


def midi_bytes(score: Score, tag: str = "") -> bytes:
    """A MIDI file. tag: what it was made from, as a text event.

    Times are exact at any tempo; where no tempo is known, it says so and counts in 120 quarters per minute.
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
