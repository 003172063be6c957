"""Notes as latents: levels of keys that generations follow as hints, or that are written into what they have made.

Letters: T frames, C latent channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import RequestError
from runtime.config.codec import Latents
from runtime.config.notes import EnvelopeSpec, NoteLayerSpec, NotesSpec
from runtime.music.envelopes import PLAIN, envelope_of, level_curve
from runtime.music.tracker import FrameNote

MIN_FRAMES = 2
OCTAVE = 12


class GivenNote(Protocol):
    """A note that a caller gives. pitch: MIDI's; layer None: the one that has the pitch."""

    @property
    def layer(self) -> str | None: ...
    @property
    def pitch(self) -> int: ...
    @property
    def velocity(self) -> int: ...
    @property
    def start_s(self) -> float: ...
    @property
    def seconds(self) -> float: ...


class Phrase(NamedTuple):
    """Notes of a layer, which has no others from `start_frame` to before `end_frame`."""

    layer: str
    start_frame: int
    end_frame: int
    notes: tuple[FrameNote, ...]

    def moved(self, frames: int) -> Phrase:
        """The same so many frames later."""
        notes = tuple(note._replace(start_frame=note.start_frame + frames) for note in self.notes)
        return Phrase(self.layer, self.start_frame + frames, self.end_frame + frames, notes)


def phrases_of(spec: NotesSpec, notes: Sequence[GivenNote], frame_rate_hz: float) -> tuple[Phrase, ...]:
    """A phrase for each layer, from its first note to the end of its last one. Raises RequestError."""
    found: dict[str, list[FrameNote]] = {}
    for index, note in enumerate(notes):
        placed = frame_note(spec, note, frame_rate_hz, f"notes.{index}")
        found.setdefault(placed.layer, []).append(placed)
    return tuple(
        Phrase(layer, min(note.start_frame for note in those), max(note.end_frame for note in those), tuple(those))
        for layer, those in found.items()
    )


def frame_note(spec: NotesSpec, note: GivenNote, frame_rate_hz: float, field: str) -> FrameNote:
    """A note in frames, with a key of its layer. field: names it in errors. Raises RequestError."""
    layer, key = key_of(spec, note.layer, note.pitch, field)
    start = round(note.start_s * frame_rate_hz)
    num_frames = max(MIN_FRAMES, round((note.start_s + note.seconds) * frame_rate_hz) - start)
    return FrameNote(layer.name, key, note.velocity, start, num_frames)


def key_of(spec: NotesSpec, name: str | None, pitch: int, field: str = "notes") -> tuple[NoteLayerSpec, int]:
    """Layer and key of a pitch: by octaves into the layer's keys; of percussion the nearest key.

    name: of the layer; None: the one that has the pitch, else the pitched one whose keys are nearest. Raises
    RequestError.
    """
    if name is None:
        layer = _nearest_layer(spec, pitch)
    else:
        named = [layer for layer in spec.layers if layer.name == name]
        if not named:
            names = ", ".join(layer.name for layer in spec.layers)
            raise RequestError(f"there is no layer {name!r:.60}", field=f"{field}.layer", fix=f"one of {names}")
        layer = named[0]
    keys = [key for key in layer.keys if layer.is_percussion or (key - pitch) % OCTAVE == 0]
    if not keys:
        raise RequestError(
            f"layer {layer.name!r} has no key of pitch {pitch} in any octave",
            field=f"{field}.pitch",
            fix=f"its keys are {', '.join(map(str, layer.keys))}",
        )
    return layer, min(keys, key=lambda key: abs(key - pitch))


def _nearest_layer(spec: NotesSpec, pitch: int) -> NoteLayerSpec:
    pitched = [layer for layer in spec.layers if not layer.is_percussion] or list(spec.layers)
    return min(pitched, key=lambda layer: min(abs(key - pitch) for key in layer.keys))


def with_notes(
    latents: Latents,
    phrases: Iterable[Phrase],
    spec: NotesSpec,
    silence: Latents,
    start_frame: int = 0,
    share: float | NDArray[np.float32] = 1.0,
    envelope: EnvelopeSpec | None = None,
) -> Latents:
    """Latents `[T, C]` from `start_frame` on, with these notes alone in the layers of phrases; all else stays.

    silence `[C]`. share: how much of the notes, a number or `[T]`; the rest is what was there. envelope: of all notes;
    None: those of the instruments that play in the latents.
    """
    made, num_frames = np.array(latents, np.float32), len(latents)
    shares = np.broadcast_to(np.asarray(share, np.float32), (num_frames,))[:, None]  # [T, 1]
    layers = {layer.name: layer for layer in spec.layers}
    for phrase in phrases:
        first, last = (min(max(frame - start_frame, 0), num_frames) for frame in phrase[1:3])
        if first >= last:
            continue
        layer = layers[phrase.layer]
        channels = list(layer.channels)
        curve = envelope or envelope_of(spec, layer, made[first:last], silence) or PLAIN
        levels = note_levels(layer, phrase.notes, start_frame + first, last - first, curve)  # [n, K]
        played = silence[channels] + np.float32(spec.scale) * levels
        here = shares[first:last]
        made[first:last, channels] = here * played + (1 - here) * made[first:last, channels]
    return made


def phrase_mask(
    phrases: Iterable[Phrase], spec: NotesSpec, shape: tuple[int, ...], start_frame: int = 0
) -> NDArray[np.bool_]:
    """`[T, C]` of this shape, from `start_frame` on: where the layers of phrases have only their notes."""
    mask, layers = np.zeros(shape, bool), {layer.name: layer for layer in spec.layers}
    for phrase in phrases:
        first, last = (max(frame - start_frame, 0) for frame in phrase[1:3])
        mask[first:last, list(layers[phrase.layer].channels)] = True
    return mask


def note_levels(
    layer: NoteLayerSpec,
    notes: Iterable[FrameNote],
    start_frame: int,
    num_frames: int,
    envelope: EnvelopeSpec = PLAIN,
) -> NDArray[np.float32]:
    """Levels `[num_frames, K]` of a layer's keys; a note ends where the next one of its key begins."""
    levels = np.zeros((num_frames, len(layer.keys)), np.float32)
    ordered = sorted(notes, key=lambda note: note.start_frame)
    next_starts: dict[int, int] = {}
    for note in reversed(ordered):
        end = min(note.end_frame, next_starts.get(note.key, note.end_frame))
        next_starts[note.key] = note.start_frame
        first, last = max(note.start_frame, start_frame), min(end, start_frame + num_frames)
        if first < last:
            curve = level_curve(envelope, end - note.start_frame) * np.float32(note.velocity / 127)  # [n]
            part = curve[first - note.start_frame : last - note.start_frame]
            levels[first - start_frame : last - start_frame, layer.keys.index(note.key)] = part
    return levels
