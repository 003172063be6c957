"""What one tick ran, as plain values."""

from __future__ import annotations

from typing import NamedTuple


class BucketSpan(NamedTuple):
    """A bucket's executes on the device: when they began after those of the tick's first bucket, how long they took."""

    frames: int
    slots: int
    rows: int
    executes: int
    begin_ms: float
    ms: float
