"""Events of MIDI files of unknown origin, beside what mido reads."""

from __future__ import annotations

import io
import time

import mido
import pytest
from helpers.midi_files import END, NOTE, chunk, header, midi_file, midi_files, quantity
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import RequestError
from runtime.base.midi_events import END_OF_TRACK, META, Event, read_midi


def events(data: bytes, number: int = 0) -> list[Event]:
    return list(read_midi(data).events(number))


MESSAGES = st.one_of(
    st.builds(
        mido.Message, st.sampled_from(["note_on", "note_off"]), note=st.integers(0, 127), time=st.integers(0, 2**28 - 1)
    ),
    st.builds(mido.Message, st.just("program_change"), program=st.integers(0, 127)),
    st.builds(mido.Message, st.just("pitchwheel"), pitch=st.integers(-8192, 8191)),
    st.builds(mido.Message, st.just("songpos"), pos=st.integers(0, 16383)),
    st.builds(mido.Message, st.just("sysex"), data=st.lists(st.integers(0, 127), max_size=300)),
    st.builds(mido.MetaMessage, st.just("set_tempo"), tempo=st.integers(0, 2**24 - 1), time=st.integers(0, 1000)),
    st.builds(mido.MetaMessage, st.just("text"), text=st.text("abc", max_size=300)),
)


@given(st.lists(MESSAGES, max_size=12))
def test_events_are_those_that_another_library_writes(messages: list[mido.Message]) -> None:
    file, buffer = mido.MidiFile(), io.BytesIO()
    file.tracks.append(mido.MidiTrack([*messages, mido.MetaMessage("end_of_track")]))
    file.save(file=buffer)
    found, tick = events(buffer.getvalue()), 0
    assert len(found) == len(messages) + 1
    for message, (at, status, data) in zip(messages, found, strict=False):
        tick += message.time
        assert (at, status) == (tick, message.bytes()[0])
        if status == META:
            assert data == bytes(message.bytes()[1:2]) + bytes(message.bytes())[2 + len(quantity(len(data) - 1)) :]
        else:
            assert data == bytes(message.bytes()[1:])


def test_running_status_goes_on_behind_events_that_are_none_of_a_channel() -> None:
    track = NOTE + bytes((1, 0xFF, 0x01, 1, 65)) + bytes((1, 41, 70)) + bytes((1, 0xF8)) + bytes((1, 42, 60))
    assert [event for event in events(midi_file(track)) if event[1] == 0x90] == [
        (0, 0x90, bytes((40, 80))),
        (96, 0x90, bytes((40, 0))),
        (98, 0x90, bytes((41, 70))),
        (100, 0x90, bytes((42, 60))),
    ]


def test_nothing_behind_the_end_of_a_track_is_read() -> None:
    assert [data[0] for _, status, data in events(midi_file(END + bytes(20))) if status == META] == [END_OF_TRACK]


def test_chunks_that_are_no_tracks_are_left_out() -> None:
    data = header(1) + chunk(b"XFIH", b"\xff" * 9) + chunk(b"MTrk", NOTE)
    assert [data for _, _, data in events(data)] == [bytes((40, 80)), bytes((40, 0))]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", r"it has no header \(MThd\)"),
        (b"RIFF" + bytes(8), r"it has no header \(MThd\)"),
        (b"MThd", "it ends within its header"),
        (chunk(b"MThd", bytes(4)), "it ends within its header"),
        (header(2), r"it has no tracks \(MTrk\)"),
        (midi_file(b"\xff" * 300_000), r"is too large \(byte 0 of its track\)"),
        (midi_file(b"\0\xff\x01" + b"\x81" * 5), "a time or a length is too large"),
        (midi_file(b"\0\xff\x01\xff\xff\xff\x7f"), "track 1 ends within an event"),
        (header(1) + chunk(b"MTrk", NOTE[:-1]), "track 1 ends within an event"),
        (header(1) + chunk(b"MTrk", b"\0"), "track 1 ends within an event"),
        (header(1) + chunk(b"MTrk", b"\0\xff"), "track 1 ends within an event"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_cause(data: bytes, cause: str) -> None:
    with pytest.raises(RequestError, match=cause) as error:
        events(data)
    assert error.value.field == "notes"


@given(midi_files)
def test_any_bytes_are_events_or_an_error_with_a_cause(data: bytes) -> None:
    found, causes = [], []
    try:
        file = read_midi(data)
        found = [event for number in range(len(file.tracks)) for event in file.events(number)]
    except RequestError as error:
        causes.append(error.what)
    assert [cause for cause in causes if not cause.partition(": ")[2]] == []
    assert len(found) * 2 <= len(data)


SHAPES = {
    "a long time": lambda n: midi_file(b"\xff" * n),
    "a long length": lambda n: midi_file(b"\0\xff\x01" + b"\xff" * n),
    "notes": lambda n: midi_file(NOTE * (n // 7)),
    "clocks": lambda n: midi_file(b"\0\xf8" * (n // 2)),
    "one text": lambda n: midi_file(b"\0\xff\x01" + quantity(n) + bytes(n)),
    "tracks": lambda n: midi_file(*[b""] * min(n // 12, 0xFFFF)),
    "empty chunks": lambda n: header(1) + chunk(b"XFIH", b"") * (n // 8),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_work_is_linear_in_bytes(shape: object) -> None:
    """Another load on the machine does not count; the first comparison that is quick enough does."""
    assert callable(shape)
    for _ in range(5):
        short_s, long_s = (_cpu_s(shape(n)) for n in (20_000, 80_000))
        if long_s < 10 * short_s + 1e-3:
            return
    pytest.fail(f"{short_s:.4f} s, and {long_s:.4f} s for 4 times as many bytes")


def _cpu_s(data: bytes) -> float:
    started_s = time.thread_time()
    try:
        file = read_midi(data)
        for number in range(len(file.tracks)):
            for _ in file.events(number):
                pass
    except RequestError:
        pass
    return time.thread_time() - started_s
