"""What a prompt can ask for: concepts, the condition tokens that they become, and which of them are true of a song.

A *concept* is the meaning of a word, such as `key:a`, `tempo:slow` or `instrument:piano`; several words map to one.
The text encoder makes *token names* of a prompt's concepts: one row each of the decoder's table of tokens.
"""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from configs.demo.recipe.corpus.genres import BEATS_PER_BAR, GENRES, METERS
from configs.demo.recipe.corpus.songs import BPM_RANGE, SECTIONS, Song
from configs.demo.recipe.corpus.theory import BRIGHT_MODES, DARK_MODES, MODES, NOTE_NAMES, scale_pitch_classes
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS
from configs.demo.recipe.latents import FRAME_RATE_HZ, FloatArray

# Every mood and when it is true of a song.
MOODS: Final[dict[str, Callable[[Song], bool]]] = {
    "dark": lambda song: song.mode in DARK_MODES,
    "bright": lambda song: song.mode in BRIGHT_MODES,
    "sparse": lambda song: song.density == 0,
    "dense": lambda song: song.density == 2,
    "soft": lambda song: song.loudness == 0,
    "loud": lambda song: song.loudness == 2,
    "calm": lambda song: song.density == 0 and song.loudness < 2 and song.articulation > 0,
    "energetic": lambda song: song.density == 2 and song.loudness > 0,
    "happy": lambda song: song.mode in BRIGHT_MODES and song.bpm >= 96 and song.loudness > 0,
    "sad": lambda song: song.mode in DARK_MODES and song.bpm <= 96 and song.loudness < 2,
    "dreamy": lambda song: song.articulation == 2 and song.loudness == 0,
    "warm": lambda song: song.articulation == 2 and song.loudness < 2 and song.mode not in ("phrygian", "blues"),
    "tense": lambda song: song.mode in ("phrygian", "harmonic minor"),
    "mysterious": lambda song: song.mode in ("phrygian", "harmonic minor", "lydian") and song.loudness < 2,
    "epic": lambda song: song.loudness == 2 and song.articulation == 2,
    "aggressive": lambda song: song.loudness == 2 and song.density == 2 and song.mode in (*DARK_MODES, "blues"),
    "playful": lambda song: song.articulation == 0 and song.mode in (*BRIGHT_MODES, "mixolydian"),
    "romantic": lambda song: song.articulation == 2 and song.bpm <= 110 and song.mode in ("major", "minor", "lydian"),
    "groovy": lambda song: song.rule.shuffle > 0.5 or song.genre in ("latin", "disco", "soul", "bossa nova"),
    "swinging": lambda song: song.rule.swing > 0.55 and song.meter != "6/8",
    "repetitive": lambda song: song.rule.is_riff,
    "staccato": lambda song: song.articulation == 0,
    "legato": lambda song: song.articulation == 2,
}

ALWAYS: Final = "always"
BPMS: Final = range(BPM_RANGE[0], BPM_RANGE[1] + 1)
KEY_CONCEPTS: Final = tuple(f"key:{name.lower()}" for name in NOTE_NAMES)
MODE_CONCEPTS: Final = tuple(f"mode:{mode}" for mode in MODES)
BPM_CONCEPTS: Final = tuple(f"bpm:{bpm}" for bpm in BPMS)
METER_CONCEPTS: Final = tuple(f"meter:{meter}" for meter in METERS)
LAYER_CONCEPTS: Final = tuple(f"layer:{layer}" for layer in LAYERS)
NO_LAYER_CONCEPTS: Final = tuple(f"no:{layer}" for layer in LAYERS)
GENRE_CONCEPTS: Final = tuple(f"genre:{genre}" for genre in GENRES)
MOOD_CONCEPTS: Final = tuple(f"mood:{mood}" for mood in MOODS)
SECTION_CONCEPTS: Final = tuple(f"section:{section}" for section in SECTIONS)
PLAYERS: Final = tuple(f"{layer}:{instrument}" for layer in LAYERS for instrument in INSTRUMENTS[layer])
SCALES: Final = tuple(f"{key}/{mode}" for key in KEY_CONCEPTS for mode in MODE_CONCEPTS)

