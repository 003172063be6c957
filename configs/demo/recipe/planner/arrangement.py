"""Song form over minutes: sections in which layers enter and leave, and returns that play what they played before.

A section is a piece of the corpus in its own section's dynamics, from its first bar on. Its notes come from its
*material*, a seed drawn from the song's: an intro, a break and an outro share the verse's, a build the chorus'. An
outro ends on one stroke, the tonic, which is held in its last bar.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.form import Note
from configs.demo.recipe.corpus.rendering import nearest_frames, notes_of, write_levels
from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.theory import GENRE_PROGRESSIONS
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.latents import FloatArray

# Letters: intro, verse, build, chorus, break, outro.
KINDS: Final = {"i": "intro", "v": "verse", "u": "build", "c": "chorus", "b": "break", "o": "outro"}
MATERIALS: Final = {"intro": 0, "verse": 0, "break": 0, "outro": 0, "build": 1, "chorus": 1}
SONG_FORMS: Final = ("ivcvcbco", "ivvcvco", "ivcvcbvco", "vcvcbcco", "ivvbvco", "ivucvucbuco")
DANCE_FORMS: Final = ("iucbuco", "ivucbvuco", "iucvbucco", "vucbucvuco", "iucucbuco")
_DANCE_GENRES: Final = frozenset(
    {"house", "techno", "trance", "drum and bass", "disco", "trap", "synthwave", "chiptune", "ambient", "hip hop"}
)
BAR_COUNTS: Final = (4, 8, 12, 16)
MAX_SECTION_S: Final = 32.0
_RETURN_SHARE: Final = 0.7  # of the returns that have the layers of the first time


@dataclass(frozen=True)
class Section:
    """A part of a song: its kind, one of the corpus' sections, its length and the layers that sound."""

    kind: str
    bars: int
    layers: frozenset[str]


@dataclass(frozen=True)
class Arrangement:
    """A song and its sections in their order."""

    song: Song
    sections: tuple[Section, ...]

    @property
    def start_bars(self) -> list[int]:
        """The first bar of each section, and the bar after the last."""
        return list(accumulate((section.bars for section in self.sections), initial=0))

    @property
    def start_frames(self) -> list[int]:
        """The frame of each section's first beat, and the frame after the last."""
        bar_frames = self.song.beats_per_bar * self.song.frames_per_beat
        return [int(frame) for frame in nearest_frames(bar_frames * np.array(self.start_bars, np.float64))]


def draw_arrangement(song: Song, rng: np.random.Generator) -> Arrangement:
    """Draw the form of a song: as its genre's are, whole, with every section in the layers that suit its kind."""
    forms = DANCE_FORMS if song.genre in _DANCE_GENRES else SONG_FORMS
    sections: list[Section] = []
    for letter in forms[int(rng.integers(len(forms)))]:
        first = next((section for section in sections if section.kind == KINDS[letter]), None)
        if first is None:
            sections.append(_draw_section(song, KINDS[letter], rng))
        elif rng.random() < _RETURN_SHARE:
            sections.append(first)
        else:
            sections.append(replace(first, layers=first.layers | _draw_some(song.layers, 1, rng)))
    return Arrangement(replace(song, section=None), tuple(sections))


def _draw_section(song: Song, kind: str, rng: np.random.Generator) -> Section:
    if kind == "build":  # a chorus' layers without its bass
        return Section(kind, _draw_bars(song, (4, 8), rng), song.layers - {"bass"} or song.layers)
    if kind in ("intro", "outro", "break"):
        tuned = song.layers - {"drums"} or song.layers
        layers = _draw_some(tuned if kind == "break" else song.layers, 2, rng)
        return Section(
            kind, _draw_bars(song, (4, 8), rng), layers if layers & tuned else layers | _draw_some(tuned, 1, rng)
        )
    left_out = int(rng.integers(2)) if kind == "verse" and len(song.layers) > 2 else 0
    return Section(kind, _draw_bars(song, (8, 16), rng), _draw_some(song.layers, len(song.layers) - left_out, rng))


def _draw_some(layers: frozenset[str], most: int, rng: np.random.Generator) -> frozenset[str]:
    """At most so many of some layers."""
    ordered = [layer for layer in LAYERS if layer in layers]
    return frozenset(str(layer) for layer in rng.choice(ordered, min(most, len(ordered)), replace=False))


def _draw_bars(song: Song, options: Sequence[int], rng: np.random.Generator) -> int:
    """A length that is not too long at the song's tempo; 12 bars where its harmony has 12."""
    progressions = GENRE_PROGRESSIONS.get(song.rule.progressions, {}).get(song.mode, ())
    if any(len(progression) == 12 for progression in progressions):
        options = [4 if option == 4 else 12 for option in options]
    bar_s = song.beats_per_bar * 60.0 / song.bpm
    fitting = [option for option in options if option * bar_s <= MAX_SECTION_S] or [4]
    return fitting[int(rng.integers(len(fitting)))]


def section_song(song: Song, section: Section) -> Song:
    """What a section plays: the song in its section's dynamics, with the seed of its material."""
    return replace(song, section=section.kind, layers=section.layers, seed=song.seed + MATERIALS[section.kind])


def notes_of_arrangement(arrangement: Arrangement) -> dict[str, list[Note]]:
    """The notes of each layer of all sections."""
    song, notes = arrangement.song, defaultdict[str, list[Note]](list)
    for section, bar in zip(arrangement.sections, arrangement.start_bars, strict=False):
        start = float(bar * song.beats_per_bar)
        played = section_song(song, section)
        sounding = [layer for layer in LAYERS if layer in section.layers]
        written = notes_of(played, section.bars * song.beats_per_bar, sounding, ends=section.kind == "outro")
        for layer, listed in written.items():
            notes[layer] += [n._replace(start_beat=n.start_beat + start, end_beat=n.end_beat + start) for n in listed]
    return dict(notes)


def render_arrangement(arrangement: Arrangement) -> FloatArray:
    """Levels `[T, C]` in [0, 1] of a whole song; frame 0 is its first beat."""
    return write_levels(arrangement.song, arrangement.start_frames[-1], notes_of_arrangement(arrangement))
