"""Notes that are told with the audio are those of all the latents that were played, tracked as a whole."""

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
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import TrackedNotes
from runtime.live.session.live_session import LiveSession


def told(simulation: NoteSimulation) -> list[TrackedNotes]:
    return [message for message in simulation.messages if isinstance(message, TrackedNotes)]


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
    assert [(each.start_sample, each.end_sample, each.replaces) for each in told(simulation)] == of_audio
    assert sum(each.replaces for each in told(simulation)) >= 4
    # Of a note that the change cuts, other frames decide than those that were told of before.
    assert share(simulation) > 0.93
    actions = [type(action) for action in _sent()]
    assert actions.index(TrackedNotes) < actions.index(AudioChunk)


def _sent() -> list[object]:
    simulation = noted(0.0)
    sent: list[object] = []
    carry_out = simulation._carry_out

    def note(action: object) -> None:
        sent.append(action)
        carry_out(action)  # type: ignore[arg-type]

    simulation._carry_out = note  # type: ignore[method-assign,assignment]
    simulation.run(1.0)
    return sent


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
    before = len(told(simulation))
    simulation.connect()
    simulation.run(1.0)
    first = told(simulation)[before]
    assert first.open == []
    assert {note[3] for note in first.notes} >= {first.start_sample + -first.start_sample % HOP}


def test_a_session_that_is_restored_tells_notes_on() -> None:
    simulation = noted(2.0, mode="extend")
    before = len(told(simulation))
    simulation.restart()
    simulation.run(2.0)
    assert len(told(simulation)) > before + 3


def test_they_are_told_to_those_alone_who_ask() -> None:
    simulation = NoteSimulation(new_session(model=NOTED))
    simulation.run(1.0)
    assert told(simulation) == []


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
