"""Notes that are told with the audio: those of all the latents that were played; what a client makes of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, HOP, MODEL, RATE, new_session
from helpers.note_simulation import NOTED, SILENCE, SPEC, NoteSimulation, noted, paired

from runtime.base.errors import NoNotesError
from runtime.live.playback.note_stream import NoteStream
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.playback.told_notes import ToldNotes
from runtime.live.protocol import messages
from runtime.live.protocol.actions import DecodeWindow
from runtime.live.protocol.server_messages import LayerKeys, LiveNote, TrackedNotes
from runtime.live.session.live_session import LiveSession
from runtime.music.score import Note


def share(simulation: NoteSimulation) -> float:
    """How many of the notes that are told and of those that were played are the same, but for their velocity."""
    ones, others = (
        Counter((note.layer, note.key, note.start_frame, note.num_frames) for note in notes)
        for notes in (paired(simulation.events()), simulation.offline)
    )
    return 2 * (ones & others).total() / (ones.total() + others.total())


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_they_are_those_of_the_latents_that_were_played(mode: str) -> None:
    simulation = noted(8.0, mode=mode)
    whole = simulation.offline
    last = len(simulation.heard) // HOP
    assert len(whole) > 50
    # The client has begun its last frame; what sounds there is cut there.
    expected = [note._replace(num_frames=min(note.num_frames, last + 1 - note.start_frame)) for note in whole]
    found = [note for note in paired(simulation.events()) if note.start_frame < last]
    assert [note for note in found if note.end_frame < last] == [note for note in expected if note.end_frame < last]
    assert {note[:4] for note in found} >= {note[:4] for note in expected if note.start_frame < last - 1}


def test_every_chunk_has_them_first_and_replaced_audio_replaces_them() -> None:
    simulation = noted(2.0)
    for seq in range(1, 6):
        simulation.set(seq, seed=seq)
        simulation.run(1.0)
    of_audio = [(chunk.start_sample, chunk.end_sample, chunk.is_replacing) for chunk, _ in simulation.chunks]
    assert [(each.start_sample, each.end_sample, each.replaces) for each in simulation.of(TrackedNotes)] == of_audio
    assert sum(each.replaces for each in simulation.of(TrackedNotes)) >= 4
    # Of a note that the change cuts, other frames decide than those that were told of before.
    assert share(simulation) > 0.93


def test_what_replaces_audio_late_does_not_strike_again_what_sounds_behind_it() -> None:
    levels = np.full((80, CHANNELS), SILENCE[0], np.float32)
    levels[30:70, 0] += SPEC.scale * 0.9 * 0.97 ** np.arange(40, dtype=np.float32)
    played = ToldNotes(SPEC, SILENCE, HOP, Playhead(SessionClock(0.0), RATE))
    stream = NoteStream()

    def tell(first: int, last: int, *, is_replacing: bool = False) -> None:
        window = DecodeWindow(
            index=0,
            epoch=1,
            values=levels[first : last + 6],
            start_frame=first,
            trim_begin=0,
            trim_end=(last - first) * HOP,
            start_sample=first * HOP,
            first_seq=0,
            full_seq=0,
            is_replacing=is_replacing,
            is_after_underrun=False,
            is_first=False,
        )
        stream.take(played.told(window, first * HOP, last * HOP))

    tell(0, 40)
    tell(40, 48)
    tell(20, 40, is_replacing=True)
    tell(48, 74)
    stream.advance(74 * HOP)
    assert [(note.start_frame, note.end_frame) for note in paired(list(stream.events))] == [(30, 70)]


def test_notes_end_at_a_seek_and_where_audio_is_missing() -> None:
    simulation = noted(2.0)
    simulation.handle(messages.Seek(to_s=1.0))
    simulation.run(1.0)
    assert share(simulation) > 0.9
    simulation.handle(messages.Pause())
    simulation.run(1.0)
    simulation.handle(messages.Play())
    simulation.run(1.0)
    assert share(simulation) > 0.9
    paired(simulation.events())


def test_a_new_connection_is_told_anew_what_sounds() -> None:
    simulation = noted(2.0)
    before = len(simulation.of(TrackedNotes))
    simulation.connect()
    simulation.run(1.0)
    first = simulation.of(TrackedNotes)[before]
    assert first.open == []
    assert {note[3] for note in first.notes} >= {first.start_sample + -first.start_sample % HOP}


def test_a_session_that_is_restored_tells_notes_on() -> None:
    simulation = noted(2.0, mode="extend")
    before = len(simulation.of(TrackedNotes))
    simulation.restart()
    simulation.run(2.0)
    assert len(simulation.of(TrackedNotes)) > before + 3


def test_they_are_told_to_those_alone_who_ask() -> None:
    simulation = NoteSimulation(new_session(model=NOTED))
    simulation.run(1.0)
    assert simulation.of(TrackedNotes) == []


def test_a_model_without_notes_refuses_them() -> None:
    with pytest.raises(NoNotesError, match="events") as error:
        LiveSession("s", MODEL, messages.Open(events=["notes"], seed=1), 0.0)
    assert error.value.code == "no_notes"


def test_a_client_that_opens_is_told_the_layers() -> None:
    ready = LiveSession("s", NOTED, messages.Open(seed=1), 0.0).attach("t", 0.0, keep_s=1.0)
    assert [(layer.name, layer.keys, layer.is_percussion) for layer in ready.layers] == [
        ("bass", [36, 38, 40], False),
        ("drums", [36, 38], True),
    ]
    assert new_session(model=MODEL).attach("t", 0.0, keep_s=1.0).layers == []


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
