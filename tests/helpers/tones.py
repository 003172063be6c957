"""A test signal."""

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 48_000
LENGTH = 30_777


def tone(samples: int = LENGTH, rate_hz: int = RATE_HZ, channels: int = 2) -> NDArray[np.float32]:
    """A different sine in each channel."""
    t = np.arange(samples) / rate_hz
    return np.stack([0.5 * np.sin(2 * np.pi * (440 + 110 * c) * t) for c in range(channels)], axis=1).astype(np.float32)
