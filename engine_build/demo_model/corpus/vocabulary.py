"""What a prompt can ask for: the concepts, what they mean for a song, and the words for them.

A *concept* is the meaning of a word, such as `key:a`, `bpm:120` or `layer:pad`; several words map to one concept. Every
concept is a condition token of the decoder. A key and a mode together give one more token, their scale; token
`ALWAYS_ID` is in every prompt; alone it is the empty prompt.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from engine_build.demo_model.corpus.songs import LAYERS, TEMPOS_BPM, Song
from engine_build.demo_model.corpus.theory import BRIGHT_MODES, DARK_MODES, MODES, NOTE_NAMES, scale_pitch_classes
from engine_build.demo_model.latents import FloatArray

KEY_CONCEPTS: Final = tuple(f"key:{name.lower()}" for name in NOTE_NAMES)
MODE_CONCEPTS: Final = tuple(f"mode:{mode}" for mode in MODES)
BPM_CONCEPTS: Final = tuple(f"bpm:{bpm}" for bpm in TEMPOS_BPM)
LAYER_CONCEPTS: Final = tuple(f"layer:{layer}" for layer in LAYERS)
NO_LAYER_CONCEPTS: Final = tuple(f"no:{layer}" for layer in LAYERS)
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

# The order is part of the trained model: a concept's place here is its row in the table of tokens.
CONCEPTS: Final = (
    *KEY_CONCEPTS,
    *MODE_CONCEPTS,
    *BPM_CONCEPTS,
    *LAYER_CONCEPTS,
    *NO_LAYER_CONCEPTS,
    *MOOD_CONCEPTS,
)
# What a tempo word means where no number is named. These are no tokens of their own.
TEMPO_WORDS_BPM: Final[dict[str, int]] = {"tempo:slow": 70, "tempo:medium": 100, "tempo:fast": 120}
WORD_CONCEPTS: Final = (*CONCEPTS, *TEMPO_WORDS_BPM)
CONCEPT_IDS: Final[dict[str, int]] = {concept: index for index, concept in enumerate(WORD_CONCEPTS)}
FIRST_SCALE_ID: Final = len(CONCEPTS)
ALWAYS_ID: Final = FIRST_SCALE_ID + len(KEY_CONCEPTS) * len(MODE_CONCEPTS)
NUM_TOKENS: Final = ALWAYS_ID + 1


def scale_id(root: int, mode_index: int) -> int:
    """Token of a key and a mode together."""
    return FIRST_SCALE_ID + root * len(MODE_CONCEPTS) + mode_index


def token_ids(concepts: Iterable[str]) -> list[int]:
    """Sorted tokens of concepts, with the scales of their keys and modes, without ALWAYS_ID."""
    named = set(concepts)
    roots = [root for root, key in enumerate(KEY_CONCEPTS) if key in named]
    modes = [index for index, mode in enumerate(MODE_CONCEPTS) if mode in named]
    return sorted([*(CONCEPT_IDS[concept] for concept in named), *(scale_id(r, m) for r in roots for m in modes)])


def fixed_columns() -> FloatArray:
    """Columns of the token table that are written, not learned, f32 `[NUM_TOKENS, 7 + 12]`.

    The first seven are the tempo of a token, one-hot; the others, which pitch classes a scale has (1) and lacks (-1).
    """
    columns = np.zeros((NUM_TOKENS, len(TEMPOS_BPM) + 12), np.float32)
    for index, concept in enumerate(BPM_CONCEPTS):
        columns[CONCEPT_IDS[concept], index] = 1.0
    for root in range(12):
        for mode_index, mode in enumerate(MODES):
            is_in_scale = np.isin(np.arange(12), scale_pitch_classes(root, mode))
            columns[scale_id(root, mode_index), len(TEMPOS_BPM) :] = np.where(is_in_scale, 1.0, -1.0)
    return columns


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


def draw_concepts(song: Song, rng: np.random.Generator) -> tuple[str, ...]:
    """Draw concepts of a prompt about a song: always its tempo, because the text encoder gives every prompt one.

    Where layers are named, all of the song's layers are: a prompt that names layers means exactly those.
    """
    concepts = [f"bpm:{song.bpm}"]
    names_key = rng.random() < 0.6
    if names_key:
        concepts.append(KEY_CONCEPTS[song.root])
    if rng.random() < (0.75 if names_key else 0.25):
        concepts.append(f"mode:{song.mode}")
    concepts += _draw_layers(song, rng)
    concepts += [mood for mood in moods_of(song) if rng.random() < 0.3]
    return tuple(concepts)


def _draw_layers(song: Song, rng: np.random.Generator) -> list[str]:
    choice = rng.random()
    if choice < 0.65:
        return [f"layer:{layer}" for layer in LAYERS if layer in song.layers]
    absent = [layer for layer in LAYERS if layer not in song.layers]
    if choice < 0.8 and absent:
        return [f"no:{layer}" for layer in absent if rng.random() < 0.5]
    return []
