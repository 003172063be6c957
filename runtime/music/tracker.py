"""Notes of latents, frame by frame: the level of each channel of `[notes]` in bundle.toml is that of one MIDI key.

Letters: T frames, C latent channels, K keys of all layers together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import NoNotesError
from runtime.config.bundle import Bundle
from runtime.config.codec import Latents
from runtime.config.notes import NoteLayerSpec, NotesSpec
from runtime.music.score import Instrument, Marker, Note, Part, Score

Levels = NDArray[np.float32]

# The velocity of a note is the highest level of its first frames, so many.
VELOCITY_FRAMES = 5
# A key that sounds is struck again when its level has fallen below this share of its highest, and has risen from there
# by this factor.
DIP, RECOVERY = 0.7, 1.3
# A note began with the first frame of the rise in which it is found, so many frames before at most. A frame below this
# share of the next one is not of the rise: generated levels are never quite still.
MAX_RISE_FRAMES, LEAST_RISE = 2, 0.4
# What is shorter is no note, but for percussion.
MIN_FRAMES = 2


class FrameNote(NamedTuple):
    """A note in frames. key: MIDI's, 0 to 127; velocity: 1 to 127."""

    layer: str
    key: int
    velocity: int
    start_frame: int
    num_frames: int

    @property
    def end_frame(self) -> int:
        """The frame after its last one."""
        return self.start_frame + self.num_frames


class NoteTracker:
    """Finds notes in levels that arrive in pieces, in order, of any length. One thread at a time.

    silence `[C]`. next_frame: the number of the first frame that it gets.
    """

    def __init__(self, spec: NotesSpec, silence: Levels, next_frame: int = 0) -> None:
        self._spec, self.next_frame = spec, next_frame
        keys = [(layer, key) for layer in spec.layers for key in layer.keys]
        self._names = [(layer.name, key) for layer, key in keys]
        self._channels = np.array([channel for layer in spec.layers for channel in layer.channels])
        self._silence = silence[self._channels]  # [K]
        self._min_frames = np.array([1 if layer.is_percussion else MIN_FRAMES for layer, _ in keys])
        size = len(keys)
        self._before = np.zeros(size, np.float32)  # the level in the frame before; all of these are [K]
        self._start = np.full(size, -1)  # of the note that sounds, -1: none
        self._rising = np.full(size, next_frame)  # the first frame of the present rise
        # Of the note that sounds: its highest level, the lowest one since then, the highest one of its first frames.
        self._peak, self._dip, self._attack = (np.zeros(size, np.float32) for _ in range(3))

    def track(self, latents: Latents) -> list[FrameNote]:
        """Take more latents `[T, C]`; returns the notes that end in them, by their end."""
        levels = (latents[:, self._channels] - self._silence) / np.float32(self._spec.scale)  # [T, K]
        found: list[FrameNote] = []
        for frame, level in enumerate(levels, self.next_frame):
            found += self._take(level, frame)
        self.next_frame += len(levels)
        return found

    def copy(self) -> Self:
        """Another one that goes on from here."""
        made = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                setattr(made, name, value.copy())
        return made

    def _take(self, level: Levels, frame: int) -> list[FrameNote]:
        """The level of each key in one frame, `[K]`; the notes that end before it."""
        self._rising[self._before < LEAST_RISE * level] = frame
        self._rising[level <= self._before] = frame + 1
        sounds, is_on = self._start >= 0, level > self._spec.on
        again = sounds & is_on & (self._dip < DIP * self._peak) & (level > RECOVERY * self._dip)
        ends = sounds & (level < self._spec.off)
        begins = (is_on & ~sounds) | again
        starts = np.maximum(self._rising, frame - MAX_RISE_FRAMES)
        found = self._ended(np.flatnonzero(ends | again), np.where(again, starts, frame))
        self._start[ends] = -1
        self._start[begins] = starts[begins]
        self._attack[begins] = self._peak[begins] = 0.0
        is_new = frame - self._start < VELOCITY_FRAMES
        np.maximum(self._attack, level, out=self._attack, where=is_new)
        self._dip = np.where(level > self._peak, level, np.minimum(self._dip, level))
        self._peak = np.maximum(self._peak, level)
        self._before = level
        return found

    def sounding(self) -> list[FrameNote]:
        """The notes that have begun and not ended, as long as they are so far."""
        return self._ended(np.flatnonzero(self._start >= 0), np.full(len(self._start), self.next_frame))

    def _ended(self, places: NDArray[np.int64], ends: NDArray[np.int64]) -> list[FrameNote]:
        """The notes that sound in these places and end before these frames `[K]`."""
        found: list[FrameNote] = []
        for place in places:
            start, num_frames = int(self._start[place]), int(ends[place] - self._start[place])
            if num_frames >= self._min_frames[place]:
                velocity = min(max(round(127 * float(self._attack[place])), 1), 127)
                layer, key = self._names[place]
                found.append(FrameNote(layer, key, velocity, start, num_frames))
        return found


def score_of(
    bundle: Bundle, latents: Latents, said: Mapping[str, Any], sections: Iterable[Mapping[str, Any]] = ()
) -> Score:
    """The score of whole latents `[T, C]`. said: `bpm`, `time_signature` and `key`, as far as they are known.

    sections: a plan's, with `start_s` and `kind`. Raises NoNotesError where the bundle has no [notes].
    """
    spec = bundle.notes
    if spec is None:
        raise NoNotesError(f"bundle {bundle.name!r} has no [notes]: nothing tells its notes", fix="ask for audio")
    silence, frame_s = bundle.silence(1)[0], 1 / bundle.latents.frame_rate_hz
    tracker = NoteTracker(spec, silence)
    found = sorted([*tracker.track(latents), *tracker.sounding()], key=lambda note: (note.start_frame, note.key))
    levels = (latents - silence) / np.float32(spec.scale)
    parts = (
        _part(layer, [note for note in found if note.layer == layer.name], levels, frame_s) for layer in spec.layers
    )
    known: dict[str, Any] = {name: said.get(name) or None for name in ("bpm", "time_signature", "key")}
    markers = tuple(Marker(section["start_s"], section["kind"]) for section in sections)
    return Score(tuple(parts), len(latents) * frame_s, frame_s, sections=markers, **known)


def _part(layer: NoteLayerSpec, found: Sequence[FrameNote], levels: Levels, frame_s: float) -> Part:
    """levels `[T, C]`; the instrument is the one nearest to the median of those frames in which the layer sounds."""
    notes = tuple(
        Note(layer.name, note.key, note.velocity, note.start_frame * frame_s, note.num_frames * frame_s)
        for note in found
    )
    instrument = None
    if found and layer.instruments:
        spans = [np.arange(note.start_frame, note.start_frame + note.num_frames) for note in found]
        timbre = np.median(levels[np.unique(np.concatenate(spans))][:, list(layer.timbre_channels)], axis=0)
        nearest = min(layer.instruments, key=lambda each: float(np.linalg.norm(timbre - each.levels)))
        instrument = Instrument(nearest.name, nearest.program)
    return Part(layer.name, notes, layer.is_percussion, instrument)


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
