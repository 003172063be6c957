"""The stored form of a session: pieces by name, versions."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, MODEL, PLANNING, Simulation, new_session
from helpers.simulated_form import FACTS

from runtime.config.option_ranges import NumberRange, OptionRanges
from runtime.errors import RequestError
from runtime.requests.form.state import PlanState
from runtime.sessions.protocol import messages
from runtime.sessions.session.live_session import LiveSession
from runtime.sessions.storage.store import SessionSnapshot


def played(**opened: object) -> Simulation:
    simulation = Simulation(new_session(**opened))
    simulation.run(2.0)
    return simulation


def test_the_meta_is_json_and_survives_it() -> None:
    simulation = played(controls={"variation": 0.4})
    simulation.handle(messages.SetSource(seq=1, id="x", strength=0.5), np.zeros((5, CHANNELS), np.float32))
    simulation.run(0.5)
    snapshot = simulation.session.snapshot(simulation.now_s)
    meta = json.loads(json.dumps(snapshot.meta, allow_nan=False))
    restored = LiveSession.restore(SessionSnapshot(meta, snapshot.pieces), MODEL, 0.0).snapshot(0.0)
    assert restored.meta["timeline"] == meta["timeline"]
    assert restored.meta["generations"] == {**meta["generations"], "is_current": False}
    assert restored.pieces.keys() == snapshot.pieces.keys()


def test_a_piece_keeps_its_content_under_its_name() -> None:
    simulation = played(mode="extend")
    pieces: dict[str, np.ndarray] = {}
    for _ in range(6):
        simulation.run(1.0)
        for name, latents in simulation.session.snapshot(simulation.now_s).pieces.items():
            assert np.array_equal(pieces.setdefault(name, latents.copy()), latents)
    assert len(pieces) == len(simulation.jobs)


def test_another_version_length_or_codec_is_refused() -> None:
    snapshot = played().session.snapshot(2.0)
    for change in ({"version": 99}, {"frames": 1000}, {"signal": [4, 40, 44100]}):
        with pytest.raises(RequestError):
            LiveSession.restore(SessionSnapshot({**snapshot.meta, **change}, snapshot.pieces), MODEL, 0.0)


@pytest.mark.parametrize("kind", [messages.SetTimbre, messages.SetStructure])
def test_a_model_without_the_part_of_a_reference_is_refused(
    kind: type[messages.SetTimbre | messages.SetStructure],
) -> None:
    message, simulation = kind(seq=1, id="x"), played()
    simulation.handle(message, np.zeros((5, CHANNELS), np.float32))
    snapshot = simulation.session.snapshot(2.0)
    model = replace(MODEL, untaken=frozenset({"timbre_strength", "structure_strength"}))
    with pytest.raises(RequestError, match=rf"the bundle has no \[{message.type}\]"):
        LiveSession.restore(snapshot, model, 0.0)


def test_a_session_whose_tempo_the_model_does_not_take_is_refused() -> None:
    model = replace(MODEL, ranges=OptionRanges(bpm=NumberRange(min=60, max=180)))
    played_fast = played(controls={"bpm": 200.0}).session.snapshot(2.0)
    with pytest.raises(RequestError, match=r"controls\.bpm: .*60 to 180"):
        LiveSession.restore(played_fast, model, 0.0)
    planned = played(mode="extend", plan=True).session.snapshot(2.0)
    planned.meta["generations"]["plan"]["values"]["options"]["bpm"] = 200.0
    with pytest.raises(RequestError, match=r"plan\.bpm: .*60 to 180"):
        LiveSession.restore(planned, replace(model, plan=FACTS), 0.0)


def test_a_plan_that_the_model_cannot_go_on_from_is_refused() -> None:
    def refuse(state: PlanState) -> None:
        raise RequestError(f"no plan goes on from {len(state.values)} values")

    snapshot = played(mode="extend", plan=True).session.snapshot(2.0)
    with pytest.raises(RequestError, match="no plan goes on from"):
        LiveSession.restore(snapshot, replace(PLANNING, plan=replace(FACTS, check_state=refuse)), 0.0)
