"""The corpus: songs written by rule, deterministic per seed, as level curves at 25 frames per second.

A `Song` is what a prompt can ask for plus a seed for everything else; `render` writes its notes and their level curves.
Each layer has its own register (and the drums their own channels), so that a layer can be measured in the latents.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from engine_build.demo_model.corpus.theory import (
    MODES,
    PROGRESSIONS,
    chord_pitch_classes,
    chord_pitches,
    lead_voices,
    scale_pitches,
)
from engine_build.demo_model.latents import CHANNELS, FIRST_PITCH, FRAME_RATE_HZ, HAT, KICK, SNARE, FloatArray

LAYERS: Final = ("pad", "arp", "bass", "melody", "drums")
REGISTERS: Final[dict[str, tuple[int, int]]] = {
    "bass": (36, 47),
    "pad": (48, 63),
    "arp": (64, 78),
    "melody": (79, 95),
}
# Less than an octave apart, so that a tempo cannot be mistaken for its double, and 9% or more between neighbours.
TEMPOS_BPM: Final = (70, 80, 90, 100, 110, 120, 132)
BEATS_PER_BAR: Final = 4
HALF_FRAME: Final = 0.501
DENSITIES: Final = ("sparse", "medium", "dense")
LOUDNESSES: Final = ("soft", "medium", "loud")

_MODE_WEIGHTS: Final = (0.26, 0.26, 0.12, 0.12, 0.12, 0.12)
_LAYER_COUNT_WEIGHTS: Final = (0.14, 0.20, 0.24, 0.22, 0.20)
_LOUDNESS_VELOCITY: Final = (0.55, 0.75, 0.95)
_PHRASE_SWELL: Final = (0.92, 0.97, 1.0, 0.95)


@dataclass(frozen=True)
class Song:
    """Everything that a prompt can name, and the seed that decides the rest."""

    root: int
    mode: str
    bpm: int
    layers: frozenset[str]
    density: int
    loudness: int
    seed: int

    @property
    def frames_per_beat(self) -> float:
        """Frames from beat to beat; not a whole number for most tempos."""
        return FRAME_RATE_HZ * 60.0 / self.bpm


@dataclass(frozen=True)
class Note:
    """One note: a channel, when, how loud, and which level curve it follows."""

    channel: int
    start_beat: float
    length_beats: float
    velocity: float
    envelope: str


@dataclass(frozen=True)
class Bar:
    """One bar of the song: where it starts and what harmony it has."""

    index: int
    chord: tuple[int, ...]
    voicing: tuple[int, ...]
    velocity: float

    @property
    def start_beat(self) -> int:
        """First beat of the bar, counted from the start of the song."""
        return self.index * BEATS_PER_BAR


def draw_song(rng: np.random.Generator) -> Song:
    """Draw a song's properties; every key, tempo and mode occurs, with any set of layers."""
    num_layers = 1 + int(rng.choice(len(LAYERS), p=_LAYER_COUNT_WEIGHTS))
    layers = rng.choice(LAYERS, size=num_layers, replace=False)
    return Song(
        root=int(rng.integers(12)),
        mode=str(rng.choice(list(MODES), p=_MODE_WEIGHTS)),
        bpm=int(rng.choice(TEMPOS_BPM)),
        layers=frozenset(str(layer) for layer in layers),
        density=int(rng.integers(len(DENSITIES))),
        loudness=int(rng.integers(len(LOUDNESSES))),
        seed=int(rng.integers(2**31)),
    )


def render(song: Song, frames: int) -> FloatArray:
    """Levels `[T, C]` in [0, 1] of the first `frames` frames; frame 0 is the first beat of the first bar."""
    levels = np.zeros((frames, CHANNELS), np.float32)
    for note in notes(song, frames / song.frames_per_beat):
        _write(levels, note, song.frames_per_beat)
    return levels


def notes(song: Song, num_beats: float) -> Iterator[Note]:
    """All notes of the song's layers that start within `num_beats`, layer by layer."""
    bars = list(_bars(song, int(np.ceil(num_beats / BEATS_PER_BAR))))
    for index, layer in enumerate(LAYERS):
        if layer in song.layers:
            rng = np.random.default_rng([song.seed, index + 1])
            yield from _WRITERS[layer](song, bars, rng)


def _bars(song: Song, num_bars: int) -> Iterator[Bar]:
    rng = np.random.default_rng([song.seed, 0])
    options = PROGRESSIONS[song.mode]
    progression = options[int(rng.integers(len(options)))]
    size = 4 if rng.random() < 0.3 else 3
    voicing: tuple[int, ...] = ()
    for index in range(num_bars):
        chord = chord_pitch_classes(song.root, song.mode, progression[index % 4], size)
        voicing = lead_voices(chord, voicing, *REGISTERS["pad"])
        yield Bar(index, chord, voicing, _LOUDNESS_VELOCITY[song.loudness] * _PHRASE_SWELL[index % 4])


