"""Free text -> word ids: a `tokenizers` file in which normalising rules find keys, tempos and negations.

The rules write one internal word per finding (`keycs` for C sharp, `bpm120`, `nodrums`). Words without content
(`FILLERS`) are dropped; a run of other words that are not in the vocabulary becomes one unknown token, so that a long
prompt does not run out of tokens. The text encoder's graph ignores unknown tokens. The decoder writes vocabulary words
as a user would (`C#`, `120 bpm`, `no drums`).
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel

from engine_build.demo_model.corpus.songs import LAYERS, TEMPOS_BPM
from engine_build.demo_model.corpus.theory import NOTE_NAMES
from engine_build.demo_model.corpus.vocabulary import CONCEPT_IDS, KEY_CONCEPTS

MAX_TOKENS: Final = 64
PAD, UNKNOWN, START = "[PAD]", "[UNK]", "[START]"
SPECIAL_WORDS: Final = (PAD, UNKNOWN, START)

FILLERS: Final = "a an and as at by for from in is it its key mode music of on or scale song the to track very with"

# Concept -> the words that mean it. Keys, tempos in bpm and negations come from the rules below.
WORDS: Final[dict[str, str]] = {
    "layer:pad": "pad pads string strings chord chords organ choir synth synths",
    "layer:arp": "arp arps arpeggio arpeggios arpeggiated arpeggiator pluck plucks plucked harp bell bells sequence",
    "layer:bass": "bass basses bassline basslines sub subbass",
    "layer:melody": "melody melodies melodic lead leads tune topline flute whistle",
    "layer:drums": "drum drums drumming beat beats kick kicks snare snares hat hats hihat hihats percussion groove",
    "mode:major": "major maj ionian",
    "mode:minor": "minor min aeolian",
    "mode:dorian": "dorian",
    "mode:mixolydian": "mixolydian",
    "mode:lydian": "lydian",
    "mode:phrygian": "phrygian",
    "tempo:slow": "slow slowly ballad downtempo largo lento adagio",
    "tempo:medium": "medium moderate midtempo andante walking",
    "tempo:fast": "fast quick rapid uptempo allegro presto",
    "mood:dark": "dark sad gloomy melancholic melancholy moody sombre somber mysterious tense brooding",
    "mood:bright": "bright happy joyful cheerful sunny uplifting hopeful",
    "mood:sparse": "sparse minimal minimalist simple spacious",
    "mood:dense": "dense busy rich full complex thick",
    "mood:soft": "soft softly quiet gentle delicate",
    "mood:loud": "loud powerful heavy strong massive",
    "mood:calm": "calm ambient relaxing relaxed peaceful chill dreamy mellow serene meditative",
    "mood:energetic": "energetic energy driving intense upbeat lively dance techno house club",
}

_NOT_IN_WORD: Final = r"(?<![A-Za-z0-9_#'’])"
_WORD_ENDS: Final = r"(?![A-Za-z0-9_#'’])"
_WORD_BEGINS: Final = r"(?<![^\W_])"  # as \b, but an underscore is no part of a word
_WORD_STOPS: Final = r"(?![^\W_])"
_MODE_WORD: Final = r"(?i:maj|min|ionian|aeolian|dorian|mixolydian|lydian|phrygian)"
_A_MODE_NOT_A_KEY: Final = r"(?!\s+(?i:(?:major|minor)\s+(?:key|mode|scale)))"
_LETTER_PITCH_CLASSES: Final = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_BPM_RANGE: Final = (40, 220)


def key_word(pitch_class: int) -> str:
    """Internal word of a key, such as `keycs` for C sharp."""
    return "key" + NOTE_NAMES[pitch_class % 12].lower().replace("#", "s")


def word_concepts() -> dict[str, str]:
    """Every known word and the concept that it means."""
    words = {word: concept for concept, listed in WORDS.items() for word in listed.split()}
    words |= {key_word(index): concept for index, concept in enumerate(KEY_CONCEPTS)}
    words |= {f"bpm{bpm}": f"bpm:{bpm}" for bpm in TEMPOS_BPM}
    return words | {f"no{layer}": f"no:{layer}" for layer in LAYERS}


def vocabulary() -> dict[str, int]:
    """Word -> id; ids 0..2 are the special words."""
    return {word: index for index, word in enumerate((*SPECIAL_WORDS, *sorted(word_concepts())))}


def word_to_concept_ids() -> list[int]:
    """Concept id per word id; special words mean nothing and get -1."""
    words = word_concepts()
    return [CONCEPT_IDS[words[word]] if word in words else -1 for word in vocabulary()]


def build_tokenizer() -> Tokenizer:
    """The tokenizer; an empty text gives the start word alone, and every text is cut at `MAX_TOKENS`."""
    words = vocabulary()
    tokenizer = Tokenizer(WordLevel(words, unk_token=UNKNOWN))
    rules: list[Any] = [normalizers.Replace(Regex(pattern), text) for pattern, text in _rules_with_case()]
    rules += [normalizers.Lowercase()]
    rules += [normalizers.Replace(Regex(pattern), text) for pattern, text in _rules_without_case()]
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), *rules])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^a-z0-9]+"), "removed")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, words[START])]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace(word, text) for word, text in _spelled_words().items()])
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _spelled_words() -> dict[str, str]:
    """Internal word -> how a user writes it; a word comes before those that it begins with."""
    keys = {key_word(index): name for index, name in enumerate(NOTE_NAMES)}
    tempos = {f"bpm{bpm}": f"{bpm} bpm" for bpm in TEMPOS_BPM}
    negations = {f"no{layer}": f"no {layer}" for layer in LAYERS}
    return dict(sorted((keys | tempos | negations).items(), reverse=True))


def _rules_with_case() -> Iterator[tuple[str, str]]:
    """Keys. A capital letter counts more than a small one: `a` is mostly an article."""
    yield "♯", "#"
    yield "♭", "b"
    yield r"(?<=\b[A-G])m(?:in|i)?(?![A-Za-z])", " minor "
    yield r"(?<=\b[A-G][#b])m(?:in|i)?(?![A-Za-z])", " minor "
    yield r"(?<=\b[A-G])[Mm]aj(?=7|\b)", " major "
    for letter, pitch_class in _LETTER_PITCH_CLASSES.items():
        either = f"[{letter}{letter.lower()}]"
        yield rf"{_NOT_IN_WORD}{either}(?:#|[ -]?[Ss]harp{_WORD_ENDS})", f" {key_word(pitch_class + 1)} "
        yield rf"{_NOT_IN_WORD}{either}(?:b|[ -]?[Ff]lat){_WORD_ENDS}", f" {key_word(pitch_class - 1)} "
        if letter != "A":
            yield rf"{_NOT_IN_WORD}{either}{_WORD_ENDS}", f" {key_word(pitch_class)} "
    yield from ((pattern, f" {key_word(9)} ") for pattern in _a_key_patterns())


def _a_key_patterns() -> Iterator[str]:
    """When is `a` a key: before a mode; as a capital inside a sentence; small only as the end of `in a`."""
    yield rf"{_NOT_IN_WORD}[Aa](?=[ -]{_MODE_WORD}){_A_MODE_NOT_A_KEY}"
    yield rf"(?<=[^\s.!?:]\s){_NOT_IN_WORD}A{_WORD_ENDS}{_A_MODE_NOT_A_KEY}"
    yield r"(?<=\b[Ii]n |\b[Oo]f |\b[Kk]ey )a(?=\s*(?:$|[,.;:!?]|(?:with|and|at)\b))"
    yield r"^A(?=\s*(?:$|[,;]))"


def _rules_without_case() -> Iterator[tuple[str, str]]:
    """Tempos in bpm, words written in several ways, negated layers; last, fillers go and unknown words become one."""
    yield r"\bhi(?:gh)?[ -]?hat", "hihat"
    yield r"(?<=\bup|\bdown|\bmid)[ -](?=tempo)", ""
    for bpm, numbers in _bpm_numbers().items():
        pattern = rf"(?<![0-9a-z#.])(?:{numbers})(?:\.[0-9]+)?(?:[ -]?(?:bpm|beats per minute)|(?![0-9a-z]))"
        yield pattern, f" bpm{bpm} "
    for layer in LAYERS:
        names = _layer_names(layer)
        yield rf"\b(?:no|without|minus)\s+(?:any\s+|a\s+|the\s+)?(?:{names})\b", f" no{layer} "
    for layer in LAYERS:
        yield (
            rf"(?<=no(?:pad|arp) |nobass |nodrums |nomelody )\s*(?:or|nor)\s+(?:{_layer_names(layer)})\b",
            f" no{layer} ",
        )
    yield rf"{_WORD_BEGINS}(?:{FILLERS.replace(' ', '|')}){_WORD_STOPS}", ""
    unknown = rf"{_WORD_BEGINS}(?!(?:{'|'.join(word_concepts())}){_WORD_STOPS})[^\W_]+"
    yield rf"{unknown}(?:[\W_]+{unknown})*", "unknown"


def _layer_names(layer: str) -> str:
    return "|".join(sorted(WORDS[f"layer:{layer}"].split(), key=len, reverse=True))


def _bpm_numbers() -> dict[int, str]:
    """For each trained tempo, the whole numbers that are nearest to it, as alternatives of a pattern."""
    edges = [_BPM_RANGE[0], *((low + high + 1) // 2 for low, high in pairwise(TEMPOS_BPM)), _BPM_RANGE[1] + 1]
    ranges = zip(TEMPOS_BPM, pairwise(edges), strict=True)
    return {bpm: "|".join(map(str, range(low, high))) for bpm, (low, high) in ranges}
