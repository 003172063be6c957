"""Notes of live sessions as events: every note that begins ends, also where other notes are told later."""

from __future__ import annotations

import pytest

from runtime.live.playback.note_stream import NoteStream
from runtime.live.protocol.server_messages import LayerKeys, LiveNote, TrackedNotes
from runtime.music.score import Note


def told(start: int, end: int, notes: list[LiveNote], held: list[LiveNote] | None = None) -> TrackedNotes:
    return TrackedNotes(start_sample=start, end_sample=end, replaces=False, notes=notes, open=held or [])


def bass(pitch: int, sample: int, samples: int | None) -> LiveNote:
    return ("bass", pitch, 100, sample, samples)


def taken(stream: NoteStream) -> list[tuple[int, int, bool]]:
    found = [(event.sample, event.pitch, event.velocity > 0) for event in stream.events]
    stream.events.clear()
    return found


def test_events_come_as_the_audio_is_taken() -> None:
    stream = NoteStream()
    stream.take(told(0, 100, [bass(36, 10, 30), bass(38, 60, None)]))
    stream.take(told(100, 200, [], [bass(38, 60, 80)]))
    stream.advance(40)
    assert taken(stream) == [(10, 36, True)]
    stream.advance(41)
    assert taken(stream) == [(40, 36, False)]
    stream.advance(200)
    assert taken(stream) == [(60, 38, True), (140, 38, False)]


def test_a_key_that_is_struck_again_ends_before_it_begins() -> None:
    stream = NoteStream()
    stream.take(told(0, 100, [bass(36, 0, 50), bass(36, 50, None)]))
    stream.take(told(100, 200, [bass(36, 100, None)]))
    for position in (50, 60, 100, 130):
        stream.advance(position)
    assert taken(stream) == [(0, 36, True), (50, 36, False), (50, 36, True), (100, 36, False), (100, 36, True)]


def test_what_replaces_counts_from_where_it_begins() -> None:
    stream = NoteStream()
    stream.take(told(0, 100, [bass(36, 10, None)]))
    stream.take(told(100, 200, [bass(40, 150, None)], [bass(36, 10, None)]))
    stream.advance(50)
    stream.take(told(60, 200, [bass(43, 60, 100)]))
    stream.advance(200)
    assert taken(stream) == [(10, 36, True), (60, 36, False), (60, 43, True), (160, 43, False)]


def test_a_note_that_is_known_late_begins_where_it_is_known() -> None:
    stream = NoteStream()
    stream.advance(50)
    stream.take(told(0, 40, [bass(36, 10, None)]))
    stream.take(told(40, 100, [], [bass(36, 10, None)]))
    stream.advance(60)
    assert taken(stream) == [(50, 36, True)]


def test_notes_end_where_nothing_is_told_and_at_the_end() -> None:
    stream = NoteStream()
    stream.take(told(0, 100, [bass(36, 10, None)]))
    stream.take(told(150, 250, [bass(38, 160, None)]))
    stream.advance(200)
    assert taken(stream) == [(10, 36, True), (100, 36, False), (160, 38, True)]
    stream.clear(500)
    assert taken(stream) == [(200, 38, False)]


def test_a_recording_has_the_notes_that_sound_in_it() -> None:
    stream, layers = NoteStream(), [LayerKeys(name="bass", keys=[36], rows=[0], is_percussion=False)]
    stream.take(told(0, 1000, [bass(36, 10, 300), bass(38, 200, 100), bass(36, 600, None)]))
    stream.advance(100)
    stream.record()
    stream.advance(800)
    score = stream.recorded(layers, 1000, 0.04)
    assert score.notes == [Note("bass", 38, 100, 0.1, 0.1), Note("bass", 36, 100, 0.5, pytest.approx(0.2))]
    assert score.seconds == pytest.approx(0.7)
