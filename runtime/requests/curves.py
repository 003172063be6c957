"""Numbers that may vary over frames: checked, resampled, compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError

Curve = float | NDArray[np.float32]
Array = NDArray[np.float32]
MAX_FLOAT32 = float(np.finfo(np.float32).max)


def curve(value: Any, name: str) -> Curve:
    """A scalar as float, a sequence as float32 `[T]`. Raises RequestError unless finite and at most one-dimensional."""
    if type(value) is float and abs(value) <= MAX_FLOAT32:  # A ramp makes some of these for every tick.
        return float(np.float32(value))
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise RequestError(f"expected a number or a list of numbers, got {value!r:.60}", field=name) from None
    if array.ndim > 1 or array.size == 0:
        raise RequestError(f"expected a number or a curve [T], got shape {array.shape}", field=name)
    if not is_finite(array):
        raise RequestError("has a value that is not finite", field=name)
    return float(array) if array.ndim == 0 else np.ascontiguousarray(array)


def array(value: Any, name: str, ndim: int) -> Array:
    """float32 array of `ndim` dimensions, contiguous and finite. Raises RequestError."""
    try:
        result = np.ascontiguousarray(value, np.float32)
    except (TypeError, ValueError):
        raise RequestError("expected an array of numbers", field=name) from None
    if result.ndim != ndim or len(result) == 0:
        raise RequestError(f"expected {ndim} dimensions, got shape {np.shape(value)}", field=name)
    if not is_finite(result):
        raise RequestError("has a value that is not finite", field=name)
    return result


def is_finite(values: NDArray[np.float32]) -> bool:
    """True when no value is NaN or infinite; allocates nothing."""
    return not values.size or (math.isfinite(float(values.min())) and math.isfinite(float(values.max())))


def is_everywhere(value: Curve, number: float) -> bool:
    """True when a curve has one value at every frame."""
    return bool(np.all(np.asarray(value) == number))


def resample(values: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """A curve of any length, interpolated linearly at half-pixel centres to `frames` values; ends held."""
    positions = (np.arange(frames) + 0.5) * (len(values) / frames) - 0.5
    values_at: NDArray[np.float32] = np.interp(positions, np.arange(len(values)), values).astype(np.float32)
    return values_at
