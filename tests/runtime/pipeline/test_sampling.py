"""Which solver and how many steps a generation takes, by its options and its bundle's defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Built
from helpers.factories import tiny_bundle

from runtime.base.errors import ConfigError
from runtime.config.bundle import load_bundle
from runtime.live.hosting.services import live_model
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import open_pipeline
from runtime.pipeline.sampling import Sampling
from runtime.requests.options import GenerationOptions, parse_options
from runtime.requests.timesteps import schedule

SAMPLER = """solver = "jump"
live_steps = 3
schedules = { 4 = [1.0, 0.8, 0.5, 0.2] }
velocity = { solver = "ab2", steps = 5, live_steps = 7, schedules = { 5 = [1, 0.8, 0.6, 0.4, 0.2] } }
"""
JUMPS: dict[str, Any] = {"jumps": True, "sampler": SAMPLER}
# Options -> solver, steps, live steps, why not jump.
CASES: tuple[tuple[dict[str, Any], str, int, int, str], ...] = (
    ({}, "jump", 4, 3, ""),
    ({"guidance": 3.5}, "jump", 4, 3, ""),
    ({"guidance": [2.0, 2.0]}, "jump", 4, 3, ""),
    ({"steps": 6}, "jump", 6, 6, ""),
    ({"solver": "ode"}, "ode", 5, 7, ""),
    ({"solver": "ode", "steps": 2}, "ode", 2, 2, ""),
    ({"timesteps": [1.0, 0.5]}, "jump", 2, 2, ""),
    ({"negative_prompt": "drums"}, "ab2", 5, 7, "negative_prompt is given"),
    ({"guidance_mode": "initialize"}, "ab2", 5, 7, "guidance_mode is initialize"),
    ({"guidance": 4.5}, "ab2", 5, 7, "guidance is not from 1 to 4"),
    ({"guidance": [1.0, 2.0]}, "ab2", 5, 7, "guidance is a curve"),
    ({"momentum": 0.0}, "ab2", 5, 7, "momentum is not -0.75"),
    ({"momentum": -0.75}, "jump", 4, 3, ""),
    ({"rescale": 0.5}, "ab2", 5, 7, "rescale is not 0"),
    ({"rescale": 0.5, "guidance": 1.0}, "jump", 4, 3, ""),
    ({"rescale": 0.5, "steps": 5}, "ab2", 5, 5, "rescale is not 0"),
)


def options(given: dict[str, Any]) -> GenerationOptions:
    return parse_options({"prompt": "a", **given})


@pytest.mark.parametrize(("given", "solver", "steps", "live_steps", "reason"), CASES, ids=str)
def test_what_options_come_to(
    given: dict[str, Any], solver: str, steps: int, live_steps: int, reason: str, tmp_path: Path
) -> None:
    bundle, asked = load_bundle(tiny_bundle(tmp_path, **JUMPS)), options(given)
    assert Sampling.of(asked, bundle)[:3] == (solver, steps, reason)
    assert Sampling.of(asked, bundle, is_live=True).steps == live_steps


KEPT: dict[str, Any] = {"sampler": 'solver = "ode"\nguidance_mode = "alternate"\nkept = { 4 = [0, 1, 3] }\nshift = 2.0'}


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, (0, 1, 3)),
        ({"steps": 4, "guidance": 5.0, "cfg_interval_end": 0.5}, (0, 1, 3)),
        *[
            (given, None)
            for given in (
                {"steps": 5}, {"shift": 3.0}, {"timesteps": [1.0, 0.5]}, {"solver": "sde"}, {"ode_noise": 0.1},
                {"dcw": {"low": 0.1}}, {"target_curve": 0.5}, {"x0_strength": 0.5}, {"sde_curve": 0.5},
                {"initial_noise_curve": 0.5}, {"prompt": [{"text": "a"}, {"text": "b", "end": 0.5}]},
            )
        ],
    ],
    ids=str,
)  # fmt: skip
def test_steps_are_left_out_where_they_only_follow_their_velocity(
    given: dict[str, Any], kept: Any, tmp_path: Path
) -> None:
    sampling = Sampling.of(options(given), load_bundle(tiny_bundle(tmp_path, **KEPT)))
    assert (sampling.kept, sampling.guidance_mode) == (kept, "alternate")
    assert sampling.told().get("computed_steps") == (None if kept is None else 3)


def test_what_is_left_out_is_no_step_of_the_request(built: Built) -> None:
    with open_pipeline(built(**KEPT)) as pipeline:
        generation = LongGeneration(pipeline, options({}))
        request = generation.next_request()
        source = np.zeros((32, 8), np.float32)
        cover = LongGeneration(pipeline, options({"denoise": 0.5}), GenerationInputs(source=source)).next_request()
    assert request is not None
    assert cover is not None
    assert (request.steps, request.guidance_mode, generation.num_steps) == (3, "alternate", 3)
    assert request.timesteps == pytest.approx(schedule(4, shift=2.0)[[0, 1, 3]])
    assert request.extrapolation is not None
    assert request.extrapolation[0] == 0.0
    assert (cover.steps, cover.extrapolation) == (4, None)


FITTED = "times = [1.0, 0.7, 0.3], ends = [0.6, 0.4, 0], extrapolation = [0, 1.5, -0.5]"


def test_fitted_steps_hold_where_steps_are_left_out_and_of_their_solver(built: Built) -> None:
    sampler = f'solver = "ab2"\nshift = 2.0\nfitted = {{ 3 = {{ {FITTED} }} }}'
    with open_pipeline(built(sampler=sampler)) as pipeline:
        fitted, *others = (
            LongGeneration(pipeline, options({"steps": 3} | given)).next_request()
            for given in ({}, {"solver": "ode"}, {"shift": 3.0}, {"steps": 4}, {"ode_noise": 0.1})
        )
    assert fitted is not None
    assert (fitted.timesteps, fitted.ends, fitted.extrapolation) == ((1.0, 0.7, 0.3), (0.6, 0.4, 0.0), (0.0, 1.5, -0.5))
    assert [(each.timesteps, each.ends, each.extrapolation) for each in others if each] == [(None, None, None)] * 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("0.7, 0.3]", "0.3, 0.7]"), "the times from 1 down to above 0"),
        (("0.7, 0.3]", "0.7]"), "of each step"),
        (("0.4, 0]", "0.8, 0]"), "ends that are below the times"),
        (("0.4, 0]", "0.4, 0.1]"), "the last one 0"),
        (("[0, 1.5", "[1, 1.5"), "an extrapolation of 0 in the first step"),
        (("1.5", "11"), "at most 10 in others"),
        (("3 = ", "4 = "), "fitted.4: expected 4 steps"),
        (("fitted", "kept = { 3 = [0, 1] }\nfitted"), "fitted.3: expected 3 steps, all of them computed"),
    ],
    ids=str,
)
def test_fitted_steps_that_cannot_be_are_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    sampler = f'solver = "ab2"\nfitted = {{ 3 = {{ {FITTED} }} }}'
    with pytest.raises(ConfigError, match=message):
        load_bundle(tiny_bundle(tmp_path, sampler=sampler.replace(*change)))


def test_times_are_those_of_the_solver(built: Built) -> None:
    with open_pipeline(built(**JUMPS)) as pipeline:
        jump, velocity, others = (
            LongGeneration(pipeline, options(given)).next_request()
            for given in ({}, {"negative_prompt": "b"}, {"shift": 2.0})
        )
    assert jump is not None
    assert velocity is not None
    assert others is not None
    assert (jump.solver, jump.timesteps) == ("jump", (1.0, 0.8, 0.5, 0.2))
    assert (velocity.solver, velocity.timesteps) == ("ab2", (1.0, 0.8, 0.6, 0.4, 0.2))
    assert others.timesteps is None


def test_a_live_session_without_steps_of_its_own_takes_those_of_its_solver(built: Built) -> None:
    with open_pipeline(built(**JUMPS)) as pipeline:
        model = live_model(pipeline)
    assert model.defaults["steps"] == 3
    assert model.steps_of is not None
    assert model.steps_of(options({"rescale": 0.5})) == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampler": SAMPLER}, r'sampler.solver "jump" needs decoder.inputs.time_end'),
        ({"jumps": True, "sampler": 'solver = "jump"'}, r"velocity\] goes with solver"),
        ({"sampler": "kept = { 4 = [1, 2] }"}, r"kept.4: expected steps in order, from 0 to at most 3"),
        ({"sampler": "kept = { 4 = [0, 4] }"}, r"kept.4: expected"),
        ({"jumps": True, "sampler": "velocity = { steps = 9 }"}, r"velocity\] goes with solver"),
    ],
)
def test_a_bundle_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        load_bundle(tiny_bundle(tmp_path, **changes))