# The order is part of the trained model, and the order in which tokens are kept where a prompt has too many.
TOKENS: Final = (
    ALWAYS, *BPM_CONCEPTS, *METER_CONCEPTS, *LAYER_CONCEPTS, *NO_LAYER_CONCEPTS, *PLAYERS, *GENRE_CONCEPTS,
    *SCALES, *KEY_CONCEPTS, *MODE_CONCEPTS, *SECTION_CONCEPTS, *MOOD_CONCEPTS,
)  # fmt: skip
TOKEN_IDS: Final[dict[str, int]] = {name: index for index, name in enumerate(TOKENS)}
ALWAYS_ID: Final = TOKEN_IDS[ALWAYS]
FIRST_TEMPO_ID: Final = TOKEN_IDS[BPM_CONCEPTS[0]]
NUM_TOKENS: Final = len(TOKENS)
MAX_CONDITION_TOKENS: Final = 32
# How often a training prompt says a mood that is true of its song: what stays unsaid is mostly medium.
MOOD_SHARE: Final = 0.4
STACCATO: Final = "mood:staccato"

# Concepts of words that the text encoder replaces by tokens: instruments by those of their layers, tempo words by bpm.
PLAYED_BY: Final[dict[str, tuple[str, ...]]] = {
    name: tuple(layer for layer in LAYERS if name in INSTRUMENTS[layer])
    for name in dict.fromkeys(name for layer in LAYERS for name in INSTRUMENTS[layer])
}
# An instrument and a layer named together, where it can play in several: "piano chords".
PAIR_CONCEPTS: Final = tuple(player for player in PLAYERS if len(PLAYED_BY[player.split(":")[1]]) > 1)
INSTRUMENT_CONCEPTS: Final = tuple(f"instrument:{name}" for name in PLAYED_BY)
# Instruments that do not play: where their genre would take one, another plays.
# Without basses and kits there is no such layer.
NO_INSTRUMENT_CONCEPTS: Final = tuple(
    f"not:{name}" for name, layers in PLAYED_BY.items() if not {"bass", "drums"} & set(layers)
)
# What a number of beats per minute has behind its point.
FRACTION_CONCEPTS: Final = {
    f"fraction:{part}{n}": n / 10 ** len(f"{part}{n}") for part in ("", "0") for n in range(1, 10)
}
# Nothing sounds but the layers and instruments that are named.
ONLY: Final = "only"
TEMPO_WORDS: Final = ("tempo:very slow", "tempo:slow", "tempo:medium", "tempo:fast", "tempo:very fast")
WORD_CONCEPTS: Final = (
    *BPM_CONCEPTS, *TEMPO_WORDS, *METER_CONCEPTS, *LAYER_CONCEPTS, *NO_LAYER_CONCEPTS, *INSTRUMENT_CONCEPTS,
    *PAIR_CONCEPTS,    *GENRE_CONCEPTS, *KEY_CONCEPTS, *MODE_CONCEPTS, *SECTION_CONCEPTS, *MOOD_CONCEPTS,
    *FRACTION_CONCEPTS, ONLY, *NO_INSTRUMENT_CONCEPTS,
)  # fmt: skip
WORD_IDS: Final[dict[str, int]] = {concept: index for index, concept in enumerate(WORD_CONCEPTS)}

_ANCHORS_BPM: Final = np.arange(BPM_RANGE[0], BPM_RANGE[1] + 1, 15)


def token_ids(names: Iterable[str]) -> list[int]:
    """Sorted ids of token names, with the scales of their keys and modes, without ALWAYS_ID."""
    named = set(names)
    keys = [name for name in named if name.startswith("key:")]
    modes = [name for name in named if name.startswith("mode:")]
    return sorted(TOKEN_IDS[name] for name in (*named, *(f"{key}/{mode}" for key in keys for mode in modes)))


