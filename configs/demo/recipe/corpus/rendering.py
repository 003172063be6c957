"""Songs as level curves: the notes of every layer, written into the 64 channels at 25 frames per second."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.drums import write_drums
from configs.demo.recipe.corpus.envelopes import CURVES, ENVELOPE_INDEX, RELEASE_FRAMES, RELEASES, RINGS
from configs.demo.recipe.corpus.form import Bar, Note, bars_of
from configs.demo.recipe.corpus.harmony import write_arp, write_bass, write_pad
from configs.demo.recipe.corpus.melody import write_melody
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.instruments import LAYERS, TIMBRE_CHANNELS, timbre_levels
from configs.demo.recipe.latents import CHANNELS, FloatArray

Rows = npt.NDArray[np.float64]
Frames = npt.NDArray[np.int64]

HALF_FRAME: Final = 0.501
_MIN_FRAMES: Final = 2
_WRITERS: Final[dict[str, Callable[[Song, list[Bar], np.random.Generator], Iterator[Note]]]] = {
    "pad": write_pad,
    "arp": write_arp,
    "bass": write_bass,
    "melody": write_melody,
    "drums": write_drums,
}


def render(song: Song, frames: int, layers: Iterable[str] = LAYERS) -> FloatArray:
    """Levels `[T, C]` in [0, 1] of layers, all of them by default; frame 0 is the first beat of the first bar.

    An outro ends in the last bar.
    """
    notes = notes_of(song, frames / song.frames_per_beat, layers, ends=song.section == "outro")
    return write_levels(song, frames, notes)


def write_levels(song: Song, frames: int, notes: Mapping[str, list[Note]]) -> FloatArray:
    """Levels `[T, C]` in [0, 1] of the notes of each layer at a song's tempo, played by its instruments."""
    levels = np.zeros((frames, CHANNELS), np.float32)
    for layer, played in notes.items():
        levels[:, TIMBRE_CHANNELS[layer]] = timbre_levels(layer, song.instruments[layer])
        _write(levels, played, song.frames_per_beat)
    return levels


def notes_of(
    song: Song, num_beats: float, layers: Iterable[str] = LAYERS, *, ends: bool = False
) -> dict[str, list[Note]]:
    """The notes of each layer, in the bars that begin within `num_beats`; ends: the last of them ends the piece."""
    bars = bars_of(song, math.ceil(num_beats / song.beats_per_bar), ends=ends)
    seeds = {name: index for index, name in enumerate(LAYERS, 1)}
    rngs = {layer: np.random.default_rng([song.seed, seeds[layer]]) for layer in layers}
    return {layer: list(_WRITERS[layer](song, bars, rng)) for layer, rng in rngs.items()}


def nearest_frames(positions: Rows) -> Frames:
    """The frames nearest to positions in frames; halves go down, also where floating point leaves them a bit above."""
    return np.ceil(positions - HALF_FRAME).astype(np.int64)


def _write(levels: FloatArray, notes: list[Note], frames_per_beat: float) -> None:
    """Write the curves of notes; a note ends where the next one of its channel begins."""
    rows = np.array([(n.channel, n.start_beat, n.end_beat, n.velocity, ENVELOPE_INDEX[n.envelope]) for n in notes])
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    channel, envelope = rows[:, 0].astype(np.int64), rows[:, 4].astype(np.int64)
    start, end = _note_frames(rows, channel, envelope, frames_per_beat)
    lengths = np.maximum(end - start, 0)
    note = np.repeat(np.arange(len(lengths)), lengths)
    into = np.arange(len(note)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    left = np.minimum(lengths[note] - 1 - into, RELEASE_FRAMES)
    values = rows[note, 3] * CURVES[envelope[note], into] * RELEASES[envelope[note], left]
    frame = start[note] + into
    is_inside = frame < len(levels)
    levels[frame[is_inside], channel[note[is_inside]]] = values[is_inside]


def _note_frames(rows: Rows, channel: Frames, envelope: Frames, frames_per_beat: float) -> tuple[Frames, Frames]:
    """First frame and the frame after the last of notes, in the order of their channels and starts."""
    start = nearest_frames(rows[:, 1] * frames_per_beat)
    end = np.maximum(nearest_frames(rows[:, 2] * frames_per_beat), start + _MIN_FRAMES) + RINGS[envelope]
    end = np.minimum(end, start + CURVES.shape[1])
    end[:-1] = np.where(channel[1:] == channel[:-1], np.minimum(end[:-1], start[1:]), end[:-1])
    return start, end
