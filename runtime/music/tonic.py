"""Is a tonic heard, by a key profile on the levels of keys? And which layers play something?"""

from __future__ import annotations

from typing import Final

import numpy as np

from runtime.config.codec import Latents
from runtime.config.notes import NotesSpec
from runtime.music.tracker import Levels

# How well each pitch class above the tonic fits, in major and in minor (Krumhansl & Kessler, 1982).
PROFILES: Final = np.array(
    [
        [6.35, 2.23, 3.48, 2.33, 4.38, 4.09, 2.52, 5.19, 2.39, 3.66, 2.29, 2.88],
        [6.33, 2.68, 3.52, 5.38, 2.60, 3.53, 2.54, 4.75, 3.98, 2.69, 3.34, 3.17],
    ]
)  # [2, 12]
NUM_PITCHES: Final = 12
# Semitones above a note, over whole octaves, that its third and its fifth harmonic sound, and their share of its level.
HARMONICS: Final = ((7, 0.3), (4, 0.1))
# A layer moves where its seconds differ from their mean by more than this, 1 - cosine. Of 15 s of the demo's corpus 1 %
# of pads do not, of its plans' pads a third, whose distance is next to 0.
MOVES: Final = 0.02
FEWEST_SECONDS: Final = 4
SOUNDING: Final = 0.1


def tonic_lead(spec: NotesSpec, silence: Levels, latents: Latents, tonic: int) -> float:
    """How much better a key of this tonic (0 is C), major or minor, fits latents `[T, C]` than any other one.

    A difference of correlations, -2 to 2; above 0 where it is the tonic that is heard, 0 where nothing sounds. silence:
    the levels `[C]` of silence.
    """
    pitched = [layer for layer in spec.layers if not layer.is_percussion]
    channels = [channel for layer in pitched for channel in layer.channels]  # [K]
    pitches = np.array([key % NUM_PITCHES for layer in pitched for key in layer.keys])  # [K]
    levels = np.maximum((latents - silence)[:, channels] / spec.scale, 0.0)  # [T, K]
    chroma = np.bincount(pitches, levels.sum(axis=0), NUM_PITCHES)  # [12]
    chroma = chroma + sum(share * np.roll(chroma, step) for step, share in HARMONICS)
    if not np.ptp(chroma):
        return 0.0
    rolled = np.stack([np.roll(PROFILES, pitch, axis=1) for pitch in range(NUM_PITCHES)])  # [12, 2, 12]
    fits = np.array([[np.corrcoef(chroma, each)[0, 1] for each in both] for both in rolled]).max(axis=1)  # [12]
    return float(fits[tonic] - np.delete(fits, tonic).max())


def still_layers(spec: NotesSpec, silence: Levels, latents: Latents, frame_rate_hz: float) -> list[str]:
    """The pitched layers that hold the same keys in all seconds of latents `[T, C]` in which they sound.

    One that sounds in few seconds is not judged. silence: the levels `[C]` of silence.
    """
    frames = round(frame_rate_hz)
    seconds = (latents - silence)[: len(latents) // frames * frames].reshape(-1, frames, latents.shape[1]).mean(axis=1)
    found = []
    for layer in (layer for layer in spec.layers if not layer.is_percussion):
        levels = np.maximum(seconds[:, list(layer.channels)] / spec.scale, 0.0)  # [seconds, K]
        levels = levels[levels.sum(axis=1) > SOUNDING]
        if len(levels) < FEWEST_SECONDS:
            continue
        lengths = np.linalg.norm(levels, axis=1)
        mean = levels.mean(axis=0)  # [K]
        cosines = levels @ mean / (lengths * np.linalg.norm(mean))  # [seconds]
        if 1.0 - cosines.mean() < MOVES:
            found.append(layer.name)
    return found
