"""What a prompt can ask for: the concepts, what they mean for a song, and the words for them.

A *concept* is one condition token of the decoder, such as `key:a`, `bpm:120` or `layer:pad`. Many words lead to one concept.
"""

from typing import Final

import numpy as np

from engine_build.demo_model.corpus import LAYERS, TEMPOS_BPM, Song
from engine_build.demo_model.music import BRIGHT_MODES, DARK_MODES, MODES, NOTE_NAMES

KEY_CONCEPTS: Final = tuple(f"key:{name.lower()}" for name in NOTE_NAMES)
MODE_CONCEPTS: Final = tuple(f"mode:{mode}" for mode in MODES)
BPM_CONCEPTS: Final = tuple(f"bpm:{bpm}" for bpm in TEMPOS_BPM)
LAYER_CONCEPTS: Final = tuple(f"layer:{layer}" for layer in LAYERS)
NO_LAYER_CONCEPTS: Final = tuple(f"no:{layer}" for layer in LAYERS)
TEMPO_WORDS_BPM: Final[dict[str, tuple[int, ...]]] = {
    "tempo:slow": (70, 80),
    "tempo:medium": (90, 100, 110),
    "tempo:fast": (120, 132),
}
MOOD_CONCEPTS: Final = (
    "mood:dark",
    "mood:bright",
    "mood:sparse",
    "mood:dense",
    "mood:soft",
    "mood:loud",
    "mood:calm",
    "mood:energetic",
)

# The order is part of the trained model: a concept's place here is its row in the embedding table.
CONCEPTS: Final = (
    *KEY_CONCEPTS,
    *MODE_CONCEPTS,
    *TEMPO_WORDS_BPM,
    *BPM_CONCEPTS,
    *LAYER_CONCEPTS,
    *NO_LAYER_CONCEPTS,
    *MOOD_CONCEPTS,
)
CONCEPT_IDS: Final[dict[str, int]] = {concept: index for index, concept in enumerate(CONCEPTS)}


def moods_of(song: Song) -> tuple[str, ...]:
    """Every mood concept that is true of a song."""
    truths = {
        "mood:dark": song.mode in DARK_MODES,
        "mood:bright": song.mode in BRIGHT_MODES,
        "mood:sparse": song.density == 0,
        "mood:dense": song.density == 2,
        "mood:soft": song.loudness == 0,
        "mood:loud": song.loudness == 2,
        "mood:calm": song.density == 0 and song.loudness < 2,
        "mood:energetic": song.density == 2 and song.loudness > 0,
    }
    return tuple(mood for mood in MOOD_CONCEPTS if truths[mood])


def tempo_word_of(song: Song) -> str:
    """The tempo word that fits a song."""
    return next(word for word, tempos in TEMPO_WORDS_BPM.items() if song.bpm in tempos)


def draw_concepts(song: Song, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw what a prompt might say about a song; sometimes nothing at all.

    Where layers are named, all of the song's layers are: a prompt that names layers means exactly those.
    """
    concepts: list[str] = []
    if rng.random() < 0.6:
        concepts.append(KEY_CONCEPTS[song.root])
    if rng.random() < (0.75 if concepts else 0.25):
        concepts.append(f"mode:{song.mode}")
    concepts += _draw_tempo(song, rng)
    concepts += _draw_layers(song, rng)
    concepts += [mood for mood in moods_of(song) if rng.random() < 0.3]
    return tuple(concepts)


def _draw_tempo(song: Song, rng: np.random.Generator) -> list[str]:
    choice = rng.random()
    bpm, word = f"bpm:{song.bpm}", tempo_word_of(song)
    if choice < 0.35:
        return [bpm]
    if choice < 0.6:
        return [word]
    return [bpm, word] if choice < 0.65 else []


def _draw_layers(song: Song, rng: np.random.Generator) -> list[str]:
    choice = rng.random()
    if choice < 0.65:
        return [f"layer:{layer}" for layer in LAYERS if layer in song.layers]
    absent = [layer for layer in LAYERS if layer not in song.layers]
    if choice < 0.8 and absent:
        return [f"no:{layer}" for layer in absent if rng.random() < 0.5]
    return []
