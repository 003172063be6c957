"""Recorded sounds of the codec: drums of four kits with their room, and the noise of strikes, plucks, bow and breath.

Everything is made by rule with fixed seeds, at 48 kHz.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.instruments import INSTRUMENTS
from configs.demo.recipe.latents import HOP_SAMPLES, SAMPLE_RATE_HZ, FloatArray

Float64Array = npt.NDArray[np.float64]

DRUM_FRAMES: Final = 8
STRIKE_FRAMES: Final = 3
TAKE_FRAMES: Final = 64

_SEED: Final = 6
_METAL_HZ: Final = (2053.0, 3044.0, 3696.0, 5227.0, 5400.0, 8000.0)


@dataclass(frozen=True)
class Kit:
    """A kit's kick (lowest frequency, start of its sweep, decay, click), snare (tone, noise band, decay, swish), hat
    (band, decay, share of metal), room (level, decay), and the peaks of kick, snare and hat at level 1."""

    kick_hz: float
    kick_sweep_hz: float
    kick_decay_s: float
    kick_click: float
    snare_hz: float
    snare_tone: float
    snare_band_hz: tuple[float, float]
    snare_decay_s: float
    snare_attack_s: float
    hat_band_hz: tuple[float, float]
    hat_decay_s: float
    hat_metal: float
    room: float
    room_decay_s: float
    peaks: tuple[float, float, float]


KITS: Final[dict[str, Kit]] = {
    "acoustic kit": Kit(
        58, 120, 0.075, 0.25, 190, 0.4, (1200, 12_000), 0.085, 0.0005, (6500, 17_000), 0.055, 0.5, 0.2, 0.09,
        (0.75, 0.85, 0.6),
    ),
    "electronic kit": Kit(
        47, 190, 0.105, 0.35, 220, 0.3, (1800, 13_000), 0.06, 0.0005, (8000, 18_500), 0.03, 0.2, 0.1, 0.06,
        (0.75, 0.85, 0.6),
    ),
    "brushes": Kit(
        62, 60, 0.06, 0.05, 200, 0.08, (1500, 8000), 0.09, 0.018, (5000, 13_000), 0.05, 0.25, 0.22, 0.1,
        (0.55, 0.5, 0.22),
    ),
    "lo-fi kit": Kit(
        54, 100, 0.07, 0.12, 175, 0.4, (700, 6500), 0.06, 0.001, (3500, 9500), 0.035, 0.3, 0.12, 0.05,
        (0.72, 0.8, 0.55),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Strike:
    """The noise at the start of a note: band, rise and decay, peak."""

    band_hz: tuple[float, float]
    attack_s: float
    decay_s: float
    peak: float


_PLUCK: Final = Strike((1200, 7000), 0.0005, 0.008, 0.05)
_BREATH: Final = Strike((1800, 8000), 0.02, 0.045, 0.02)
_STRIKES: Final[dict[str, Strike]] = {
    "electric bass": Strike((400, 2600), 0.0008, 0.01, 0.05),
    "upright bass": Strike((150, 1500), 0.001, 0.02, 0.06),
    "synth bass": Strike((300, 1500), 0.001, 0.004, 0.01),
    "piano": Strike((250, 2800), 0.0008, 0.02, 0.045),
    "electric piano": Strike((700, 3000), 0.0005, 0.006, 0.025),
    "organ": Strike((1500, 5000), 0.0005, 0.003, 0.015),
    "guitar": _PLUCK,
    "harp": Strike((500, 3000), 0.001, 0.012, 0.03),
    "bells": Strike((4000, 11_000), 0.0003, 0.006, 0.03),
    "marimba": Strike((250, 1600), 0.0008, 0.014, 0.08),
    "pizzicato": Strike((400, 3500), 0.0008, 0.012, 0.06),
    "brass": Strike((700, 3000), 0.01, 0.02, 0.01),
    "flute": _BREATH,
    "whistle": _BREATH,
    "violin": Strike((2000, 8000), 0.015, 0.04, 0.012),
    "trumpet": Strike((800, 4000), 0.004, 0.015, 0.02),
    "saxophone": Strike((900, 5000), 0.006, 0.02, 0.025),
}  # fmt: skip


@cache
def drum_hits() -> FloatArray:
    """Hits at level 1: f32 `[2 takes, 4 kits, 3, 2, DRUM_FRAMES * hop]`; kick, snare, hat; left and right."""
    kits = [KITS[name] for name in INSTRUMENTS["drums"]]
    return np.stack([[_kit_hits(kit, [_SEED, take, index]) for index, kit in enumerate(kits)] for take in range(2)])


@cache
def take_shares() -> FloatArray:
    """How much of each take a hit has, by the frame of the hit: f32 `[TAKE_FRAMES, 2]`. So no two hits are the same."""
    share = np.random.default_rng(_SEED).random(TAKE_FRAMES)
    return np.asarray(np.stack([1.0 - share, share], axis=1), np.float32)


def _kit_hits(kit: Kit, seed: list[int]) -> FloatArray:
    rng = np.random.default_rng(seed)
    seconds = _seconds(DRUM_FRAMES)
    sounds: tuple[Callable[[Kit, Float64Array, np.random.Generator], Float64Array], ...] = (_kick, _snare, _hat)
    hits = []
    for sound, peak, room in zip(sounds, kit.peaks, (0.35, 1.0, 0.7), strict=True):
        dry = sound(kit, seconds, rng)
        hit = dry + room * kit.room * _room(dry, kit.room_decay_s, rng)
        hit *= _fade_out(seconds, 0.08)
        hits.append(peak * hit / np.abs(hit).max())
    return np.asarray(hits, np.float32)


def _kick(kit: Kit, seconds: Float64Array, rng: np.random.Generator) -> Float64Array:
    """`[2, N]`: a sine that falls to its pitch, driven so that small speakers have its overtones, and a click."""
    sweep_s = 0.025
    turns = kit.kick_hz * seconds - sweep_s * kit.kick_sweep_hz * (np.exp(-seconds / sweep_s) - 1.0)
    body = np.tanh(1.8 * np.sin(2 * np.pi * turns) * np.exp(-seconds / kit.kick_decay_s)) / np.tanh(1.8)
    knock = np.sin(2 * np.pi * (3.1 * kit.kick_hz * seconds)) * np.exp(-seconds / 0.03)
    click = band_noise(rng, len(seconds), 1500.0, 6500.0) * _envelope(seconds, 0.0004, 0.004)
    return np.asarray((0.75 * body + 0.35 * knock) * np.clip(seconds / 0.0012, 0.0, 1.0) + kit.kick_click * click)


def _snare(kit: Kit, seconds: Float64Array, rng: np.random.Generator) -> Float64Array:
    """`[2, N]`: two modes of the head and the wires' noise."""
    modes = ((1.0, 0.05, 1.0), (1.78, 0.035, 0.6))
    head = sum(
        gain * np.sin(2 * np.pi * kit.snare_hz * ratio * seconds) * np.exp(-seconds / decay_s)
        for ratio, decay_s, gain in modes
    )
    wires = band_noise(rng, len(seconds), *kit.snare_band_hz)
    wires *= _envelope(seconds, kit.snare_attack_s, kit.snare_decay_s)
    return np.asarray(kit.snare_tone * head * np.clip(seconds / 0.001, 0.0, 1.0) + wires)


