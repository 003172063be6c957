"""MIDI files, as mido and pretty_midi read them."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import mido
import pretty_midi
import pytest
from helpers.midi_files import NOTE, damaged, midi_file, midi_files, quantity
from helpers.midi_files import midi_file as midi_of
from helpers.odd_midi import MELODY, ODD_FILES
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from runtime.base.errors import FileError, RequestError
from runtime.base.files import losses
from runtime.config.notes import NoteLayerSpec, NotesSpec
from runtime.music.midi_file import CHANNELS, MAX_FILE_BYTES, key_signature, midi_bytes, notes_of_midi, read_notes
from runtime.music.score import Instrument, Marker, Note, Part, Score
from runtime.requests.options import parse_options

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


def test_estimated_notes_say_so() -> None:
    file = read(Score((Part("bass", BASS),), 4.0, 0.04, bpm=120.0, is_estimated=True))
    assert [event.text for event in meta(file, "text")] == ["notes of uploaded audio are estimated"]


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


def midi(*tracks: list[mido.Message | mido.MetaMessage], **members: int) -> bytes:
    file = mido.MidiFile(**{"type": 1, "ticks_per_beat": 100, **members})
    for track in tracks:
        file.tracks.append(mido.MidiTrack(track))
    buffer = io.BytesIO()
    file.save(file=buffer)
    return buffer.getvalue()


def on(note: int, time: int, channel: int = 0, velocity: int = 80) -> mido.Message:
    return mido.Message("note_on", note=note, time=time, channel=channel, velocity=velocity)


NOTES = NotesSpec(
    scale=1.0,
    on=0.12,
    off=0.06,
    layers=(
        NoteLayerSpec(name="bass", channels=(0, 1), keys=(40, 47)),
        NoteLayerSpec(name="drums", channels=(2, 3), keys=(36, 38), is_percussion=True),
    ),
)


def test_a_file_of_a_score_is_read_as_its_notes() -> None:
    found = notes_of_midi(midi_bytes(SCORE), NOTES)
    expected = sorted((*BASS, *DRUMS), key=lambda note: note.start_s)
    assert sorted((note["layer"], note["pitch"], note["velocity"]) for note in found) == sorted(
        note[:3] for note in expected
    )
    for note, given in zip(found, expected, strict=True):
        assert note["start_s"] == pytest.approx(given.start_s, abs=2e-3)
    by_pitch = {(note["pitch"], note["velocity"]): note["seconds"] for note in found}
    assert by_pitch[47, 60] == pytest.approx(1.5, abs=2e-3)


def test_tracks_channels_and_tempos_of_other_files() -> None:
    tempo = [mido.MetaMessage("set_tempo", tempo=1_000_000), mido.MetaMessage("set_tempo", tempo=500_000, time=100)]
    named = [mido.MetaMessage("track_name", name=" BASS"), on(40, 50), on(40, 100, velocity=0)]
    other = [
        mido.MetaMessage("track_name", name="Piano"),
        on(60, 0, 3),
        on(36, 0, 9),
        on(36, 10, 9, 0),
        on(60, 190, 3, 0),
    ]
    unended = [on(50, 100), mido.MetaMessage("end_of_track", time=100)]
    found = notes_of_midi(midi(tempo, named, [mido.MetaMessage("track_name", name="Piano"), *other], unended), NOTES)
    assert [(note.get("layer"), note["pitch"], note["start_s"], note["seconds"]) for note in found] == [
        ("drums", 36, 0.0, pytest.approx(0.1)),
        (None, 60, 0.0, pytest.approx(1.5)),
        ("bass", 40, 0.5, pytest.approx(0.75)),
        (None, 50, 1.0, pytest.approx(0.5)),
    ]


def test_one_track_with_everything_is_read_by_channels_and_pitch() -> None:
    found = notes_of_midi(midi([on(40, 0), on(38, 0, 9), on(40, 100, velocity=0), on(38, 0, 9, 0)], type=0), NOTES)
    assert {note["pitch"]: note.get("layer") for note in found} == {40: None, 38: "drums"}


def test_a_note_ends_with_its_note_off_whatever_the_velocity_of_that() -> None:
    off = mido.Message("note_off", note=40, velocity=64, time=100)
    found = notes_of_midi(midi([on(40, 0), off, on(40, 100), off]), NOTES)
    assert [(note["start_s"], note["seconds"]) for note in found] == [(0.0, 0.5), (1.0, 0.5)]


def test_many_tempos_and_many_notes_are_read_once_each() -> None:
    """The time of the machine's other work does not count; the first comparison that is quick enough does."""
    for _ in range(5):
        short_s, long_s = (_cpu_s(count) for count in (500, 2000))
        if long_s < 10 * short_s:
            return
    pytest.fail(f"{short_s:.4f} s, and {long_s:.4f} s for 4 times as many tempos and notes")


