"""Layers that are silent in what is heard: when, for how long, and what is told of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_simulation import HOP, MODEL, RATE, Simulation
from helpers.note_simulation import NOTED, SILENCE, SPEC, NoteSimulation, new_session
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.deployment import ModelIdentity
from runtime.live.playback.playhead import REACH_S
from runtime.live.protocol import messages
from runtime.live.protocol.server_messages import TrackedNotes
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.store import SessionSnapshot
from runtime.music.part_moods import NO_MOODS, PartMoods

STEMMED = replace(NOTED, has_stems=True)
BASS, DRUMS = [list(layer.all_channels) for layer in SPEC.layers]


def playing(seconds: float = 3.0, **opened: Any) -> NoteSimulation:
    simulation = NoteSimulation(new_session(model=STEMMED, events=["notes"], **opened))
    simulation.run(seconds)
    return simulation


def mute(simulation: Simulation, seq: int, *layers: str, at: Any = None) -> None:
    simulation.handle(messages.MuteLayers(seq=seq, layers=list(layers), at=at))


def is_silent(heard: NDArray[np.float32], channels: list[int]) -> bool:
    return bool((heard[:, channels] == SILENCE[channels]).all())


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_layer_is_silent_soon_and_sounds_again_and_the_others_do_not_change(mode: str) -> None:
    simulation, other = playing(mode=mode), playing(mode=mode)
    begun = simulation.playhead
    for one in (simulation, other):
        if one is simulation:
            mute(one, 1, "drums")
        one.run(2.0)
    ended = simulation.playhead
    mute(simulation, 2)
    simulation.run(2.0)
    other.run(2.0)
    # At once, though half a second was sent already: as soon as any change can be heard, with the crossfade.
    soon = round((REACH_S + 0.1) * RATE)
    silent, again = slice(begun + soon, ended), slice(ended + soon, None)
    heard, whole = simulation.heard, other.heard
    assert is_silent(heard[silent], DRUMS)
    assert not is_silent(whole[silent], DRUMS)
    np.testing.assert_array_equal(heard[:, BASS], whole[: len(heard), BASS])
    np.testing.assert_array_equal(heard[again], whole[again][: len(heard[again])])
    assert len(simulation.jobs) == len(other.jobs), "nothing is generated for it"
    assert simulation.session.playhead.underruns == 0


def test_notes_tell_what_is_heard() -> None:
    simulation = playing()
    mute(simulation, 1, "drums")
    told = len(simulation.of(TrackedNotes))
    simulation.run(3.0)
    later = simulation.of(TrackedNotes)[told:]
    layers = {note[0] for message in later for note in (*message.notes, *message.open)}
    assert layers == {"bass"}


def test_it_waits_for_its_time_and_outlives_what_is_generated_until_then() -> None:
    simulation = playing(mode="loop", controls={"variation": 0.5})
    mute(simulation, 1, "bass", at=5.0)
    assert next(item.at_sample for item in simulation.messages if getattr(item, "seq", 0) == 1) == 5 * RATE
    simulation.run(4.0)
    heard = simulation.heard
    assert not is_silent(heard[4 * RATE : 5 * RATE - HOP], BASS)
    assert is_silent(heard[5 * RATE + HOP : 6 * RATE], BASS)
    assert not is_silent(heard[5 * RATE :], DRUMS)


def test_the_newest_says_what_is_silent_also_of_one_that_waits() -> None:
    simulation = playing()
    mute(simulation, 1, "bass", at=4.5)
    mute(simulation, 2, "drums")
    simulation.run(3.0)
    heard = simulation.heard[5 * RATE : 6 * RATE - HOP]
    assert is_silent(heard, DRUMS)
    assert not is_silent(heard, BASS)


def test_it_holds_from_the_first_sample_and_through_seek_band_and_another_tempo() -> None:
    simulation = playing(1.0, muted=["drums"], controls={"bpm": 120})
    for seq, change in enumerate(
        (
            messages.Seek(to_s=0.4),
            messages.SetBand(seq=2, start_s=0.2, end_s=0.8),
            messages.SetBand(seq=3, start_s=None, end_s=None),
            messages.SetControls(seq=4, values={"bpm": 150}),
            messages.SetControls(seq=5, values={"seed": 9}),
        )
    ):
        simulation.handle(change)
        simulation.run(1.0)
        assert is_silent(simulation.heard, DRUMS), (seq, change)
    assert not is_silent(simulation.heard, BASS)


def test_clients_are_told() -> None:
    session = new_session(model=STEMMED, muted=["drums"])
    assert session.attach("token", 0.0, keep_s=60.0).muted == ["drums"]
    simulation = NoteSimulation(session)
    simulation.run(1.0)
    mute(simulation, 1, "drums", "bass")
    assert session.values()["muted"] == ["bass", "drums"]
    mute(simulation, 2)
    assert session.values()["muted"] == []


@pytest.mark.parametrize("seconds", [0.0, 2.0])
def test_it_is_stored(seconds: float) -> None:
    simulation = playing(seconds, muted=["bass"])
    if seconds:
        mute(simulation, 1, "drums", at=2.9)
    snapshot = simulation.session.snapshot(simulation.now_s)
    meta = json.loads(json.dumps(snapshot.meta))
    session = LiveSession.restore(SessionSnapshot(meta, snapshot.pieces), STEMMED, 0.0)
    muted = ["drums"] if seconds else ["bass"]
    assert session.attach("token", 0.0, keep_s=60.0).muted == muted
    restored = session.snapshot(0.0).meta["timeline"]
    assert [item["muted"] for item in restored] == ([["bass"], ["drums"]] if seconds else [])
    del meta["muted"]
    for item in meta["timeline"]:
        del item["muted"]
    older = LiveSession.restore(SessionSnapshot(meta, snapshot.pieces), STEMMED, 0.0)
    assert older.attach("token", 0.0, keep_s=60.0).muted == []


def test_another_model_goes_on_without_the_layers_that_it_has() -> None:
    simulation = playing(muted=["bass", "drums"])
    snapshot = simulation.session.snapshot(simulation.now_s)
    layers = tuple(layer for layer in SPEC.layers if layer.name == "drums")
    spec = SPEC.model_copy(update={"layers": layers})
    other = replace(
        STEMMED, notes=replace(STEMMED.notes, spec=spec), identity=lambda: ModelIdentity("a" * 64, "float32")
    )
    ready = LiveSession.restore(snapshot, other, 0.0).attach("token", 0.0, keep_s=60.0)
    assert ready.muted == ["drums"]


@pytest.mark.parametrize(
    ("model", "layers", "what", "fix"),
    [
        (STEMMED, ["drum"], "there is no layer 'drum', expected some of bass, drums", "drums"),
        (NOTED, ["drums"], "this model cannot tell its layers apart", "leave it out"),
        (MODEL, ["drums"], "this model cannot tell its layers apart", "leave it out"),
    ],
)
def test_what_cannot_be_silent_is_refused_and_nothing_changes(
    model: Any, layers: list[str], what: str, fix: str
) -> None:
    session = new_session(model=model)
    with pytest.raises(RequestError, match=what) as refused:
        session.handle(messages.MuteLayers(seq=1, layers=layers), 0.0)
    assert refused.value.field == "layers"
    assert fix in refused.value.fix
    assert session.next_seq == 1
    with pytest.raises(RequestError, match=what) as refused:
        new_session(model=model, muted=layers)
    assert refused.value.field == "muted"
    session.handle(messages.MuteLayers(seq=1, layers=[]), 0.0)


def moody(level_db: float, mode: str, **changes: Any) -> NoteSimulation:
    moods = PartMoods({"drums": level_db}) if level_db else NO_MOODS
    model = replace(STEMMED, moods=lambda options, seed: moods, **changes)
    simulation = NoteSimulation(new_session(model=model, mode=mode))
    simulation.run(3.0)
    return simulation


@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_layer_has_the_level_that_the_prompts_say_and_it_is_stored(mode: str) -> None:
    loud, plain = moody(6.0, mode), moody(0.0, mode)
    heard, other = loud.heard, plain.heard
    gain = 10 ** (6.0 / 20)
    np.testing.assert_allclose((heard - SILENCE)[:, DRUMS], (other - SILENCE)[:, DRUMS] * gain, atol=1e-4)
    np.testing.assert_array_equal(heard[:, BASS], other[:, BASS])
    snapshot = loud.session.snapshot(loud.now_s)
    meta = json.loads(json.dumps(snapshot.meta))
    restored = LiveSession.restore(SessionSnapshot(meta, snapshot.pieces), loud.session.model, 0.0)
    stored = restored.snapshot(0.0).meta["timeline"]
    assert [item["levels_db"] for item in stored] == [{"drums": 6.0}] * len(meta["timeline"])


def test_a_sparse_layer_has_fewer_notes() -> None:
    thin = NoteSimulation(new_session(model=replace(STEMMED, moods=lambda *_: PartMoods(sparse=frozenset({"drums"})))))
    thin.run(3.0)
    plain = moody(0.0, "loop")

    def rises(heard: NDArray[np.float32]) -> int:
        return int((np.diff(heard[:, DRUMS], axis=0) > 0.2).sum())

    assert 0 < rises(thin.heard) < rises(plain.heard) / 1.5
    np.testing.assert_array_equal(thin.heard[:, BASS], plain.heard[:, BASS])
