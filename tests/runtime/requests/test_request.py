"""Requests refuse wrong values with the name of the field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.base.errors import RequestError
from runtime.requests.request import (
    MAX_SEED,
    NEUTRAL,
    Condition,
    Dcw,
    GenerationRequest,
    LatentMask,
    StepParameters,
    Target,
    fit,
    merge_patch,
)

TOKENS = np.ones((3, 4), np.float32)


def make(**changes: Any) -> GenerationRequest:
    return GenerationRequest(**{"frames": 8, "conditions": (Condition(TOKENS),), **changes})


@given(st.lists(st.sampled_from([0.0, -0.0, 1.0]), min_size=1, max_size=8), st.integers(1, 3))
def test_a_merged_condition_is_every_token_again_as_often_as_it_counts(values: list[float], count: int) -> None:
    tokens = np.repeat(np.array(values, np.float32)[:, None], 2, axis=1)
    merged = Condition(tokens, weight=0.5, end=0.7, counts=np.full(len(values), count, np.float32)).merged()
    assert (merged.weight, merged.end) == (0.5, 0.7)
    copies = np.asarray(merged.counts, np.int64) // count
    np.testing.assert_array_equal(np.repeat(merged.tokens, copies, axis=0), tokens)
    assert (merged.tokens[1:] != merged.tokens[:-1]).any(axis=1).all(), "equal tokens follow each other"
    np.testing.assert_array_equal(merged.merged().counts, merged.counts)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"frames": 0}, "frames: expected an integer from 1"),
        ({"frames": 2**31}, "frames: expected an integer from 1 to 2147483647"),
        ({"frames": 8.0}, "frames: expected an integer"),
        ({"frames": True}, "frames: expected an integer"),
        ({"steps": 201}, "steps: expected an integer from 1 to 200"),
        ({"steps": 2**63}, "steps: expected"),
        ({"seed": -1}, "seed: expected"),
        ({"seed": MAX_SEED + 1}, "seed: expected"),
        ({"shift": 0.0}, "shift: expected a number above 0"),
        ({"shift": float("inf")}, "shift: expected"),
        ({"denoise": 1.5}, "denoise: expected 0 <= denoise <= 1"),
        ({"denoise": float("nan")}, "denoise: expected"),
        ({"denoise": 0.5}, "denoise: below 1 needs a source"),
        ({"conditions": ()}, "conditions: needs at least one"),
        ({"guidance_mode": "half"}, "guidance_mode: expected full, alternate, self or initialize"),
        ({"solver": "heun"}, "solver: expected ode, sde, ab2 or jump"),
        ({"context": np.zeros((7, 2))}, "context: has 7 frames, the generation has 8"),
        ({"noise": np.zeros(8)}, "noise: expected 2 dimensions"),
        ({"noise": np.full((8, 2), np.nan)}, "noise: has a value that is not finite"),
        ({"initial_noise_curve": 0.5}, "initial_noise_curve: needs a source"),
        ({"mask": LatentMask(1.0)}, r"mask\.original: needs an original or a source"),
        ({"mask": LatentMask(np.ones(5), np.zeros((8, 2)))}, r"mask\.mask: has 5 frames"),
        ({"target": Target(np.zeros((9, 2)))}, r"target\.latents: has 9 frames"),
        ({"parameters": StepParameters(sde_curve=0.5)}, "sde_curve: needs a source"),
        ({"parameters": StepParameters(guidance=np.ones(3))}, "guidance: has 3 frames"),
        ({"parameters": StepParameters(dcw=Dcw("low", np.ones(3)))}, r"dcw\.low: has 3 frames"),
    ],
)
def test_bad_requests_name_their_field(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=f"^{says}") as caught:
        make(**changes)
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        (lambda: Condition(np.ones(3)), r"condition\.tokens: expected 2 dimensions"),
        (lambda: Condition(TOKENS, counts=np.ones(2)), r"condition\.counts: needs a number above 0 for each"),
        (lambda: Condition(TOKENS, counts=0.0), r"condition\.counts: needs a number above 0"),
        (lambda: Condition(TOKENS, "loud"), r"condition\.weight: expected a number"),
        (lambda: Condition(TOKENS, 1.0, 0.5, 0.5), "start < end"),
        (lambda: Target(np.zeros((2, 2)), gate=2.0), r"target\.gate: needs 0 <= gate <= 1"),
        (lambda: Dcw("middle"), r"dcw\.mode: expected low, high, double or pix"),  # type: ignore[arg-type]
        (lambda: StepParameters(guidance=[[1.0]]), "guidance: expected a number or a curve"),  # type: ignore[arg-type]
        (lambda: StepParameters(velocity_scale=[]), "velocity_scale: expected"),  # type: ignore[arg-type]
        (lambda: StepParameters(momentum=float("inf")), "momentum: has a value that is not finite"),
        (lambda: StepParameters(channel_gain=np.ones((2, 2, 2))), "channel_gain: expected 2 dimensions"),
    ],
)
def test_bad_parts_name_their_field(factory: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        factory()


def test_upper_buckets_win() -> None:
    merged = StepParameters(guidance=2.0).over(StepParameters(guidance=3.0, momentum=0.5)).over(NEUTRAL)
    assert (merged.guidance, merged.momentum, merged.velocity_scale) == (2.0, 0.5, 1.0)


def test_a_mask_keeps_its_own_original_before_the_source() -> None:
    source, original = np.zeros((8, 2), np.float32), np.ones((8, 2), np.float32)
    assert np.all(make(source=source, mask=LatentMask(1.0, original)).original == 1)
    assert np.all(make(source=source, mask=LatentMask(1.0)).original == 0)
    assert np.all(make(denoise=0.5, mask=LatentMask(1.0, original)).start == 1)


def test_conditions_are_active_from_start_up_to_end() -> None:
    condition = Condition(TOKENS, 1.0, 0.25, 0.5)
    assert [condition.active(step, 4) for step in range(4)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("mode", "unread", "read"), [("low", "high", "low"), ("high", "low", "high"), ("pix", "high", "low")]
)
def test_a_strength_that_the_mode_does_not_read_is_refused(mode: Any, unread: str, read: str) -> None:
    with pytest.raises(RequestError, match=rf"dcw\.{unread}: mode {mode} does not read it\n  fix: set dcw\.{read}"):
        Dcw(mode, **{unread: 0.1})
    assert not Dcw(mode, **{read: 0.1}).is_neutral


def test_a_merge_patch_changes_what_it_names() -> None:
    merged = merge_patch({"guidance": 2.0, "rescale": 0.5}, {"guidance": [1.0, 3.0], "rescale": None})
    assert list(merged) == ["guidance"]
    np.testing.assert_array_equal(merged["guidance"], [1.0, 3.0])


def test_fitting_resamples_every_curve() -> None:
    parameters = StepParameters(
        guidance=np.ones(4), dcw=Dcw("low", np.arange(4.0)), channel_gain=np.ones((4, 2)), momentum=0.5
    )
    found = fit(parameters, 8)
    assert (np.shape(found.guidance), np.shape(found.channel_gain), found.momentum) == ((8,), (8, 2), 0.5)
    assert found.dcw is not None
    assert np.shape(found.dcw.low) == (8,)