def _cpu_s(count: int) -> float:
    tempo, note = bytes((1, 0xFF, 0x51, 3, 7, 161, 32)), bytes((1, 0x90, 40, 80, 1, 40, 0))
    data, started_s = midi_of(tempo * count, note * count), time.thread_time()
    assert len(notes_of_midi(data, NOTES)) == count
    return time.thread_time() - started_s


def test_more_notes_than_a_request_has_are_refused() -> None:
    with pytest.raises(RequestError, match="more than 16384 notes"):
        notes_of_midi(midi_of(bytes((0, 0x90, 40, 80, 1, 40, 0)) * 16_385), NOTES)


@pytest.mark.parametrize("tempo", [0, 2**24 - 1])
def test_notes_of_any_tempo_have_a_length(tempo: int) -> None:
    (note,) = notes_of_midi(
        midi([mido.MetaMessage("set_tempo", tempo=tempo), on(40, 0), on(40, 100, velocity=0)]), NOTES
    )
    assert note["seconds"] == pytest.approx(max(tempo * 1e-6, 1e-3))


@pytest.mark.parametrize("name", ODD_FILES)
def test_odd_files_have_the_notes_of_the_melody_that_they_are_made_from(name: str) -> None:
    data, num_notes = ODD_FILES[name]
    plain = [
        message for message in mido.MidiFile(file=io.BytesIO(MELODY)) if message.type == "note_on" and message.velocity
    ]
    with losses() as lost:
        found = notes_of_midi(data, NOTES)
    assert lost or num_notes == len(plain)
    assert [note["pitch"] for note in found] == [message.note for message in plain][:num_notes]
    assert [note["start_s"] for note in found] == pytest.approx([0.5 * i for i in range(num_notes)], abs=0.01)
    assert [note["seconds"] for note in found] == pytest.approx([0.25] * num_notes, abs=0.01)


LATE = quantity(2**27)


def told(data: bytes) -> str:
    with losses() as lost:
        notes_of_midi(data, NOTES)
    return "; ".join(lost)


def test_what_is_left_out_or_mended_is_told() -> None:
    assert told(MELODY) == ""
    assert told(ODD_FILES["RMID"][0]) == ""
    for words, data in {
        "1 of the 9 tracks": ODD_FILES["a count above what is there"][0],
        "a track of the MIDI file has a wrong length": ODD_FILES["a track of 900 bytes by its header"][0],
        "left out where track 1 ends within an event": ODD_FILES["a cut event"][0],
        "left out where a time or a length is too large": ODD_FILES["a time that is too large"][0],
        "does not end 1 of the notes": midi_of(bytes((0, 0x90, 40, 80))),
        "read as 127": ODD_FILES["a controller above 127"][0],
        "1 notes of the MIDI file are percussion": midi_of(
            bytes((0, 0x90, 40, 80, 96, 40, 0, *LATE, 0x90, 40, 80, 0, 40, 0))
        ),
    }.items():
        assert words in told(data), words


def test_values_above_127_are_clipped_as_mido_clips_them() -> None:
    data = midi_of(bytes((0, 0x90, 40, 200, 96, 40, 0)))
    (theirs,) = (
        event
        for event in mido.MidiFile(file=io.BytesIO(data), clip=True).tracks[0]
        if not event.is_meta and event.velocity
    )
    assert [note["velocity"] for note in notes_of_midi(data, NOTES)] == [theirs.velocity] == [127]


def test_songs_of_one_file_follow_each_other() -> None:
    song = [on(40, 100), on(40, 100, velocity=0), mido.MetaMessage("end_of_track", time=100)]
    assert [note["start_s"] for note in notes_of_midi(midi(song, song, type=2), NOTES)] == [0.5, 2.0]


