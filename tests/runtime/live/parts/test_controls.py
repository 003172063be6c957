"""The controls' model, schema and checks; their state over time; the references that a client names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers.live_simulation import CHANNELS, MODEL, RATE, at

from runtime.base.errors import RequestError
from runtime.engines.adapters import Adapter, AdapterCatalog
from runtime.live.parts.control_state import ControlState
from runtime.live.parts.controls import (
    CONTROL_NAMES,
    EXCLUDED,
    STEP_CONTROLS,
    check_controls,
    controls_schema,
    prompt_weights,
)
from runtime.live.parts.references import References
from runtime.live.playback.playhead import Playhead, SessionClock
from runtime.live.protocol.messages import LivePrompt, ReferenceKind
from runtime.requests.option_types import MAX_ADAPTERS
from runtime.requests.options import GenerationOptions, StepOptions
from runtime.requests.segments import Segment


def test_every_option_of_a_generation_is_a_control_or_excluded() -> None:
    live_only = {"variation", "loop_bars", "loop_mode"}
    assert set(GenerationOptions.model_fields) | live_only == set(CONTROL_NAMES) | set(EXCLUDED)


def test_the_schema_marks_the_kind_and_has_the_models_defaults() -> None:
    properties = controls_schema(MODEL)["properties"]
    kinds = {name: schema["x-kind"] for name, schema in properties.items()}
    assert {name for name, kind in kinds.items() if kind == "step"} == set(StepOptions.model_fields)
    assert set(kinds.values()) == {"step", "generation"}
    assert (properties["guidance"]["default"], properties["momentum"]["default"]) == (3.0, -0.75)
    assert properties["denoise"]["x-needs-source"] is True


@pytest.mark.parametrize(
    ("patch", "field", "text"),
    [
        ({"guidance": 99.0}, "values.guidance", "from 0 to 50"),
        ({"guidnce": None}, "values.guidnce", "did you mean guidance"),
        ({"solver": "heun"}, "values.solver", "ode"),
        ({"channel_gain": [1.0] * (CHANNELS + 1)}, "values.channel_gain", "channels"),
        ({"prompt": "x"}, "values.prompt", "leave prompt out"),
    ],
)
def test_a_wrong_patch_names_the_member(patch: dict[str, object], field: str, text: str) -> None:
    with pytest.raises(RequestError, match=text) as caught:
        check_controls(patch, MODEL)
    assert caught.value.field == field


def test_what_the_bundle_makes_nothing_of_is_no_control() -> None:
    model = replace(MODEL, untaken=frozenset({"lyrics", "bpm"}))
    assert {"lyrics", "bpm"} <= controls_schema(MODEL)["properties"].keys()
    assert not {"lyrics", "bpm"} & controls_schema(model)["properties"].keys()
    assert check_controls({"bpm": 90}, MODEL) == {"bpm": 90}
    with pytest.raises(RequestError, match="the bundle makes nothing of it"):
        check_controls({"bpm": 90}, model)


def test_equal_prompts_become_one() -> None:
    assert prompt_weights([LivePrompt(text="a"), LivePrompt(text="a", weight=2.0)], MODEL, "items") == {"a": 3.0}


def test_null_stays_null_in_a_checked_patch() -> None:
    assert check_controls({"guidance": None, "shift": 2}, MODEL) == {"guidance": None, "shift": 2.0}


FACTORS = np.zeros((4, 8), np.float32)
CATALOG = AdapterCatalog({name: Adapter(name, FACTORS, FACTORS) for name in ("soft", "hard")}, 8)


def state(**controls: object) -> ControlState:
    """Controls of MODEL with seed 5 and no prompts."""
    return ControlState(MODEL, SessionClock(0.0), controls, [], "velocity", 5)


def test_null_goes_back_to_the_default() -> None:
    controls = state(guidance=5.0, steps=4)
    controls.change({"guidance": None, "steps": None}, 1)
    assert controls.value("guidance") == 3.0
    assert controls.options(has_source=False) == state().options(has_source=False)


def test_options_name_the_live_steps_which_may_not_be_those_of_a_generation_over_http() -> None:
    assert state().options(has_source=False).steps == MODEL.defaults["steps"]
    assert state(steps=4).options(has_source=False).steps == 4


def test_options_leave_out_what_needs_a_source_where_there_is_none() -> None:
    controls = state(denoise=0.5, x0_strength=0.2)
    assert controls.options(has_source=False).denoise is None
    with_source = controls.options(has_source=True)
    assert (with_source.denoise, with_source.x0_strength) == (0.5, 0.2)


def test_a_value_equal_to_the_default_changes_no_options() -> None:
    assert state(guidance=3.0).options(has_source=False) == state().options(has_source=False)


def test_strengths_of_adapters_move_linearly_also_after_a_restart() -> None:
    model = replace(MODEL, catalog=lambda: CATALOG)
    controls = ControlState(model, SessionClock(0.0), {"adapters": [{"id": "soft"}]}, [], "velocity", 5)
    at(controls, 10.0).change(check_controls({"adapters": [{"id": "hard", "strength": 2.0}]}, model), 1, ramp_s=2.0)
    for found in (
        controls,
        ControlState.restore(at(controls, 10.0).stored(), model, SessionClock(10.0)),
    ):
        values = [{item.id: item.strength for item in at(found, at_s).value("adapters")} for at_s in (10.5, 11.0, 12.0)]
        assert values == [{"soft": 0.75, "hard": 0.5}, {"soft": 0.5, "hard": 1.0}, {"hard": 2.0}]
        used = at(found, 11.0).options(has_source=False).adapters
        assert used is not None
        assert [(use.id, use.strength) for use in used] == [("soft", 0.5), ("hard", 1.0)]
    with pytest.raises(RequestError, match="no adapter 'sofd'"):
        check_controls({"adapters": [{"id": "sofd"}]}, model)


def test_adapters_that_fade_beside_new_ones_may_be_more_than_a_request_takes() -> None:
    catalog = AdapterCatalog({str(n): Adapter(str(n), FACTORS, FACTORS) for n in range(2 * MAX_ADAPTERS)}, 64)
    model, lists = replace(MODEL, catalog=lambda: catalog), (range(MAX_ADAPTERS), range(MAX_ADAPTERS, 2 * MAX_ADAPTERS))
    first, second = ({"adapters": [{"id": str(n)} for n in numbers]} for numbers in lists)
    controls = ControlState(model, SessionClock(0.0), first, [], "velocity", 5)
    controls.change(check_controls(second, model), 1, ramp_s=2.0)
    assert len(at(controls, 1.0).options(has_source=False).adapters or ()) == 2 * MAX_ADAPTERS


def test_a_ramp_moves_linearly_and_its_seq_is_complete_at_the_end() -> None:
    controls = state()
    at(controls, 10.0).change({"guidance": 5.0, "steps": 16, "solver": "sde"}, 1, ramp_s=2.0)
    assert [at(controls, at_s).value("guidance") for at_s in (10.0, 11.0, 12.0, 13.0)] == [3.0, 4.0, 5.0, 5.0]
    assert (at(controls, 10.0).value("steps"), at(controls, 10.0).value("solver")) == (16, "sde")
    assert (at(controls, 11.0).full_seq, at(controls, 12.0).full_seq) == (0, 1)
    assert at(controls, 11.0).moving
    at(controls, 11.0).change({"guidance": 1.0}, 2)
    assert (at(controls, 11.0).value("guidance"), at(controls, 11.0).full_seq) == (1.0, 2)


def test_ramps_that_have_ended_are_not_stored() -> None:
    controls = state()
    controls.change({"guidance": 5.0}, 1, ramp_s=1.0)
    controls.change_prompts({"b": 1.0}, None, 2, ramp_s=1.0)
    assert at(controls, 0.9).stored().ramps
    assert at(controls, 0.9).stored().weight_ramps
    assert not at(controls, 1.0).stored().ramps
    assert not at(controls, 1.0).stored().weight_ramps


def test_a_scheduled_change_begins_in_time_and_holds_back_the_full_seq() -> None:
    controls = state()
    playhead = Playhead(controls.clock, RATE)
    controls.schedule(2000, {"guidance": 5.0}, 1)
    controls.change({"shift": 2.0}, 2)
    assert (controls.full_seq, controls.seq, controls.accepted_seq) == (0, 2, 2)
    assert controls.begin_scheduled(2000, playhead) is None
    assert controls.value("guidance") == 3.0
    assert controls.begin_scheduled(2001, playhead) == 1
    assert (controls.value("guidance"), controls.full_seq, controls.from_sample) == (5.0, 2, 2000)


def test_prompts_fade_by_weight_and_at_most_eight_are_used() -> None:
    controls = ControlState(MODEL, SessionClock(0.0), {}, [LivePrompt(text=str(i)) for i in range(8)], "velocity", 0)
    controls.change_prompts({f"new {i}": 2.0 for i in range(8)}, "tokens", 1, ramp_s=1.0)
    halfway = at(controls, 0.5).options(has_source=False)
    assert len(halfway.prompt) == 8
    assert halfway.blend == "tokens"
    end = at(controls, 1.0).options(has_source=False).prompt
    assert {item.text: item.weight for item in end if not isinstance(item, str)} == {f"new {i}": 2.0 for i in range(8)}
    controls.change_prompts({"b": 1.0}, None, 2, ramp_s=0.0)
    assert controls.blend == "tokens"


def test_prompts_without_weight_are_unconditional() -> None:
    controls = ControlState(MODEL, SessionClock(0.0), {}, [LivePrompt(text="a", weight=0.0)], "velocity", 0)
    assert controls.options(has_source=False).prompt == ""


def test_a_stored_state_goes_on_like_the_original() -> None:
    controls = ControlState(
        MODEL, SessionClock(0.0), {"dcw": {"mode": "low", "low": 0.1}}, [LivePrompt(text="a")], "velocity", 3
    )
    controls.change({"guidance": 5.0}, 1, ramp_s=2.0)
    controls.schedule(5000, {"shift": 2.0}, 2)
    controls.client_seqs.add(2)
    restored = ControlState.restore(at(controls, 1.0).stored(), MODEL, SessionClock(101.0))
    assert restored.client_seqs.number(2) == controls.client_seqs.number(2) == 3
    older = replace(at(controls, 1.0).stored(), client_seqs=(0, []))  # as of a document without them
    assert ControlState.restore(older, MODEL, SessionClock(101.0)).client_seqs.number(3) == 3
    for later_s in (0.0, 0.5, 3.0):
        assert at(restored, 101.0 + later_s).step_values() == at(controls, 1.0 + later_s).step_values()
        assert at(restored, 101.0 + later_s).options(has_source=True) == at(controls, 1.0 + later_s).options(
            has_source=True
        )
    assert at(restored, 110.0).full_seq == at(controls, 10.0).full_seq == 1
    assert restored.published == controls.published
    assert set(STEP_CONTROLS) <= set(restored.published)


LATENTS = np.arange(10.0, dtype=np.float32)[:, None] + np.zeros((10, CHANNELS), np.float32)


@pytest.mark.parametrize(
    ("kind", "controls"),
    [("source", {"denoise": 0.75}), ("timbre", {"timbre_strength": 0.25}), ("structure", {"structure_strength": 0.25})],
)
def test_a_strength_is_a_control(kind: ReferenceKind, controls: dict[str, float]) -> None:
    references = References(MODEL)
    assert references.take(kind, "x", None, LATENTS, 1) == {}
    assert references.take(kind, "x", 0.25, LATENTS, 2) == controls
    assert references.take(kind, None, None, None, 3) == {}
    assert (getattr(references, kind), references.version) == (None, 3)


def test_a_source_of_strength_0_is_none_a_timbre_of_strength_0_is_one() -> None:
    references = References(MODEL)
    assert references.take("source", "x", 0.0, LATENTS, 1) == {"denoise": 1.0}
    references.take("timbre", "x", 0.0, LATENTS, 2)
    assert references.source is None
    assert references.timbre is not None


def test_a_segment_takes_its_frames_of_source_and_structure_and_all_of_a_timbre() -> None:
    references = References(MODEL)
    nothing = {"source": None, "hints": None, "timbre": None, "sections": (), "phrases": (), "exact": ()}
    assert references.inputs(Segment(6, 8)) == nothing
    for seq, kind in enumerate(("source", "timbre", "structure")):
        references.take(kind, "x", None, LATENTS, seq)
    inputs = references.inputs(Segment(6, 8))
    frames = [6, 7, 8, 9, 0, 1, 2, 3]
    assert [inputs[name][:, 0].tolist() for name in ("source", "hints")] == [frames, frames]
    assert inputs["timbre"] is LATENTS


def test_what_is_refused_changes_nothing() -> None:
    references = References(replace(MODEL, untaken=frozenset({"timbre_strength"})))
    with pytest.raises(RequestError, match=r"the bundle has no \[timbre\]"):
        references.take("timbre", "x", 1.0, LATENTS, 1)
    with pytest.raises(RequestError, match="there is no source 'x'"):
        references.take("structure", "x", 1.0, None, 1)
    assert references.version == 0
