"""Natural prompts: sentences about the properties of a song, with random synonyms."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from engine_build.demo_model.corpus.songs import LAYERS, Song
from engine_build.demo_model.corpus.theory import NOTE_NAMES
from engine_build.demo_model.corpus.vocabulary import TEMPO_WORDS_BPM, moods_of
from engine_build.demo_model.tokenizer import WORDS

_FLAT_NAMES: Final = {"C#": "Db", "D#": "E flat", "F#": "Gb", "G#": "A flat", "A#": "Bb"}
_PLAIN_WORDS: Final[dict[str, str]] = {  # the synonyms that read well in a sentence
    "layer:pad": "pads strings chords",
    "layer:arp": "arps arpeggios plucks",
    "layer:bass": "bass bassline",
    "layer:melody": "melody lead",
    "layer:drums": "drums beat percussion",
}


@dataclass(frozen=True)
class Request:
    """A prompt, the song that it was drawn from, and what of the song it names."""

    prompt: str
    song: Song
    layers_asked: tuple[str, ...]
    layers_excluded: tuple[str, ...]
    names_tempo: bool
    names_key: bool


def draw_request(song: Song, rng: np.random.Generator) -> Request:
    """Draw a sentence about a song: its layers mostly, key and mode together, tempo as a word or a number, moods."""
    names_layers, names_key = bool(rng.random() < 0.85), bool(rng.random() < 0.75)
    tempo = _draw_tempo(song, rng)
    moods = [_word(mood, rng) for mood in moods_of(song) if rng.random() < 0.25]
    adjectives = " ".join([*([tempo] if "bpm" not in tempo else []), *moods])
    parts = [adjectives, _layers(song, rng) if names_layers else "music", _key(song, rng) if names_key else ""]
    parts.append(f"at {tempo}" if "bpm" in tempo else "")
    return Request(
        prompt=" ".join(part for part in parts if part),
        song=song,
        layers_asked=tuple(layer for layer in LAYERS if names_layers and layer in song.layers),
        layers_excluded=tuple(layer for layer in LAYERS if names_layers and layer not in song.layers),
        names_tempo=bool(tempo),
        names_key=names_key,
    )


def _draw_tempo(song: Song, rng: np.random.Generator) -> str:
    if rng.random() < 0.2:
        return ""
    words = [word for word, bpm in TEMPO_WORDS_BPM.items() if bpm == song.bpm]
    return _word(words[0], rng) if words and rng.random() < 0.6 else f"{song.bpm} bpm"


def _layers(song: Song, rng: np.random.Generator) -> str:
    layers = rng.permutation([layer for layer in LAYERS if layer in song.layers])
    words = [str(rng.choice(_PLAIN_WORDS[f"layer:{layer}"].split())) for layer in layers]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _key(song: Song, rng: np.random.Generator) -> str:
    name = NOTE_NAMES[song.root]
    spelled = str(rng.choice([name, name.replace("#", " sharp"), _FLAT_NAMES.get(name, name)]))
    return f"in {spelled} {song.mode}"


def _word(concept: str, rng: np.random.Generator) -> str:
    return str(rng.choice(WORDS[concept].split()))
