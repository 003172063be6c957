"""Loops that are denoised as circles: what the decoder sees of a loop, and where in it a step's velocity lies.

A loop of N frames stands in the decoder's window of T >= N frames. At the edges of its window the decoder hears a
beginning and an end, so each step turns the loop by another shift: window frame f is loop frame `(f + shift) mod N`.
The velocity of a loop frame is read in the middle of the window, from its frames `m .. m + N` with `m = (T - N) // 2`.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from runtime.config.codec import Latents

Frames = NDArray[np.int64]

# A loop of whole bars is rounded to a frame, here and by whoever cut a source: lengths this near to each other are one.
STRETCHED = 0.01


def shift_at(time: float, loop: int, seed: int) -> int:
    """By how many frames a step at flow time `time` turns a loop of `loop` frames.

    A hash of the seed and of the time, in thousandths, chooses: neighbouring times lie far from each other.
    """
    return zlib.crc32(b"%d %d" % (seed, round(1000 * time))) % loop


def stretched(latents: Latents, loop: int) -> Latents:
    """Latents `[n, C]` of a source that repeats, as `[loop, C]` where that is nearly its length; else as they are.

    Linear between frames; behind the last one comes the first.
    """
    count = len(latents)
    if count == loop or abs(count - loop) > STRETCHED * loop:
        return latents
    places = np.arange(loop) * (count / loop)
    first = places.astype(np.int64)
    share = (places - first).astype(np.float32)[:, None]  # [loop, 1]
    return (1 - share) * latents[first] + share * latents[(first + 1) % count]  # [loop, C]


@lru_cache(maxsize=256)
def window_frames(frames: int, loop: int, shift: int) -> Frames:
    """The loop frame of each window frame, int64 `[frames]`."""
    return (np.arange(frames) + shift) % loop


@lru_cache(maxsize=256)
def velocity_frames(frames: int, loop: int, shift: int) -> Frames:
    """The window frame of each frame of the loop, which repeats up to `frames`: int64 `[frames]`."""
    margin = (frames - loop) // 2
    return margin + (np.arange(frames) % loop - shift - margin) % loop
