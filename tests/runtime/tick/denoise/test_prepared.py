"""What is prepared for a generation: its noise, its schedule, its features, its curves at T, its conditions by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.live_slots import CHANNELS, FRAMES, condition, guided, live_slot, request
from numpy.typing import NDArray

from runtime.requests.request import Dcw, GenerationRequest, LatentMask, StepParameters, Target
from runtime.requests.timesteps import Purpose, noise, schedule, target_gate
from runtime.tick.denoise.prepared import PreparedGeneration, StepValues, prepare, resolve, start_latents
from runtime.tick.denoise.slot_fields import FIELDS, STATES

ZEROS = np.zeros((FRAMES, CHANNELS), np.float32)
NONE = StepParameters()


def values(session: StepParameters = NONE, **changes: Any) -> StepValues:
    return resolve(request(**changes), session)


def prepared(asked: GenerationRequest, **changes: Any) -> PreparedGeneration:
    return prepare(asked, resolve(asked, NONE), CHANNELS, **changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        (guided(), {"guidance"}),
        (guided(1.0), set()),
        ({"parameters": StepParameters(guidance=3.0)}, set()),
        (guided(guidance_mode="initialize"), {"guidance", "rcfg"}),
        ({"guidance_mode": "self", "parameters": StepParameters(guidance=2.0)}, {"guidance", "rcfg"}),
        ({"guidance_mode": "self"}, set()),
        ({"solver": "sde"}, {"sde"}),
        ({"solver": "ab2"}, {"ab2"}),
        (guided(solver="ab2"), {"ab2", "guidance"}),
        ({"parameters": StepParameters(ode_noise=0.1), "solver": "ab2"}, {"ab2", "ode_noise"}),
        ({"source": ZEROS, "parameters": StepParameters(sde_curve=0.5), "solver": "ab2"}, {"sde"}),
        ({"parameters": StepParameters(ode_noise=0.1)}, {"ode_noise"}),
        ({"parameters": StepParameters(ode_noise=0.1), "solver": "sde"}, {"sde"}),
        ({"parameters": StepParameters(dcw=Dcw("low", 0.1))}, {"dcw"}),
        ({"parameters": StepParameters(dcw=Dcw("double", 0.0, 0.5))}, {"dcw"}),
        ({"parameters": StepParameters(dcw=Dcw("low", 0.0))}, set()),
        ({"target": Target(ZEROS)}, set()),
        ({"target": Target(ZEROS), "parameters": StepParameters(x0_strength=0.5)}, {"target"}),
        ({"target": Target(ZEROS, curve=1.0)}, {"target"}),
        ({"source": ZEROS, "parameters": StepParameters(sde_curve=0.5)}, {"sde"}),
        ({"mask": LatentMask(1.0, ZEROS)}, {"mask"}),
    ],
)
def test_features_follow_from_parameters(changes: dict[str, Any], expected: set[str]) -> None:
    assert values(**changes).features == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, set()),
        ({"parameters": StepParameters(channel_gain=1.0)}, set()),
        ({"parameters": StepParameters(channel_gain=np.ones(CHANNELS))}, set()),
        ({"parameters": StepParameters(channel_gain=np.linspace(1, 2, CHANNELS))}, {"gain"}),
        ({"mask": LatentMask(1.0, ZEROS)}, {"mask"}),
    ],
)
def test_row_features_follow_from_gain_and_mask(changes: dict[str, Any], expected: set[str]) -> None:
    assert values(**changes).row_features == expected


def test_the_sessions_parameters_are_over_the_requests_and_those_over_the_neutral_ones() -> None:
    asked = {"parameters": StepParameters(velocity_scale=0.5, rescale=0.25)}
    found = values(StepParameters(velocity_scale=2.0), **asked).parameters
    assert (found.velocity_scale, found.rescale, found.momentum) == (2.0, 0.25, -0.75)
    assert values(**asked).parameters.velocity_scale == 0.5


@pytest.mark.parametrize("frames", [8, 16, 32])
def test_a_sessions_curves_are_resampled_to_the_generations_length(frames: int) -> None:
    found = values(StepParameters(ode_noise=np.linspace(0, 1, 16), dcw=Dcw("low", np.ones(5))), frames=frames)
    assert np.shape(found.fields["ode_noise"]) == (frames,)
    assert np.shape(found.fields["dcw_low"]) == (frames // 2,)


def test_every_row_belongs_to_a_field() -> None:
    work = live_slot().work
    assert work.fields.keys() | work.values.fields.keys() <= FIELDS.keys()
    assert not work.fields.keys() & work.values.fields.keys()
    assert work.states.keys() <= STATES.keys()


def test_what_has_no_effect_here_is_neutral() -> None:
    found = values(parameters=StepParameters(guidance=3.0, momentum=0.1, rescale=0.5, x0_strength=0.7)).fields
    effective = {name for name, row in found.items() if row is not None}
    assert effective == {"velocity_scale"}


def test_dcw_pix_has_a_coefficient_per_frame_and_no_bands() -> None:
    found = values(parameters=StepParameters(dcw=Dcw("pix", np.linspace(0, 1, FRAMES)))).fields
    assert np.shape(found["dcw_pix"]) == (FRAMES,)
    assert (found["dcw_low"], found["dcw_high"]) == (None, None)


def test_the_schedule_is_that_of_the_request() -> None:
    work = prepared(request(steps=7, shift=3.0))
    np.testing.assert_array_equal(work.times, schedule(7, shift=3.0, denoise=1.0))


def test_the_first_latents_are_the_seeds_noise() -> None:
    np.testing.assert_array_equal(prepared(request(seed=5)).states["latents"], noise(FRAMES, CHANNELS, 5))


def test_self_guidance_keeps_the_initial_noise_as_its_negative_velocity() -> None:
    states = prepared(request(seed=5, guidance_mode="self", source=ZEROS, denoise=0.5)).states
    np.testing.assert_array_equal(states["cached_negative_velocity"], noise(FRAMES, CHANNELS, 5))


def test_step_noise_is_drawn_for_the_first_step_where_the_generation_draws_any() -> None:
    drawn = prepared(request(seed=5, solver="sde")).step_noise
    np.testing.assert_array_equal(drawn, noise(FRAMES, CHANNELS, 5, Purpose.STEP, 0))
    assert prepared(request(seed=5)).step_noise is None


def mixed(share: float | NDArray[np.float32], source: NDArray[np.float32], **changes: Any) -> None:
    drawn = noise(FRAMES, CHANNELS, 1)
    kept = drawn.copy()
    found = start_latents(request(source=source, **changes), drawn, 0.6)
    np.testing.assert_allclose(found, share * kept + (1 - share) * source, atol=1e-6)
    np.testing.assert_array_equal(drawn, kept)


def test_a_partial_denoise_starts_from_noise_and_source_by_its_first_time() -> None:
    mixed(0.6, noise(FRAMES, CHANNELS, 2), denoise=0.5)


def test_a_noise_curve_mixes_noise_and_source_per_frame() -> None:
    curve = np.linspace(0, 1, FRAMES, dtype=np.float32)
    mixed(curve[:, None], noise(FRAMES, CHANNELS, 2), initial_noise_curve=curve)


def test_a_source_alone_does_not_change_the_start() -> None:
    mixed(1.0, noise(FRAMES, CHANNELS, 2))


def test_a_mask_has_the_requests_noise_or_the_seeds() -> None:
    own = noise(FRAMES, CHANNELS, 9)
    given, drawn = (prepared(request(seed=5, mask=LatentMask(1.0, ZEROS, n))).fields for n in (own, None))
    np.testing.assert_array_equal(given["mask_noise"], own)
    np.testing.assert_array_equal(drawn["mask_noise"], noise(FRAMES, CHANNELS, 5, Purpose.MASK))


def test_a_target_acts_by_strength_from_the_middle_and_by_curve_behind_its_gate() -> None:
    by_strength = prepared(request(steps=5, target=Target(ZEROS))).gates
    by_curve = prepared(request(steps=5, target=Target(ZEROS, 1.0, 0.25))).gates
    assert by_strength is not None
    assert by_curve is not None
    np.testing.assert_array_equal(by_strength, [0, 0, 1, 1, 1])
    np.testing.assert_allclose(by_curve, [target_gate(step, 5, 0.25) for step in range(5)])
    assert prepared(request()).gates is None


def test_phases_end_where_active_conditions_change() -> None:
    early, late, always = condition(end=0.5), condition(start=0.5), condition()
    phases = prepared(request(steps=8, conditions=(early, late), negatives=(always,))).phases
    assert phases == ((4, (early,), (always,)), (8, (late,), (always,)))


def test_every_step_has_the_conditions_that_are_active_in_it() -> None:
    overlapping = (condition(end=0.7), condition(start=0.3), condition(start=0.5, end=0.6))
    asked = request(steps=10, conditions=overlapping)
    work = prepared(asked)
    for step in range(10):
        assert work.phase(step).positives == tuple(c for c in overlapping if c.active(step, 10))


def test_the_first_condition_stands_in_where_none_is_active() -> None:
    late = condition(start=0.5)
    work = prepared(request(conditions=(late,), negatives=(late,)))
    assert work.phases == ((4, (late,), (late,)),)
