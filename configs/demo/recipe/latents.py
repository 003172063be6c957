"""The demo model's 64 latent channels: a piano roll with drums and timbres at 25 frames per second.

Channels 0..51 hold the level of MIDI pitches 36..87, 52..54 kick, snare and hat, 55..63 which instruments play
(`instruments.py`).
A level lies in [0, 1]; a latent is `LATENT_SCALE * level + SILENCE`, which brings the corpus to unit order.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

CHANNELS: Final = 64
NUM_PITCHES: Final = 52
FIRST_PITCH: Final = 36
KICK: Final = 52
SNARE: Final = 53
HAT: Final = 54

FRAME_RATE_HZ: Final = 25.0
CANVAS_FRAMES: Final = 256
SAMPLE_RATE_HZ: Final = 48_000
HOP_SAMPLES: Final = 1920

# Structure codes: one number per 5 frames, of 20 digits with 5 values each, 4 of every layer.
FRAMES_PER_CODE: Final = 5
CODE_DIGITS: Final = 20
CODE_LEVELS: Final = 5
NUM_CODES: Final = CODE_LEVELS**CODE_DIGITS

LATENT_SCALE: Final = 6.0
SILENCE: Final = -0.25


def latents_from_levels(levels: npt.ArrayLike) -> FloatArray:
    """Scale levels `[..., T, C]` in [0, 1] to float32 latents of the same shape."""
    return np.asarray(LATENT_SCALE * np.asarray(levels, np.float32) + np.float32(SILENCE), np.float32)


def levels_from_latents(latents: npt.ArrayLike) -> FloatArray:
    """Scale latents `[..., T, C]` back to float32 levels, negative ones clamped to 0."""
    levels = (np.asarray(latents, np.float32) - np.float32(SILENCE)) / np.float32(LATENT_SCALE)
    return np.asarray(np.maximum(levels, 0.0), np.float32)
