"""Natural prompts: sentences about the properties of a song, with random synonyms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.songs import Song
from configs.demo.recipe.corpus.theory import NOTE_NAMES
from configs.demo.recipe.corpus.vocabulary import ONLY, moods_of
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.words import WORDS

_FLAT_NAMES: Final = {"C#": "Db", "D#": "E flat", "F#": "Gb", "G#": "A flat", "A#": "Bb"}
_PLAIN_WORDS: Final[dict[str, tuple[str, ...]]] = {  # the synonyms that read well in a sentence
    "pad": ("pads", "chords"),
    "arp": ("arps", "arpeggios"),
    "bass": ("bass", "bassline"),
    "melody": ("melody", "lead"),
    "drums": ("drums", "beat", "percussion"),
}


@dataclass(frozen=True)
class Request:
    """A prompt, the song that it was drawn from, and what of the song it names.

    instruments_asked: the instruments that it names, by layer.
    """

    prompt: str
    song: Song
    layers_asked: tuple[str, ...]
    layers_excluded: tuple[str, ...]
    names_tempo: bool
    names_key: bool
    instruments_asked: Mapping[str, str]


def draw_request(song: Song, rng: np.random.Generator) -> Request:
    """Draw a sentence about a song: its layers mostly, with instruments and genre, key and mode, tempo, meter, mood."""
    names_layers, names_key, names_tempo = (bool(rng.random() < share) for share in (0.85, 0.75, 0.8))
    players: dict[str, str] = {
        layer: song.instruments[layer] for layer in LAYERS if layer in song.layers and rng.random() < 0.5
    }
    players = players if names_layers else {}
    genre = [song.genre] if names_layers and rng.random() < 0.4 else []
    adjectives = [_word(mood, rng) for mood in moods_of(song) if rng.random() < 0.2]
    section = [_word(f"section:{song.section}", rng)] if song.section and rng.random() < 0.5 else []
    only = [_word(ONLY, rng)] if genre and not song.rule.layer_set <= song.layers else []
    parts = [*only, *adjectives, *genre, *section, _layers(song, players, rng) if names_layers else "music"]
    parts += [_key(song, rng)] if names_key else []
    parts += [f"at {song.bpm} bpm"] if names_tempo else []
    parts += [f"in {song.meter}"] if song.meter != (song.rule.meter if genre else "4/4") else []
    return Request(
        prompt=" ".join(parts),
        song=song,
        layers_asked=tuple(layer for layer in LAYERS if names_layers and layer in song.layers),
        layers_excluded=tuple(layer for layer in LAYERS if names_layers and layer not in song.layers),
        names_tempo=names_tempo,
        names_key=names_key,
        instruments_asked=players,
    )


def _layers(song: Song, players: Mapping[str, str], rng: np.random.Generator) -> str:
    """The song's layers with some of their instruments: every instrument's layer is named right behind it."""
    layers = [str(layer) for layer in rng.permutation([layer for layer in LAYERS if layer in song.layers])]
    words = [f"{players.get(layer, '')} {rng.choice(_PLAIN_WORDS[layer])}".strip() for layer in layers]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _key(song: Song, rng: np.random.Generator) -> str:
    name = NOTE_NAMES[song.root]
    spelled = str(rng.choice([name, name.replace("#", " sharp"), _FLAT_NAMES.get(name, name)]))
    return f"in {spelled} {song.mode}"


def _word(concept: str, rng: np.random.Generator) -> str:
    return str(rng.choice(WORDS[concept].split(", "))).replace("-", " ")
