"""Numbers and curves: what is accepted, in which form, and how it is resampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from runtime.base.errors import RequestError
from runtime.requests.curves import array, curve, is_everywhere, is_finite, resample

CURVES = st_numpy.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e3, 1e3, width=32))


def test_a_number_stays_a_number_and_a_sequence_becomes_float32() -> None:
    assert curve(2, "x") == 2.0
    assert curve(0.1, "x") == float(np.float32(0.1))
    assert isinstance(curve(np.float64(0.5), "x"), float)
    found = curve([1, 2.5], "x")
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("loud", "expected a number or a list of numbers"),
        ({}, "expected a number or a list of numbers"),
        ([[1.0, 2.0]], r"got shape \(1, 2\)"),
        ([], r"got shape \(0,\)"),
        (float("nan"), "not finite"),
        ([0.0, float("inf")], "not finite"),
    ],
)
def test_what_is_no_curve_is_refused_with_its_field(value: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        curve(value, "guidance")
    assert caught.value.field == "guidance"


def test_an_array_becomes_contiguous_float32() -> None:
    found = array(np.arange(12.0).reshape(3, 4).T, "source", 2)
    assert (found.shape, found.dtype, found.flags["C_CONTIGUOUS"]) == ((4, 3), np.float32, True)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([1.0], r"expected 2 dimensions, got shape \(1,\)"),
        (np.zeros((0, 4)), r"got shape \(0, 4\)"),
        ([["a"]], "expected an array of numbers"),
        ([[1.0], [1.0, 2.0]], "expected an array of numbers"),
        ([[float("-inf")]], "not finite"),
    ],
)
def test_what_is_no_array_is_refused_with_its_field(value: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        array(value, "source", 2)
    assert caught.value.field == "source"


@given(st_numpy.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32)))
def test_finite_means_that_every_value_is(values: Any) -> None:
    assert is_finite(values) == bool(np.isfinite(values).all())


def test_a_curve_has_one_value_everywhere_or_not() -> None:
    assert is_everywhere(1.0, 1.0)
    assert is_everywhere(np.ones(3, np.float32), 1.0)
    assert not is_everywhere(np.array([1, 1, 0.5], np.float32), 1.0)


def test_resampling_interpolates_at_half_pixel_centres() -> None:
    np.testing.assert_allclose(resample(np.array([0.0, 1.0], np.float32), 4), [0.0, 0.25, 0.75, 1.0])
    np.testing.assert_allclose(resample(np.array([0, 1, 2, 3], np.float32), 2), [0.5, 2.5])
    np.testing.assert_allclose(resample(np.array([7.0], np.float32), 3), [7.0, 7.0, 7.0])


@given(CURVES)
def test_resampling_to_the_same_length_changes_nothing(values: Any) -> None:
    np.testing.assert_allclose(resample(values, len(values)), values, rtol=1e-6, atol=1e-3)


@given(CURVES, st.integers(1, 60))
def test_resampling_stays_within_the_curve(values: Any, frames: int) -> None:
    found = resample(values, frames)
    assert (found.shape, found.dtype) == ((frames,), np.float32)
    assert values.min() - 1e-3 <= found.min() <= found.max() <= values.max() + 1e-3