@pytest.mark.parametrize(
    ("end_ticks", "others", "seconds"),
    [(480_000, (), 0.5), (10, (), 0.05), (480_000, (on(41, 60), on(41, 20, velocity=0)), 0.4)],
)
def test_a_note_that_nothing_ends_does_not_last_until_the_end_of_its_track(
    end_ticks: int, others: tuple[mido.Message, ...], seconds: float
) -> None:
    found = notes_of_midi(midi([on(40, 0), *others, mido.MetaMessage("end_of_track", time=end_ticks)]), NOTES)
    assert found[0]["seconds"] == pytest.approx(seconds)


def test_notes_behind_the_longest_generation_are_left_out() -> None:
    found = notes_of_midi(
        midi(
            [
                on(40, 0),
                on(41, 0),
                on(41, 100, velocity=0),
                on(40, 200_000, velocity=0),
                on(42, 0),
                on(42, 9, velocity=0),
            ]
        ),
        NOTES,
    )
    assert {note["pitch"]: note["seconds"] for note in found} == {40: 600.0, 41: 0.5}
    parse_options({"prompt": "", "notes": found})


def test_a_refusal_says_what_cannot_be_read() -> None:
    for data, cause in (
        (midi_of(bytes((0, 40, 80))), "no notes that can be played; what of the MIDI file has no status is left out"),
        (midi_of(b""), "no notes that can be played"),
    ):
        with pytest.raises(RequestError, match=cause):
            notes_of_midi(data, NOTES)


@pytest.mark.parametrize(
    "data",
    [
        b"MThd",
        b"RIFF" + bytes(100),
        midi_bytes(SCORE)[:60] + bytes(range(256)),
        midi([]),
        midi_bytes(SCORE)[:12] + bytes(2) + midi_bytes(SCORE)[14:],  # no ticks per beat
        b"MThd" + bytes(MAX_FILE_BYTES),
    ],
)
def test_what_is_no_midi_is_refused(data: bytes) -> None:
    with pytest.raises(RequestError) as error:
        notes_of_midi(data, NOTES)
    assert error.value.field == "notes"


@settings(max_examples=200, deadline=None)
@drawn(midi_files | damaged(st.just(midi_bytes(SCORE))))
def test_a_damaged_file_is_refused_or_read(data: bytes) -> None:
    notes, causes = [], []
    try:
        notes = notes_of_midi(data, NOTES)
    except RequestError as error:
        causes.append((error.field, error.what))
    assert [cause for cause in causes if cause[0] != "notes" or cause[1].endswith(": ")] == []
    assert all(0 <= note["pitch"] <= 127 and note["seconds"] > 0 for note in notes)


def test_a_file_that_is_too_large_is_told_the_limit(tmp_path: Path) -> None:
    too_large = b"MThd" + bytes(MAX_FILE_BYTES)
    with pytest.raises(RequestError, match=r"has 1048580 bytes, the limit is 1048576\n.*leave out tracks") as refusal:
        notes_of_midi(too_large, NOTES)
    assert refusal.value.field == "notes"
    (tmp_path / "a.mid").write_bytes(too_large)
    with pytest.raises(RequestError, match="the limit is 1048576"):
        read_notes(tmp_path / "a.mid", NOTES)


SPEC = NotesSpec(scale=1.0, on=0.12, off=0.06, layers=(NoteLayerSpec(name="bass", channels=(0,), keys=(40,)),))


def test_notes_of_midi_and_of_json(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(midi_file(NOTE))
    notes = read_notes(path, SPEC)
    assert [(note["pitch"], note["seconds"]) for note in notes] == [(40, 0.1)]
    for values in (notes, {"notes": notes}):
        path.write_text(json.dumps(values))
        assert read_notes(path, SPEC) == notes


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"NaN", b"MThd" + b"\xff" * 99])
def test_what_is_neither_is_an_error_of_the_notes(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    with pytest.raises(RequestError) as error:
        read_notes(path, SPEC)
    assert error.value.field == "notes"


def test_what_has_no_end_is_no_file() -> None:
    with pytest.raises(FileError, match="/dev/zero cannot be read: it is a device"):
        read_notes(Path("/dev/zero"), SPEC)