def _hat(kit: Kit, seconds: Float64Array, rng: np.random.Generator) -> Float64Array:
    """`[2, N]`: noise and square waves of unrelated frequencies, of one band."""
    metal = sum(np.sign(np.sin(2 * np.pi * (hz * seconds + rng.random()))) for hz in _METAL_HZ)
    metal = _band(np.broadcast_to(metal, (2, len(seconds))), *kit.hat_band_hz)
    noise = band_noise(rng, len(seconds), *kit.hat_band_hz)
    mixed = kit.hat_metal * metal / np.abs(metal).max() + (1.0 - kit.hat_metal) * noise
    return np.asarray(mixed * _envelope(seconds, 0.0004, kit.hat_decay_s))


def _room(dry: Float64Array, decay_s: float, rng: np.random.Generator) -> Float64Array:
    """The room's answer to `[2, N]`: early reflections that grow into a decaying noise, other ones left and right."""
    seconds = np.arange(dry.shape[1]) / SAMPLE_RATE_HZ
    density = np.clip((seconds - 0.004) / 0.03, 0.0, 1.0)
    echoes = rng.standard_normal((2, len(seconds))) * (rng.random((2, len(seconds))) < 0.01 + 0.2 * density)
    response = _band(echoes * np.exp(-seconds / decay_s) * (seconds > 0.004), 150.0, 7000.0)
    response /= np.sqrt(np.sum(response**2, axis=1, keepdims=True))
    size = 2 * dry.shape[1]
    wet = np.fft.irfft(np.fft.rfft(dry, size) * np.fft.rfft(response, size), size)[:, : dry.shape[1]]
    return np.asarray(2.0 * wet)


@cache
def strikes(layer: str) -> FloatArray:
    """Noise at the start of a note of each of a layer's instruments, f32 `[I, 2, STRIKE_FRAMES * hop]`."""
    seconds = _seconds(STRIKE_FRAMES)
    sounds = np.zeros((len(INSTRUMENTS[layer]), 2, len(seconds)))
    for index, name in enumerate(INSTRUMENTS[layer]):
        if (strike := _STRIKES.get(name)) is not None:
            noise = band_noise(np.random.default_rng([_SEED, 100 + index]), len(seconds), *strike.band_hz)
            noise *= _envelope(seconds, strike.attack_s, strike.decay_s) * _fade_out(seconds, 0.03)
            sounds[index] = strike.peak * noise / np.abs(noise).max()
    return np.asarray(sounds, np.float32)


def band_noise(rng: np.random.Generator, num_samples: int, low_hz: float, high_hz: float) -> Float64Array:
    """Periodic noise `[2, num_samples]` of one band, peak 1; the two channels share most of it."""
    common, own = rng.standard_normal(num_samples), rng.standard_normal((2, num_samples))
    noise = _band(0.85 * common + 0.5 * own, low_hz, high_hz)
    return np.asarray(noise / np.abs(noise).max())


def _band(signal: Float64Array, low_hz: float, high_hz: float) -> Float64Array:
    """A band of `[2, N]`, with soft edges."""
    frequencies = np.fft.rfftfreq(signal.shape[1], 1.0 / SAMPLE_RATE_HZ)
    low = 1.0 / (1.0 + (low_hz / np.maximum(frequencies, 1e-9)) ** 8)
    high = 1.0 / (1.0 + (frequencies / high_hz) ** 8)
    return np.asarray(np.fft.irfft(np.fft.rfft(signal) * low * high, signal.shape[1]))


def _seconds(frames: int) -> Float64Array:
    return np.asarray(np.arange(frames * HOP_SAMPLES) / SAMPLE_RATE_HZ, np.float64)


def _envelope(seconds: Float64Array, attack_s: float, decay_s: float) -> Float64Array:
    return np.asarray(np.clip(seconds / attack_s, 0.0, 1.0) * np.exp(-np.maximum(seconds - attack_s, 0.0) / decay_s))


def _fade_out(seconds: Float64Array, fade_s: float) -> Float64Array:
    return np.asarray(0.5 - 0.5 * np.cos(np.pi * np.clip((seconds[-1] - seconds) / fade_s, 0.0, 1.0)))
