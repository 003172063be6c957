"""The planner's vocabulary and its pages: token sequences of a plan and of one section's structure codes.

A plan page: what a prompt says, what it leaves open (genre, tempo, meter, key), then the sections, three tokens each.
A section page: the same, the last bar before it, then its codes. A code is a token for each group of its digits, behind
markers that say where in its bar it lies and what the section recalls there; those are given.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from configs.demo.recipe.corpus.form import step_beats
from configs.demo.recipe.corpus.genres import BEATS_PER_BAR, GENRES, METERS
from configs.demo.recipe.corpus.songs import BPM_RANGE, SECTIONS, Song
from configs.demo.recipe.corpus.vocabulary import (
    GENRE_CONCEPTS,
    KEY_CONCEPTS,
    LAYER_CONCEPTS,
    METER_CONCEPTS,
    MODE_CONCEPTS,
    MOOD_CONCEPTS,
    NO_LAYER_CONCEPTS,
)
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.latents import CODE_DIGITS, CODE_LEVELS, FRAME_RATE_HZ, FRAMES_PER_CODE
from configs.demo.recipe.planner.arrangement import BAR_COUNTS, MATERIALS, Section
from runtime.music.rhythm import Rhythm

Codes = npt.NDArray[np.int64]

DIGITS_PER_GROUP: Final = 4
NUM_GROUPS: Final = CODE_DIGITS // DIGITS_PER_GROUP
GROUP_SIZE: Final = CODE_LEVELS**DIGITS_PER_GROUP
CLOCKS_PER_BEAT: Final = 24
BPM_STEP: Final = 8
# Of codes: less, and melodies stay on a note; of header and sections: more, and songs lack a verse or a chorus.
TEMPERATURE, TOP_P = 0.9, 0.8
FORM_TEMPERATURE, FORM_TOP_P = 0.7, 0.5

PAD, END, START, PLAN, RECALL, BEFORE, SECTION = "pad", "end", "start", "plan", "recall", "before", "section"
_LAYER_SETS: Final = tuple("+".join(names) for count in range(1, 6) for names in combinations(LAYERS, count))

TOKENS: Final = (
    PAD, END, START, PLAN, RECALL, BEFORE, SECTION,
    *GENRE_CONCEPTS, *(f"bpm:{bpm}" for bpm in range(*BPM_RANGE, BPM_STEP)), *METER_CONCEPTS, *KEY_CONCEPTS,
    *MODE_CONCEPTS, *MOOD_CONCEPTS, *LAYER_CONCEPTS, *NO_LAYER_CONCEPTS, *(f"section:{name}" for name in SECTIONS),
    *(f"layers:{names}" for names in _LAYER_SETS), *(f"bars:{count}" for count in BAR_COUNTS),
    *(f"bar:{index}" for index in range(max(BAR_COUNTS))), *(f"clock:{index}" for index in range(4 * CLOCKS_PER_BEAT)),
)  # fmt: skip
TOKEN_IDS: Final[dict[str, int]] = {name: index for index, name in enumerate(TOKENS)}
FIRST_LAYERS_ID: Final = TOKEN_IDS[f"layers:{_LAYER_SETS[0]}"]
# By token of layers: which ones sound.
LAYER_SETS: Final = [[layer in names.split("+") for layer in LAYERS] for names in _LAYER_SETS]
FIRST_CODE_ID: Final = len(TOKENS)
NUM_TOKENS: Final = FIRST_CODE_ID + NUM_GROUPS * GROUP_SIZE


def rhythm_of(bpm: int, meter: str) -> Rhythm:
    """Tempo and meter on the grid of the demo's codes."""
    beats, tokens = BEATS_PER_BAR[meter], (TOKEN_IDS["bar:0"], TOKEN_IDS["clock:0"])
    return Rhythm(bpm, beats, FRAME_RATE_HZ, FRAMES_PER_CODE, CLOCKS_PER_BEAT, *tokens)


def code_tokens(codes: Codes) -> Codes:
    """Codes int64 `[Q]` -> tokens int64 `[Q, G]`, the lowest digits first."""
    places = GROUP_SIZE ** np.arange(NUM_GROUPS)
    return FIRST_CODE_ID + GROUP_SIZE * np.arange(NUM_GROUPS) + codes[:, None] // places % GROUP_SIZE


def codes_of(tokens: Codes) -> Codes:
    """Tokens int64 `[Q, G]` -> codes int64 `[Q]`."""
    digits = tokens - FIRST_CODE_ID - GROUP_SIZE * np.arange(NUM_GROUPS)
    return np.asarray((digits * GROUP_SIZE ** np.arange(NUM_GROUPS)).sum(axis=1), np.int64)


def header(section: Section) -> list[int]:
    """A section's three tokens: kind, layers, bars."""
    names = "+".join(layer for layer in LAYERS if layer in section.layers)
    return [TOKEN_IDS[name] for name in (f"section:{section.kind}", f"layers:{names}", f"bars:{section.bars}")]


def section_of(tokens: Sequence[int]) -> Section:
    """The section of three tokens. Raises ValueError where they are of another kind."""
    kind, layers, bars = (TOKENS[token].partition(":") for token in tokens)
    if (kind[0], layers[0], bars[0]) != ("section", "layers", "bars"):
        raise ValueError(f"{[TOKENS[token] for token in tokens]} is no section")
    return Section(kind[2], int(bars[2]), frozenset(layers[2].split("+")))