def fixed_columns() -> FloatArray:
    """Columns of the token table that are written, not learned, f32 `[NUM_TOKENS, 15]`.

    0: beats per frame of a tempo. 1: bars per beat of a meter. 2: 1 for a meter with beats of three parts. 3..14: which
    pitch classes a scale has (1) and lacks (-1). All others are 0.
    """
    columns = np.zeros((NUM_TOKENS, 15), np.float32)
    for bpm, name in zip(BPMS, BPM_CONCEPTS, strict=True):
        columns[TOKEN_IDS[name], 0] = bpm / (60.0 * FRAME_RATE_HZ)
    for meter, name in zip(METERS, METER_CONCEPTS, strict=True):
        columns[TOKEN_IDS[name], 1:3] = 1.0 / BEATS_PER_BAR[meter], meter == "6/8"
    for root, key in enumerate(KEY_CONCEPTS):
        for mode in MODES:
            is_in_scale = np.isin(np.arange(12), scale_pitch_classes(root, mode))
            columns[TOKEN_IDS[f"{key}/mode:{mode}"], 3:] = np.where(is_in_scale, 1.0, -1.0)
    return columns


def tempo_interpolation() -> FloatArray:
    """Weights f32 `[121, A]` of the anchors, 15 bpm apart, whose learned rows make the rows of 60..180 bpm."""
    distance = np.abs(np.array(BPMS)[:, None] - _ANCHORS_BPM) / (_ANCHORS_BPM[1] - _ANCHORS_BPM[0])
    return np.asarray(np.maximum(1.0 - distance, 0.0), np.float32)


def moods_of(song: Song) -> tuple[str, ...]:
    """Every mood concept that is true of a song."""
    return tuple(f"mood:{mood}" for mood, is_true in MOODS.items() if is_true(song))


def draw_concepts(
    song: Song, rng: np.random.Generator, layers: frozenset[str] | None = None, *, names_instruments: bool = True
) -> tuple[str, ...]:
    """Draw the token names of a prompt about a song: always its tempo, meter, genre and layers; every prompt has them.

    What a song has of its genre's defaults may stay unsaid, but not an instrument or a mode that the genre does not
    suggest, or a section.

    Args:
        song: what the names are true of.
        rng: decides which names are drawn.
        layers: those that sound, by default the song's.
        names_instruments: whether instruments may be named.
    """
    sounding = song.layers if layers is None else layers
    names = [f"bpm:{song.bpm}", f"meter:{song.meter}", f"genre:{song.genre}"]
    names += [f"layer:{layer}" if layer in sounding else f"no:{layer}" for layer in LAYERS]
    if names_instruments:
        names += _draw_players(song, rng, sounding)
    names_key = rng.random() < 0.6
    if names_key:
        names.append(KEY_CONCEPTS[song.root])
    if song.mode not in song.rule.modes or rng.random() < (0.75 if names_key else 0.25):
        names.append(f"mode:{song.mode}")
    if song.section:
        names.append(f"section:{song.section}")
    return (*names, *draw_moods(song, rng))


def draw_moods(song: Song, rng: np.random.Generator) -> tuple[str, ...]:
    """Some of the moods that are true of a song; always that it is staccato: what says nothing does not halve notes."""
    return tuple(mood for mood in moods_of(song) if mood == STACCATO or rng.random() < MOOD_SHARE)


def _draw_players(song: Song, rng: np.random.Generator, layers: frozenset[str]) -> list[str]:
    """Instruments in their layers: those that the genre does not suggest, and some, none or all of the others."""
    share = float(rng.choice((0.0, 0.5, 1.0), p=(0.3, 0.3, 0.4)))
    options = song.rule.instruments
    return [
        f"{layer}:{song.instruments[layer]}"
        for layer in LAYERS
        if layer in layers and (song.instruments[layer] not in options[layer] or rng.random() < share)
    ]
