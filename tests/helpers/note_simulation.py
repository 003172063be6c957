"""The simulated session of live_simulation with a model that has notes: its latents are levels of keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from helpers.live_simulation import CHANNELS, HOP, MODEL, PLANNING, Flight, Simulation, new_session
from numpy.typing import NDArray

from runtime.config.notes import EnvelopeSpec, InstrumentSpec, NoteLayerSpec, NotesSpec
from runtime.live.playback.note_stream import NoteEvent, NoteStream
from runtime.live.protocol.actions import Action, NoteFacts
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import TrackedNotes
from runtime.music.tracker import FrameNote, NoteTracker

SPEC = NotesSpec(
    scale=2.0,
    on=0.12,
    off=0.06,
    layers=(
        NoteLayerSpec(name="bass", channels=(0, 1, 2), keys=(36, 38, 40)),
        NoteLayerSpec(name="drums", channels=(3, 4), keys=(36, 38), is_percussion=True),
    ),
)
SILENCE = np.full(CHANNELS, 0.25, np.float32)
FACTS = NoteFacts(SPEC, SILENCE)
NOTED = replace(MODEL, margin_frames=6, notes=FACTS)
# The same, whose bass is plucked.
PLUCKED = EnvelopeSpec(attack=(1.0, 0.8), decay=0.92, release=(0.35,))
_BASS = SPEC.layers[0].model_copy(
    update={"instruments": (InstrumentSpec(name="upright bass", levels=(), program=32, envelope=PLUCKED),)}
)
SHAPED = replace(NOTED, notes=NoteFacts(SPEC.model_copy(update={"layers": (_BASS, SPEC.layers[1])}), SILENCE))
NOTED_PLAN = replace(PLANNING, margin_frames=6, notes=FACTS)


class NoteSimulation(Simulation):
    """Generations are random notes of all keys but 38 and 40 of the bass; what is heard is tracked again as a whole.

    A generation with an overlay has it in its latents, as a decoder that follows its hints exactly.
    """

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, AudioChunk) and self.of(TrackedNotes):
            assert len(self.of(TrackedNotes)) == len(self.chunks) + 1, "every chunk has its notes before it"
        super()._carry_out(action)

    def _latents(self, flight: Flight) -> NDArray[np.float32]:
        segment, rng = flight.job.segment, np.random.default_rng([flight.number, 7])
        levels = np.zeros((segment.frames, CHANNELS), np.float32)
        for channel in (0, 3, 4):
            frame = int(rng.integers(0, 6))
            while frame < segment.frames:
                length = int(rng.integers(3, 12))
                curve = rng.uniform(0.3, 0.9) * 0.95 ** np.arange(length)
                levels[frame : frame + length, channel] = curve[: segment.frames - frame]
                frame += length + int(rng.integers(0, 5))
        latents = levels * np.float32(SPEC.scale) + SILENCE
        if segment.keep_frames:
            assert flight.job.tail is not None
            latents[: segment.keep_frames] = flight.job.tail
        return latents

    def _note_place(self, latents: NDArray[np.float32]) -> None:
        """Its latents have no frames in them."""

    @property
    def offline(self) -> list[FrameNote]:
        """The notes of what was heard, tracked as a whole."""
        tracker, heard = NoteTracker(SPEC, SILENCE), self.heard[::HOP]
        return sorted([*tracker.track(heard), *tracker.sounding()], key=lambda note: (note.start_frame, *note))

    def events(self) -> list[NoteEvent]:
        """What a client makes of the messages when all of them are there, up to its playhead."""
        stream = NoteStream()
        for message in self.messages:
            if isinstance(message, TrackedNotes):
                stream.take(message)
        assert self.playhead is not None
        stream.advance(self.playhead)
        stream.clear(self.playhead)
        return list(stream.events)


def noted(seconds: float = 3.0, **opened: Any) -> NoteSimulation:
    """A session that tells its notes and has played for some time."""
    model = NOTED_PLAN if opened.get("plan") else NOTED
    simulation = NoteSimulation(new_session(model=model, events=["notes"], **opened))
    simulation.run(seconds)
    return simulation


def paired(events: list[NoteEvent]) -> list[FrameNote]:
    """Notes of events, in frames; every note that begins has to end, and only those."""
    begun: dict[tuple[str, int], NoteEvent] = {}
    found = []
    for event in events:
        key = (event.layer, event.pitch)
        if event.velocity:
            assert key not in begun, event
            begun[key] = event
        else:
            first = begun.pop(key)
            start, end = first.sample // HOP, -(-event.sample // HOP)
            found.append(FrameNote(*key, first.velocity, start, end - start))
    assert not begun
    return sorted(found, key=lambda note: (note.start_frame, *note))