# Level curves -------------------------------------------------------------------------------------------------------


def _pad_curve(frames: int) -> FloatArray:
    curve = np.linspace(0.85, 0.65, frames, dtype=np.float32)
    ramp = np.array([0.3, 0.6, 0.9], np.float32)[:frames]
    curve[: len(ramp)] *= ramp
    curve[-2:] *= np.array([0.6, 0.25], np.float32)[-frames:]
    return curve


def _decay_curve(frames: int, per_frame: float, release: float) -> FloatArray:
    curve = np.power(np.float32(per_frame), np.arange(frames, dtype=np.float32))
    curve[-1] *= release
    return curve


def _melody_curve(frames: int) -> FloatArray:
    curve = _decay_curve(frames, 0.97, 0.3)
    curve[0] *= 0.8
    return curve


_ENVELOPES: Final[dict[str, Callable[[int], FloatArray]]] = {
    "pad": _pad_curve,
    "arp": lambda frames: _decay_curve(frames, 0.76, 0.7),
    "bass": lambda frames: _decay_curve(frames, 0.95, 0.3),
    "melody": _melody_curve,
    "kick": lambda frames: np.array([1.0, 0.4, 0.1], np.float32),
    "snare": lambda frames: np.array([1.0, 0.45, 0.15], np.float32),
    "hat": lambda frames: np.array([0.8, 0.2], np.float32),
}


def nearest_frame(position: float) -> int:
    """The frame nearest to a position in frames; halves go down, also where floating point leaves them a bit above."""
    return math.ceil(position - HALF_FRAME)


def _write(levels: FloatArray, note: Note, frames_per_beat: float) -> None:
    start = nearest_frame(note.start_beat * frames_per_beat)
    end = nearest_frame((note.start_beat + note.length_beats) * frames_per_beat)
    curve = _ENVELOPES[note.envelope](max(end - start, 2)) * np.float32(note.velocity)
    target = levels[start : start + len(curve), note.channel]
    np.maximum(target, curve[: len(target)], out=target)


# Layers -------------------------------------------------------------------------------------------------------------


def _write_pad(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    length = (4.0, 2.0, 1.0)[song.density]
    for bar in bars:
        for beat in np.arange(0.0, BEATS_PER_BAR, length):
            velocity = bar.velocity * (1.0 if beat == 0 else 0.85)
            for pitch in bar.voicing:
                yield Note(pitch - FIRST_PITCH, bar.start_beat + float(beat), length, velocity, "pad")


_ARP_SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "up": (0, 1, 2, 3),
    "down": (3, 2, 1, 0),
    "wave": (0, 1, 2, 1),
    "broken": (0, 2, 1, 3),
}


