"""The partials of every pitched layer: frequencies, stereo, reverb, detuned copies, gains per instrument.

Frequencies are whole numbers of cycles per `PHASE_STEPS` frames. So a partial's phase at any absolute frame is an exact
integer, hours into a stream, and the audio of a window does not depend on where decoding began.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.codec.voices import BAR_RATIOS, amplitudes, voice_of
from configs.demo.recipe.instruments import INSTRUMENTS, REGISTERS
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray

ComplexArray = npt.NDArray[np.complex128]

PHASE_STEPS: Final = 2**15
ENSEMBLE_FRAMES: Final = 128  # the detuned copies' common period

_SEED: Final = 5
_FRAME_S: Final = 1.0 / FRAME_RATE_HZ
_DETUNE_CENTS: Final = (4.0, -6.0, 9.0)
_COPY_GAIN: Final = 0.55
_LARGEST_BEAT_HZ: Final = 4.5


@dataclass(frozen=True)
class LayerSound:
    """What a layer's partials have in common.

    gain: of a note at level 1. highest_hz, most: which partials there are. pan: pitches alternate between +-pan.
    width: largest phase between the channels, in turns. reverb: its level relative to the tone's. hop_samples: samples
    per frame at which the layer is synthesized.
    """

    gain: float
    highest_hz: float
    most: int
    pan: float
    width: float
    reverb: float
    hop_samples: int


SOUNDS: Final[dict[str, LayerSound]] = {
    "bass": LayerSound(0.2, 2600.0, 20, 0.0, 0.0, 0.06, 480),
    "pad": LayerSound(0.105, 5200.0, 20, 0.2, 0.12, 0.4, 480),
    "arp": LayerSound(0.2, 9000.0, 16, 0.35, 0.04, 0.45, 960),
    "melody": LayerSound(0.25, 10_300.0, 14, 0.06, 0.02, 0.35, 960),
}


@dataclass(frozen=True)
class Partials:
    """Every partial of a layer's pitches, K in all, and their gains for its I instruments.

    direct and reverb: gain and phase of the tone and of its reverb, left and right. copies: detuned copies relative to
    the tone, per frame of their period P.
    """

    pitch_index: npt.NDArray[np.int64]  # [K] which of the layer's pitches
    cycles: npt.NDArray[np.int64]  # [K] cycles per PHASE_STEPS frames
    direct: ComplexArray  # [2, K]
    reverb: ComplexArray  # [2, K]
    copies: ComplexArray  # [2, P, K]
    soft: FloatArray  # [I, K]
    loud: FloatArray  # [I, K]


def pitch_cycles(pitch: int, ratio: float = 1.0) -> int:
    """Frequency of a partial in cycles per `PHASE_STEPS` frames; whole multiples of the pitch, within 0.001 Hz."""
    cycles = round(440.0 * math.exp2((pitch - 69) / 12.0) / FRAME_RATE_HZ * PHASE_STEPS)
    return round(cycles * ratio)


@cache
def layer_partials(layer: str) -> Partials:
    """The partials of a layer, lowest pitch first."""
    sound, rng = SOUNDS[layer], np.random.default_rng([_SEED, len(layer)])
    low, high = REGISTERS[layer]
    rows = [(pitch, ratio) for pitch in range(low, high + 1) for ratio in _ratios(layer, pitch)]
    pitches, ratios = (np.array(column) for column in zip(*rows, strict=True))
    cycles = np.array([pitch_cycles(int(pitch), ratio) for pitch, ratio in rows], np.int64)
    frequencies_hz = cycles * FRAME_RATE_HZ / PHASE_STEPS
    side = np.array([[-1.0], [1.0]])
    turns = rng.random(len(rows)) + side * rng.uniform(-sound.width / 2, sound.width / 2, len(rows))
    pan = 1.0 + side * sound.pan * np.where(pitches % 2, 1.0, -1.0)
    damping = 1.0 / (1.0 + (frequencies_hz / 3500.0) ** 2)
    reverb = sound.reverb * damping * np.exp(2j * np.pi * rng.random((2, len(rows))))
    soft, loud = np.zeros((2, len(INSTRUMENTS[layer]), len(rows)), np.float32)
    for index, instrument in enumerate(INSTRUMENTS[layer]):
        voice = voice_of(layer, instrument)
        gain = sound.gain / math.sqrt(1.0 + len(_DETUNE_CENTS) * (_COPY_GAIN * voice.ensemble) ** 2)
        for pitch in range(low, high + 1):
            own = pitches == pitch
            soft[index, own], loud[index, own] = amplitudes(voice, gain, ratios[own], frequencies_hz[own])
    return Partials(
        pitch_index=np.asarray(pitches - low, np.int64),
        cycles=cycles,
        direct=np.asarray(pan * np.exp(2j * np.pi * turns), np.complex128),
        reverb=np.asarray(reverb, np.complex128),
        copies=_copies(frequencies_hz, rng),
        soft=soft,
        loud=loud,
    )


def _ratios(layer: str, pitch: int) -> list[float]:
    """The partials of one pitch, as multiples of its frequency."""
    sound, pitch_hz = SOUNDS[layer], pitch_cycles(pitch) * FRAME_RATE_HZ / PHASE_STEPS
    bar = BAR_RATIOS if "bells" in INSTRUMENTS[layer] else ()
    return [ratio for ratio in (*range(1, sound.most + 1), *bar) if ratio * pitch_hz < sound.highest_hz]


def _copies(frequencies_hz: npt.NDArray[np.float64], rng: np.random.Generator) -> ComplexArray:
    """Detuned copies of each partial relative to it, other ones left and right: `[2, P, K]`."""
    period_s = ENSEMBLE_FRAMES * _FRAME_S
    frames = np.arange(ENSEMBLE_FRAMES)[None, :, None]
    copies = np.zeros((2, ENSEMBLE_FRAMES, len(frequencies_hz)), complex)
    for cents in _DETUNE_CENTS:
        beat_hz = frequencies_hz * (math.exp2(cents / 1200.0) - 1.0) * rng.uniform(0.8, 1.2, (2, len(frequencies_hz)))
        beats = np.round(np.clip(beat_hz, -_LARGEST_BEAT_HZ, _LARGEST_BEAT_HZ) * period_s)
        beats = np.where(beats == 0, np.sign(cents), beats)
        turns = beats[:, None] * frames / ENSEMBLE_FRAMES + rng.random((2, 1, len(frequencies_hz)))
        copies += _COPY_GAIN * np.exp(2j * np.pi * turns)
    return copies
