"""The instruments of the codec: partials per pitch, stereo, drum sounds. Pure numpy, deterministic.

Frequencies are whole numbers of cycles per `PHASE_STEPS` frames. So a partial's phase at any absolute frame is an exact
integer, hours into a stream, and the audio of a window does not depend on where decoding began.
"""

import math
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from engine_build.demo_model.latents import (
    FIRST_PITCH,
    FRAME_RATE_HZ,
    HOP_SAMPLES,
    NUM_PITCHES,
    SAMPLE_RATE_HZ,
    FloatArray,
)

PHASE_STEPS: Final = 2**15
DRUM_FRAMES: Final = 4
NOISE_FRAMES: Final = 8
ATTACK_SAMPLES: Final = 384
_STEREO_SEED: Final = 5
_DRUM_SEED: Final = 6


@dataclass(frozen=True)
class Voice:
    """How the pitches of one register sound."""

    low: int
    high: int
    gain: float
    partials: tuple[tuple[int, float], ...]  # (harmonic, gain)
    spread: float  # phase between the channels in turns, drawn from +-spread
    pan: float  # pitches alternate between +-pan


VOICES: Final = (
    Voice(36, 47, 0.30, ((1, 1.0), (2, 0.6), (3, 0.4), (4, 0.25), (5, 0.14), (6, 0.08)), 0.0, 0.0),
    Voice(48, 63, 0.12, ((1, 1.0), (2, 0.4), (3, 0.25), (4, 0.12)), 0.12, 0.15),
    Voice(64, 78, 0.18, ((1, 1.0), (2, 0.3), (4, 0.14)), 0.05, 0.3),
    Voice(79, 95, 0.15, ((1, 1.0), (2, 0.28), (3, 0.14)), 0.04, 0.1),
)


@dataclass(frozen=True)
class Partials:
    """Every partial of every pitch; K partials in all."""

    pitch_index: npt.NDArray[np.int64]  # [K] channel of the pitch
    cycles: npt.NDArray[np.int64]  # [K] cycles per PHASE_STEPS frames
    gain: FloatArray  # [2, K] left and right
    turns: FloatArray  # [2, K] phase offset in turns, left and right


def pitch_cycles(pitch: int) -> int:
    """A pitch's frequency in cycles per `PHASE_STEPS` frames, rounded; an error below 0.001 Hz."""
    frequency_hz = 440.0 * math.exp2((pitch - 69) / 12.0)
    return round(frequency_hz / FRAME_RATE_HZ * PHASE_STEPS)


def pitch_frequency_hz(index: int) -> float:
    """Frequency of latent channel `index`."""
    return pitch_cycles(FIRST_PITCH + index) * FRAME_RATE_HZ / PHASE_STEPS


@cache
def all_partials() -> Partials:
    """The partials of all voices, lowest pitch first."""
    rng = np.random.default_rng(_STEREO_SEED)
    rows = []
    for voice in VOICES:
        for pitch in range(voice.low, voice.high + 1):
            pan = voice.pan * (1 if pitch % 2 else -1)
            for harmonic, gain in voice.partials:
                turn, spread = rng.random(), rng.uniform(-voice.spread, voice.spread)
                level = voice.gain * gain
                rows.append(
                    (pitch, harmonic, level * (1 - pan), level * (1 + pan), turn - spread / 2, turn + spread / 2)
                )
    pitches, harmonics, left, right, turn_left, turn_right = zip(*rows, strict=True)
    return Partials(
        pitch_index=np.array(pitches, np.int64) - FIRST_PITCH,
        cycles=np.array([pitch_cycles(p) * h for p, h in zip(pitches, harmonics, strict=True)], np.int64),
        gain=np.array([left, right], np.float32),
        turns=np.array([turn_left, turn_right], np.float32),
    )


def partial_magnitudes(index: int) -> list[tuple[float, float]]:
    """Frequency in Hz and amplitude in the mono mix of each partial of a pitch at level 1."""
    partials = all_partials()
    rows = np.flatnonzero(partials.pitch_index == index)
    phasors = (partials.gain * np.exp(2j * np.pi * partials.turns)).mean(axis=0)
    return [(partials.cycles[k] * FRAME_RATE_HZ / PHASE_STEPS, float(abs(phasors[k]))) for k in rows]


def drum_hits() -> FloatArray:
    """One hit of kick, snare and hat at level 1: f32 `[3, 2, DRUM_FRAMES * hop]`, left and right."""
    num_samples = DRUM_FRAMES * HOP_SAMPLES
    seconds = np.arange(num_samples) / SAMPLE_RATE_HZ
    fade = np.clip((seconds[-1] - seconds) / 0.03, 0.0, 1.0)
    attack = np.clip(seconds / 0.001, 0.0, 1.0)
    rng = np.random.default_rng(_DRUM_SEED)
    sweep = 2 * np.pi * (46.0 * seconds - 0.022 * 120.0 * np.exp(-seconds / 0.022))
    kick = 0.75 * np.sin(sweep) * np.exp(-seconds / 0.07)
    snare = 0.45 * band_noise(rng, num_samples, 1200.0, 8500.0) * np.exp(-seconds / 0.045)
    snare = snare + 0.3 * np.sin(2 * np.pi * 190.0 * seconds) * np.exp(-seconds / 0.03)
    hat = 0.3 * band_noise(rng, num_samples, 9500.0, 17000.0) * np.exp(-seconds / 0.02)
    kick = np.stack([kick, kick])
    return np.asarray(np.stack([kick, snare, hat]) * fade * attack, np.float32)


def drum_noise() -> FloatArray:
    """Noise of held snare and hat levels: f32 `[2, 2, NOISE_FRAMES * hop]`, periodic, by drum and channel."""
    rng = np.random.default_rng(_DRUM_SEED + 1)
    num_samples = NOISE_FRAMES * HOP_SAMPLES
    snare = 0.06 * band_noise(rng, num_samples, 1200.0, 8500.0)
    hat = 0.04 * band_noise(rng, num_samples, 9500.0, 17000.0)
    return np.asarray(np.stack([snare, hat]), np.float32)


def band_noise(rng: np.random.Generator, num_samples: int, low_hz: float, high_hz: float) -> npt.NDArray[np.float64]:
    """Periodic noise `[2, num_samples]` of one band, peak 1; the two channels share most of it."""
    common, own = rng.standard_normal(num_samples), rng.standard_normal((2, num_samples))
    spectrum = np.fft.rfft(0.85 * common + 0.5 * own, axis=1)
    frequencies = np.fft.rfftfreq(num_samples, 1.0 / SAMPLE_RATE_HZ)
    spectrum *= (frequencies > low_hz) & (frequencies < high_hz)
    noise = np.fft.irfft(spectrum, num_samples, axis=1)
    return np.asarray(noise / np.abs(noise).max())


def voice_registers() -> npt.NDArray[np.int64]:
    """Index of the voice of each pitch channel, `[NUM_PITCHES]`."""
    lows = np.array([voice.low - FIRST_PITCH for voice in VOICES])
    return np.searchsorted(lows, np.arange(NUM_PITCHES), side="right") - 1