def _write_arp(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    shape = _ARP_SHAPES[str(rng.choice(list(_ARP_SHAPES)))]
    step = (1.0, 0.5, 0.25 if song.bpm <= 100 else 0.5)[song.density]
    for bar in bars:
        pitches = chord_pitches(bar.chord, *REGISTERS["arp"])
        for index, beat in enumerate(np.arange(0.0, BEATS_PER_BAR, step)):
            pitch = pitches[min(shape[index % 4], len(pitches) - 1)]
            velocity = bar.velocity * _accent(float(beat))
            yield Note(pitch - FIRST_PITCH, bar.start_beat + float(beat), step * 1.9, velocity, "arp")


def _accent(beat: float) -> float:
    """Metric weight of a position in the bar: downbeat, beat, eighth, sixteenth."""
    if beat == 0.0:
        return 1.0
    if beat % 1.0 == 0.0:
        return 0.9
    return 0.65 if beat % 0.5 == 0.0 else 0.5


_BASS_RHYTHMS: Final[tuple[tuple[tuple[tuple[float, float], ...], ...], ...]] = (
    (((0.0, 4.0),), ((0.0, 2.0), (2.0, 2.0)), ((0.0, 3.0), (3.0, 1.0))),
    (
        ((0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0)),
        ((0.0, 1.5), (1.5, 0.5), (2.0, 1.0), (3.0, 1.0)),
        ((0.0, 1.0), (1.0, 1.0), (2.0, 1.5), (3.5, 0.5)),
    ),
    (
        tuple((beat / 2, 0.5) for beat in range(8)),
        ((0.0, 1.0), (1.0, 0.5), (1.5, 0.5), (2.0, 1.0), (3.0, 0.5), (3.5, 0.5)),
    ),
)


def _write_bass(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    options = _BASS_RHYTHMS[song.density]
    rhythm = options[int(rng.integers(len(options)))]
    fifth_at = int(rng.integers(1, 4))
    for bar in bars:
        for index, (beat, length) in enumerate(rhythm):
            pitch_class = bar.chord[2] if index and index % 4 == fifth_at else bar.chord[0]
            velocity = bar.velocity * _accent(beat)
            yield Note(pitch_class, bar.start_beat + beat, length, velocity, "bass")


_MELODY_RHYTHMS: Final[tuple[tuple[tuple[float, ...], ...], ...]] = (
    ((0.0, 2.0), (0.0, 3.0), (0.0,)),
    ((0.0, 1.0, 2.0), (0.0, 1.0, 2.0, 3.0), (0.0, 1.5, 2.0), (0.0, 2.0, 3.0)),
    ((0.0, 0.5, 1.0, 2.0, 3.0), (0.0, 1.0, 1.5, 2.0, 3.0, 3.5), (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)),
)


def _write_melody(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    scale = scale_pitches(song.root, song.mode, *REGISTERS["melody"])
    options = _MELODY_RHYTHMS[song.density]
    motif = [_draw_motif_bar(options[int(rng.integers(len(options)))], rng) for _ in range(2)]
    for bar in bars:
        position = _nearest(scale, bar.chord, len(scale) // 2)
        for beat, length, step in motif[bar.index % 2]:
            position = int(np.clip(position + step, 0, len(scale) - 1))
            pitch = scale[_nearest(scale, bar.chord, position) if beat % 2.0 == 0.0 else position]
            yield Note(pitch - FIRST_PITCH, bar.start_beat + beat, length, bar.velocity * _accent(beat), "melody")


def _draw_motif_bar(rhythm: tuple[float, ...], rng: np.random.Generator) -> list[tuple[float, float, int]]:
    """Start beat, length in beats and scale step from the note before, for each note of a bar."""
    ends = (*rhythm[1:], 4.0)
    steps = rng.choice([-2, -1, -1, 1, 1, 2], size=len(rhythm))
    return [(beat, min(end - beat, 2.0), int(step)) for beat, end, step in zip(rhythm, ends, steps, strict=True)]


def _nearest(scale: tuple[int, ...], chord: tuple[int, ...], position: int) -> int:
    """Index of the scale pitch nearest to `position` that belongs to the chord; the lower one of two."""
    tones = [index for index, pitch in enumerate(scale) if pitch % 12 in chord]
    return min(tones, key=lambda index: (abs(index - position), index))


_KICKS: Final = (
    ((0.0, 2.0), (0.0, 2.5)),
    ((0.0, 1.0, 2.0, 3.0), (0.0, 2.0, 2.5), (0.0, 1.5, 2.0)),
    ((0.0, 1.0, 2.0, 3.0), (0.0, 0.5, 2.0, 2.5), (0.0, 1.0, 2.0, 2.5, 3.0)),
)
_SNARES: Final = (((2.0,), (1.0, 3.0)), ((1.0, 3.0),), ((1.0, 3.0), (1.0, 3.0, 3.5)))
_HAT_STEPS: Final = (1.0, 0.5, 0.5)
_FILL: Final = ((3.0, 0.6), (3.25, 0.7), (3.5, 0.85), (3.75, 1.0))


def _write_drums(song: Song, bars: list[Bar], rng: np.random.Generator) -> Iterator[Note]:
    kicks = _KICKS[song.density][int(rng.integers(len(_KICKS[song.density])))]
    snares = _SNARES[song.density][int(rng.integers(len(_SNARES[song.density])))]
    has_fills = song.density > 0 and rng.random() < 0.7
    for bar in bars:
        fill = has_fills and bar.index % 4 == 3
        yield from (_hit(bar, KICK, "kick", beat, 1.0) for beat in kicks)
        yield from (_hit(bar, SNARE, "snare", beat, 0.9) for beat in snares if not (fill and beat >= 3.0))
        for beat in np.arange(0.0, BEATS_PER_BAR, _HAT_STEPS[song.density]):
            yield _hit(bar, HAT, "hat", float(beat), _accent(float(beat)))
        if fill:
            yield from (_hit(bar, SNARE, "snare", beat, weight) for beat, weight in _FILL)


def _hit(bar: Bar, channel: int, envelope: str, beat: float, weight: float) -> Note:
    return Note(channel, bar.start_beat + beat, 0.25, bar.velocity * weight, envelope)


_WRITERS: Final[dict[str, Callable[[Song, list[Bar], np.random.Generator], Iterator[Note]]]] = {
    "pad": _write_pad,
    "arp": _write_arp,
    "bass": _write_bass,
    "melody": _write_melody,
    "drums": _write_drums,
}
