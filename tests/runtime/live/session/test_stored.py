"""The stored form of a session: pieces by name, versions."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, MODEL, PLANNING, Simulation, playing
from helpers.note_simulation import SILENCE, SPEC
from helpers.simulated_form import FACTS

from runtime.base.errors import RequestError
from runtime.config.deployment import ModelIdentity
from runtime.config.option_ranges import NumberRange, OptionRanges
from runtime.live.protocol import messages
from runtime.live.protocol.actions import LiveModel, NoteFacts
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.store import SessionSnapshot
from runtime.music.sections import SongState

LESS = replace(MODEL, untaken=frozenset({"timbre_strength", "structure_strength"}))


def test_a_piece_keeps_its_content_under_its_name() -> None:
    simulation = playing(mode="extend")
    pieces: dict[str, np.ndarray] = {}
    for _ in range(6):
        simulation.run(1.0)
        for name, latents in simulation.session.snapshot(simulation.now_s).pieces.items():
            assert np.array_equal(pieces.setdefault(name, latents.copy()), latents)
    assert len(pieces) == len(simulation.jobs)


def test_of_a_document_that_does_not_say_a_band_was_chosen_that_is_not_the_whole_loop() -> None:
    snapshot = playing().session.snapshot(2.0)
    frames = snapshot.meta["frames"]
    for band, is_chosen in (([0, frames], False), ([1, frames], True), ([0, frames - 1], True)):
        timeline = [{**each, "band": band, "is_chosen": None} for each in snapshot.meta["timeline"]]
        meta = json.loads(json.dumps({**snapshot.meta, "timeline": timeline}))
        restored = LiveSession.restore(SessionSnapshot(meta, snapshot.pieces), MODEL, 0.0).snapshot(0.0)
        assert {each["is_chosen"] for each in restored.meta["timeline"]} == {is_chosen}


def test_another_version_length_or_codec_is_refused() -> None:
    snapshot = playing().session.snapshot(2.0)
    for change in ({"version": 99}, {"frames": 1000}, {"signal": [4, 40, 44100]}):
        with pytest.raises(RequestError):
            LiveSession.restore(SessionSnapshot({**snapshot.meta, **change}, snapshot.pieces), MODEL, 0.0)


@pytest.mark.parametrize(
    ("opened", "message", "model", "what"),
    [
        ({}, messages.SetTimbre(seq=1, id="x"), LESS, r"the bundle has no \[timbre\]"),
        ({}, messages.SetStructure(seq=1, id="x"), LESS, r"the bundle has no \[structure\]"),
        ({"mode": "extend", "plan": True}, messages.Play(), MODEL, r"no \[planner.plan\]"),
    ],
)
def test_a_model_without_the_part_of_a_reference_or_a_plan_is_refused(
    opened: dict[str, Any], message: messages.ClientMessage, model: LiveModel, what: str
) -> None:
    simulation = playing(**opened)
    simulation.handle(message, np.zeros((5, CHANNELS), np.float32))
    with pytest.raises(RequestError, match=what):
        LiveSession.restore(simulation.session.snapshot(2.0), model, 0.0)


def test_a_session_whose_tempo_the_model_does_not_take_is_refused() -> None:
    model = replace(MODEL, ranges=OptionRanges(bpm=NumberRange(min=60, max=180)))
    played_fast = playing(controls={"bpm": 200.0}).session.snapshot(2.0)
    with pytest.raises(RequestError, match=r"controls\.bpm: .*60 to 180"):
        LiveSession.restore(played_fast, model, 0.0)
    planned = playing(mode="extend", plan=True).session.snapshot(2.0)
    planned.meta["generations"]["plan"]["values"]["options"]["bpm"] = 200.0
    with pytest.raises(RequestError, match=r"plan\.bpm: .*60 to 180"):
        LiveSession.restore(planned, replace(model, plan=FACTS), 0.0)


HERE = ModelIdentity(64 * "a", "fp32")
OTHERS = (ModelIdentity(64 * "b", "fp32"), ModelIdentity(64 * "a", "int8"), ModelIdentity())


def of(identity: ModelIdentity, **changes: Any) -> LiveModel:
    """MODEL as this model."""
    return replace(MODEL, identity=lambda: identity, **changes)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("mode", ["loop", "extend"])
def test_a_session_of_another_model_goes_on_with_a_new_canvas(other: ModelIdentity, mode: str) -> None:
    prompts = [{"text": "a", "weight": 0.25}, {"text": "b", "weight": 1.0}]
    simulation = playing(model=of(other), mode=mode, seed=7, prompts=prompts, controls={"guidance": 4.0})
    simulation.handle(messages.SetControls(seq=5, values={"variation": 0.5}))
    before = simulation.session.snapshot(simulation.now_s)
    restored = LiveSession.restore(before, of(HERE), 0.0)
    after = restored.snapshot(0.0).meta
    assert (after["timeline"], after["generations"]["num_placed"]) == ([], 0)
    for name in ("values", "weights", "blend", "seed"):
        assert after["controls"][name] == before.meta["controls"][name]
    assert after["made_by"] == {"bundle_sha256": 64 * "a", "precision": "fp32"}
    ready = restored.attach("token", 0.0, keep_s=60.0)
    assert (ready.resumed, ready.next_sample, ready.epoch) == (True, 0, before.meta["epoch"] + 1)
    assert "prompts, controls and seed go on with a new one" in ready.notice
    assert restored.attach("token", 0.0, keep_s=60.0).notice == "", "it is said once"
    again = Simulation(restored)
    again.handle(messages.SetControls(seq=6, values={"guidance": 2.0}))
    again.run(2.0)
    assert again.jobs[-1].options.seed == 7 or mode == "extend"
    assert not np.isnan(again.heard[-10:]).any()


def test_what_a_renewed_session_cannot_keep_is_said() -> None:
    simulation = playing(model=of(OTHERS[0]), controls={"bpm": 200.0, "guidance": 4.0})
    simulation.handle(messages.SetSource(seq=1, id="x"), np.zeros((5, CHANNELS), np.float32))
    model = of(HERE, ranges=OptionRanges(bpm=NumberRange(min=60, max=180)), lengths=(16, 32))
    restored = LiveSession.restore(simulation.session.snapshot(simulation.now_s), model, 0.0)
    ready = restored.attach("token", 0.0, keep_s=60.0)
    assert ready.notice.endswith("the source can be sent again; this model does not take bpm")
    assert (ready.canvas.frames, ready.controls.source_id) == (32, None)
    assert ready.controls.values["guidance"] == 4.0


@pytest.mark.parametrize("with_source", [True, False])
def test_that_the_notes_of_a_renewed_session_are_gone_is_said(with_source: bool) -> None:
    facts = NoteFacts(SPEC, SILENCE)
    simulation = playing(model=of(OTHERS[0], notes=facts))
    lost = ["notes"]
    if with_source:
        simulation.handle(messages.SetSource(seq=1, id="x"), np.zeros((5, CHANNELS), np.float32))
        lost.insert(0, "source")
    stored = simulation.session.snapshot(simulation.now_s)
    assert "notes" not in LiveSession.restore(stored, of(HERE), 0.0).attach("token", 0.0, keep_s=60.0).notice
    simulation.handle(messages.PlayNotes(seq=2, items=[messages.NoteItem(pitch=38)], at=1.0, layer="bass"))
    restored = LiveSession.restore(simulation.session.snapshot(simulation.now_s), of(HERE, notes=facts), 0.0)
    notice = restored.attach("token", 0.0, keep_s=60.0).notice
    assert notice.endswith(f"; the {' and the '.join(lost)} can be sent again")


def test_changes_that_a_renewed_session_waits_for_are_made_at_once() -> None:
    simulation = playing(model=of(OTHERS[0]))
    simulation.handle(messages.SetControls(seq=3, values={"guidance": 6.0}, at=60.0))
    restored = LiveSession.restore(simulation.session.snapshot(simulation.now_s), of(HERE), 0.0)
    assert restored.attach("token", 0.0, keep_s=60.0).controls.values["guidance"] == 6.0
    assert restored.next_seq == 4


def test_a_renewed_session_that_plays_by_a_plan_gets_a_new_one() -> None:
    simulation = playing(model=of(OTHERS[0], plan=FACTS), mode="extend", plan=True)
    restored = LiveSession.restore(simulation.session.snapshot(simulation.now_s), of(HERE, plan=FACTS), 0.0)
    assert restored.plan.sections == ()
    without = LiveSession.restore(simulation.session.snapshot(simulation.now_s), of(HERE), 0.0)
    assert without.plan is None


def test_a_plan_that_the_model_cannot_go_on_from_is_refused() -> None:
    def refuse(state: SongState) -> None:
        raise RequestError(f"no plan goes on from {len(state.values)} values")

    snapshot = playing(mode="extend", plan=True).session.snapshot(2.0)
    with pytest.raises(RequestError, match="no plan goes on from"):
        LiveSession.restore(snapshot, replace(PLANNING, plan=replace(FACTS, check_state=refuse)), 0.0)
