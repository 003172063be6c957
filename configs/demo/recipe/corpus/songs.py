"""Songs: what a prompt can ask for, and a seed for everything else; deterministic per seed.

`rendering.render` writes a song's notes. A layer's notes depend on the song, never on which other layers sound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.genres import BEATS_PER_BAR, GENRES, METERS, Genre
from configs.demo.recipe.corpus.theory import MODES
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS
from configs.demo.recipe.latents import FRAME_RATE_HZ

BPM_RANGE: Final = (60, 180)
SECTIONS: Final = ("intro", "verse", "chorus", "break", "build", "outro")
DENSITIES: Final = ("sparse", "medium", "dense")
LOUDNESSES: Final = ("soft", "medium", "loud")
ARTICULATIONS: Final = ("staccato", "normal", "legato")

_MODE_WEIGHTS: Final = (0.22, 0.22, 0.1, 0.08, 0.08, 0.06, 0.06, 0.06, 0.06, 0.06)
_LAYER_COUNT_WEIGHTS: Final = (0.26, 0.20, 0.20, 0.17, 0.17)


@dataclass(frozen=True)
class Song:
    """Everything that a prompt can name, and the seed that decides the rest.

    bpm: beats of a minute, in 6/8 dotted quarters. layers: those that are asked for. instruments: one for every layer.
    section: one of `SECTIONS` or None for a whole song. density, loudness, articulation: 0..2.
    """

    root: int
    mode: str
    bpm: int
    meter: str
    genre: str
    layers: frozenset[str]
    instruments: Mapping[str, str]
    section: str | None
    density: int
    loudness: int
    articulation: int
    seed: int

    @property
    def frames_per_beat(self) -> float:
        """Frames from beat to beat; not a whole number for most tempos."""
        return FRAME_RATE_HZ * 60.0 / self.bpm

    @property
    def beats_per_bar(self) -> int:
        """4, 3, or 2 in 6/8."""
        return BEATS_PER_BAR[self.meter]

    @property
    def rule(self) -> Genre:
        """The rule of its genre."""
        return GENRES[self.genre]


def draw_song(rng: np.random.Generator) -> Song:
    """Draw a song's properties: mostly what its genre suggests, but any key, tempo, layer set and instrument occurs."""
    genre = str(rng.choice(list(GENRES)))
    rule = GENRES[genre]
    bpm_range = rule.bpm if rng.random() < 0.6 else BPM_RANGE
    return Song(
        root=int(rng.integers(12)),
        mode=str(rng.choice(rule.modes) if rng.random() < 0.5 else rng.choice(list(MODES), p=_MODE_WEIGHTS)),
        bpm=int(rng.integers(bpm_range[0], bpm_range[1] + 1)),
        meter=rule.meter if rng.random() < 0.8 else str(rng.choice(METERS)),
        genre=genre,
        layers=rule.layer_set if rng.random() < 0.35 else _draw_layers(rng),
        instruments=draw_instruments(rng, genre),
        section=str(rng.choice(SECTIONS)) if rng.random() < 0.35 else None,
        density=int(rng.choice(3, p=(0.2, 0.6, 0.2))),
        loudness=int(rng.choice(3, p=(0.2, 0.6, 0.2))),
        articulation=int(rng.choice(3, p=(0.12, 0.7, 0.18))),
        seed=int(rng.integers(2**31)),
    )


def _draw_layers(rng: np.random.Generator) -> frozenset[str]:
    count = 1 + int(rng.choice(len(LAYERS), p=_LAYER_COUNT_WEIGHTS))
    return frozenset(str(layer) for layer in rng.choice(LAYERS, size=count, replace=False))


def draw_instruments(rng: np.random.Generator, genre: str) -> Mapping[str, str]:
    """An instrument for every layer: one of the genre's or any. Songs that differ in them have the same notes."""
    return {layer: _draw_instrument(layer, GENRES[genre], rng) for layer in LAYERS}


def _draw_instrument(layer: str, rule: Genre, rng: np.random.Generator) -> str:
    options = rule.instruments[layer] if rng.random() < 0.6 else INSTRUMENTS[layer]
    return options[int(rng.integers(len(options)))]
