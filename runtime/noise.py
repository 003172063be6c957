"""Counter-based noise: the same (seed, purpose, step) gives the same noise, whatever ran before or beside it."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """What noise is for; each purpose has a stream of its own."""

    START = 0
    MASK = 1
    STEP = 2


def fill_noise(out: NDArray[np.float32], seed: int, purpose: Purpose = Purpose.START, step: int = 0) -> None:
    """Write standard normal noise into `out` `[T, C]` float32, in place.

    Philox 4x64 (Salmon et al., 2011) with key (seed, purpose) and the step in the counter's highest word, so a step's
    noise needs no state from the steps before it. A shorter T is a prefix of a longer one.
    """
    key = np.array([seed, purpose], np.uint64)
    bits = np.random.Philox(key=key, counter=np.array([0, 0, 0, step], np.uint64))
    np.random.Generator(bits).standard_normal(dtype=np.float32, out=out)


def noise(
    frames: int, channels: int, seed: int, purpose: Purpose = Purpose.START, step: int = 0
) -> NDArray[np.float32]:
    """Standard normal noise `[T, C]` float32; see fill_noise."""
    out = np.empty((frames, channels), np.float32)
    fill_noise(out, seed, purpose, step)
    return out
