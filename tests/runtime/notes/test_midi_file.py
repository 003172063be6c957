"""MIDI files, as mido and pretty_midi read them."""

from __future__ import annotations

import io

import mido
import pretty_midi
import pytest

from runtime.notes.midi_file import CHANNELS, key_signature, midi_bytes
from runtime.notes.score import Instrument, Marker, Note, Part, Score

BASS = (Note("bass", 40, 100, 0.5, 0.5), Note("bass", 40, 80, 1.0, 0.25), Note("bass", 47, 60, 1.0, 1.5))
DRUMS = (Note("drums", 36, 127, 0.0, 0.04), Note("drums", 38, 90, 0.731, 0.04))
SCORE = Score(
    (
        Part("pad", ()),
        Part("bass", BASS, instrument=Instrument("upright bass", 32)),
        Part("drums", DRUMS, is_percussion=True, instrument=Instrument("brushes", 40)),
    ),
    4.0,
    0.04,
    bpm=97.3,
    time_signature=3,
    key="C# dorian",
    sections=(Marker(0.0, "verse"), Marker(2.0, "chorus")),
)


def read(score: Score = SCORE, tag: str = "") -> mido.MidiFile:
    return mido.MidiFile(file=io.BytesIO(midi_bytes(score, tag)), charset="utf-8")


def meta(file: mido.MidiFile, kind: str) -> list[mido.MetaMessage]:
    return [event for event in file.tracks[0] if event.type == kind]


def test_pretty_midi_reads_the_notes_of_each_layer() -> None:
    found = pretty_midi.PrettyMIDI(io.BytesIO(midi_bytes(SCORE)))
    assert [(part.name, part.program, part.is_drum) for part in found.instruments] == [
        ("bass", 32, False),
        ("drums", 40, True),
    ]
    for part, notes in zip(found.instruments, (BASS, DRUMS), strict=True):
        read = sorted((note.start, note.pitch, note.velocity, note.end) for note in part.notes)
        for (start, pitch, velocity, end), note in zip(
            read, sorted(notes, key=lambda n: (n.start_s, n[1])), strict=True
        ):
            assert (pitch, velocity) == (note.pitch, note.velocity)
            assert (start, end) == pytest.approx((note.start_s, note.start_s + note.seconds), abs=0.001)
    assert found.get_tempo_changes()[1] == pytest.approx([97.3], abs=1e-3)
    assert [(sign.numerator, sign.denominator) for sign in found.time_signature_changes] == [(3, 4)]


def test_the_first_track_says_tempo_meter_key_and_sections() -> None:
    file = read(tag='{"a": "ä"}')
    assert (file.type, len(file.tracks)) == (1, 3)
    assert [event.key for event in meta(file, "key_signature")] == ["B"]
    assert [event.text for event in meta(file, "text")] == ["key C# dorian", 'TICKRT={"a": "ä"}']
    assert [event.text for event in meta(file, "marker")] == ["verse", "chorus"]
    assert file.length == pytest.approx(4.0, abs=0.002)


def test_a_layer_without_notes_has_no_track_and_keeps_its_channel() -> None:
    bass = next(track for track in read().tracks if track.name == "bass")
    assert {event.channel for event in bass if not event.is_meta} == {CHANNELS[1]}


def test_a_key_ends_before_it_is_struck_again() -> None:
    bass = next(track for track in read().tracks if track.name == "bass")
    events = [event.type for event in bass if not event.is_meta and getattr(event, "note", 0) == 40]
    assert events == ["note_on", "note_off", "note_on", "note_off"]


def test_without_a_tempo_times_are_right_and_it_is_said() -> None:
    file = read(Score((Part("bass", BASS),), 4.0, 0.04))
    assert [event.text for event in meta(file, "text")] == ["tempo unknown"]
    assert file.length == pytest.approx(4.0, abs=0.002)
    assert meta(file, "key_signature") == []


def test_six_eight_counts_dotted_quarters() -> None:
    file = read(Score((Part("bass", BASS),), 4.0, 0.04, bpm=60.0, time_signature=6))
    (meter,), (tempo,) = meta(file, "time_signature"), meta(file, "set_tempo")
    assert (meter.numerator, meter.denominator) == (6, 8)
    assert mido.tempo2bpm(tempo.tempo) == pytest.approx(90.0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("C major", "C"), ("A minor", "Am"), ("Bb major", "Bb"), ("d dorian", "C"), ("F lydian", "C"),
        ("E phrygian", "C"), ("G mixolydian", "C"), ("F# harmonic minor", "F#m"), ("E♭ minor", "Ebm"), ("C", "C"),
        ("G pentatonic", "G"), ("A blues", "Am"), ("C locrian", None), ("H minor", None), ("", None),
    ],
)  # fmt: skip
def test_keys_as_midi_names_them(key: str, expected: str | None) -> None:
    assert key_signature(key) == expected
