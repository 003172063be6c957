"""Stores of sources whose latents are easily told from their bytes."""

from __future__ import annotations

import numpy as np
from helpers.lock_check import lock_checked
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from server.service.sources import SourceFiles, SourceStore

C = 2


def read(data: bytes) -> NDArray[np.float32]:
    """One frame per four bytes, each with the byte's value."""
    if not data:
        raise RequestError("is empty", field="source")
    return np.repeat(np.frombuffer(data[: len(data) // 4 * 4 or 1], np.uint8)[::4, None], C, 1).astype(np.float32)


def store_of(files: SourceFiles, limit_bytes: int = 1000, **options: object) -> SourceStore:
    """A store with `read`, at 25 frames per second."""
    checked = lock_checked(SourceStore, "_cache")
    return checked(files, limit_bytes, **{"read": read, "frame_rate_hz": 25.0, **options})