def song_tokens(song: Song, moods: Iterable[str] = ()) -> list[int]:
    """What holds for all sections: genre, tempo, meter, key, mode and moods."""
    names = (f"genre:{song.genre}", bpm_token(song.bpm), f"meter:{song.meter}", KEY_CONCEPTS[song.root])
    return [TOKEN_IDS[name] for name in (*names, f"mode:{song.mode}", *moods)]


def bpm_token(bpm: int) -> str:
    """The token of a tempo: the least of its range."""
    return f"bpm:{range(*BPM_RANGE, BPM_STEP)[min((bpm - BPM_RANGE[0]) // BPM_STEP, 14)]}"


def marked_codes(rhythm: Rhythm, codes: Codes, first_bar: int, first_code: int) -> list[int]:
    """The tokens of codes int64 `[Q]` and their markers; the first is the piece's code number `first_code`."""
    tokens: list[int] = []
    for index, groups in enumerate(code_tokens(codes).tolist()):
        tokens += [*rhythm.markers(first_code + index, first_bar), *groups]
    return tokens


LAYER_WORDS: Final = {"pad": "pads", "arp": "arps", "bass": "bass", "melody": "melody", "drums": "drums"}

# How loud sections of a kind begin and end, in dB.
DYNAMICS: Final = {
    "intro": (-5.0, -4.0),
    "verse": (-3.5, -3.0),
    "chorus": (0.0, 0.0),
    "break": (-6.0, -6.0),
    "build": (-8.0, -1.5),
    "outro": (-4.0, -5.0),
}

# What stands for the names of ensembles, layers that words imply only elsewhere, and how many layers sections have.
ENSEMBLES: Final = {
    "string quartet": "strings, violin melody, upright bass",
    "string quintet": "strings, violin melody, upright bass",
    "string trio": "strings, violin melody, upright bass",
}
UNASKED: Final = {"drone": ["arp"], "drones": ["arp"], "droning": ["arp"]}
VOICES: Final = {"trio": 3, "quartet": 3, "quintet": 3}


def planner_tables() -> dict[str, Any]:
    """What `[planner]` of bundle.toml says of the tokens: all but files, inputs, outputs and what codes sound."""
    groups = [{"first": FIRST_CODE_ID + GROUP_SIZE * index, "count": GROUP_SIZE} for index in range(NUM_GROUPS)]
    return {
        "vocabulary": NUM_TOKENS,
        "end_token": TOKEN_IDS[END],
        "verify_tokens": 2 + len((RECALL, *groups)) + 1,  # the last token before a code and all markers: bar, clock
        "plan": {
            "prompt": "{prompt} <bpm:{bpm}> <key:{key}> <meter:{time_signature}>",
            **{name: TOKEN_IDS[name] for name in (START, PLAN, BEFORE, SECTION, RECALL)},
            "header": [_field(name, name) for name in ("genre", "bpm", "meter", "key", "mode")],
            "kind": _field("kind", "section"),
            "layers": _field("layers", "layers"),
            "bars": _field("bars", "bars"),
            "style": _range("mood"),
            "bar_markers": _range("bar"),
            "clock_markers": _range("clock"),
            "clocks_per_beat": CLOCKS_PER_BEAT,
            "beats": [BEATS_PER_BAR[meter] for meter in METERS],
            "materials": [MATERIALS[kind] for kind in SECTIONS],
            "beginning": "intro",
            "beginning_bars": 8,
            "tempos": {name: list(genre.bpm) for name, genre in GENRES.items()},
            "ending": "outro",
            "tags": {"drop": "chorus"},
            "dynamics": {kind: list(levels) for kind, levels in DYNAMICS.items()},
            "ensembles": ENSEMBLES,
            "voices": VOICES,
            "unasked": UNASKED,
            "absent": {layer: TOKEN_IDS[f"no:{layer}"] for layer in LAYERS},
            "named": {layer: TOKEN_IDS[f"layer:{layer}"] for layer in LAYERS},
            "main": ["chorus", "verse"],
            "most_in_a_row": 2,
            "temperature": FORM_TEMPERATURE,
            "top_p": FORM_TOP_P,
            "layer_words": {layer: [words, f"no {words}"] for layer, words in LAYER_WORDS.items()},
        },
        "codes": {"groups": groups},
        "sampler": {"temperature": TEMPERATURE, "top_p": TOP_P},
    }


def beat_steps() -> dict[str, list[float]]:
    """By genre, and by meter where that decides, where in a beat notes begin."""
    beats = {name: step_beats("4/4", 1, genre.swing, genre.shuffle) for name, genre in GENRES.items()}
    beats["6/8"] = step_beats("6/8", 1, 0.5, 0.5)
    return {name: [round(step, 6) for step in steps[:-1]] for name, steps in beats.items()}


def _field(name: str, prefix: str) -> dict[str, Any]:
    """A field of a plan."""
    first, count = _range(prefix).values()
    return {"name": name, "first": first, "values": [TOKENS[first + i].partition(":")[2] for i in range(count)]}


def _range(prefix: str) -> dict[str, int]:
    """The tokens with a prefix."""
    ids = [index for index, name in enumerate(TOKENS) if name.startswith(f"{prefix}:")]
    return {"first": ids[0], "count": len(ids)}
