"""Free text -> word ids: a `tokenizers` file in which normalising rules find phrases, keys, numbers and negations.

The rules write one internal word per finding (`keycs` for C sharp, `hiphop`, `nodrums`); a tempo is its number. Words
without content (`FILLERS`) are dropped; a run of other words that are not in the vocabulary becomes one unknown token,
so that a long prompt does not run out of tokens, and one of `NEAREST` an unknown token and what is nearest to it. The
text encoder's graph ignores unknown tokens. The decoder writes vocabulary words as a user would (`C#`, `120 bpm`, `no
drums`).
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel

from configs.demo.recipe.corpus.theory import NOTE_NAMES
from configs.demo.recipe.corpus.vocabulary import (
    BPMS,
    FRACTION_CONCEPTS,
    KEY_CONCEPTS,
    NO_INSTRUMENT_CONCEPTS,
    PAIR_CONCEPTS,
    WORD_IDS,
)
from configs.demo.recipe.instruments import INSTRUMENTS, LAYERS
from configs.demo.recipe.words import ARTICLES, COMPOUNDS, FILLERS, NEAREST, NEGATIONS, WORDS
from runtime.config.words import TEMPO_RULES

MAX_TOKENS: Final = 62  # 64 with those of the timbre
PAD, UNKNOWN, START = "[PAD]", "[UNK]", "[START]"
SPECIAL_WORDS: Final = (PAD, UNKNOWN, START)

# [text_encoder] template: options stand behind the prompt and replace what the prompt says.
TEMPLATE: Final = "{prompt} <bpm:{bpm}> <key:{key}> <meter:{time_signature}>"

_NOT_IN_WORD: Final = r"(?<![A-Za-z0-9_#'’])"
_WORD_ENDS: Final = r"(?![A-Za-z0-9_#'’])"
_WORD_BEGINS: Final = r"(?<![^\W_])"  # as \b, but an underscore is no part of a word
_WORD_STOPS: Final = r"(?![^\W_])"
_OR: Final = "or|nor|oder|noch|ni|ou|o|and|und|et|y|e"
_MODE_WORD: Final = r"(?i:maj|min|ionian|aeolian|dorian|mixolydian|lydian|phrygian|harmonicminor|dur|moll)"
_A_MODE_NOT_A_KEY: Final = r"(?!\s+(?i:(?:major|minor)\s+(?:key|mode|scale)))"
_LETTER_PITCH_CLASSES: Final = {"C": 0, "D": 2, "E": 4, "F": 5, "G": 7, "A": 9, "B": 11}
_GERMAN_PITCH_CLASSES: Final = {"h": 11, "b": 10, "as": 8, "es": 3} | {
    f"{letter}{ending}": pitch_class + step
    for letter, pitch_class in (("c", 0), ("d", 2), ("f", 5), ("g", 7), ("a", 9))
    for ending, step in (("is", 1), ("es", -1))
}
_SYLLABLE_PITCH_CLASSES: Final = {"do|ut": 0, "re": 2, "mi": 4, "fa": 5, "sol": 7, "la": 9, "si": 11}
# Numbers beyond the range of tempos mean its ends.
_FARTHER_BPMS: Final = {60: "[3-5][0-9]", 180: "1[89][0-9]|[23][0-9][0-9]"}
# A tempo in the prompt, as `TEMPO_RULES` mark it, or in an option.
_TEMPO_BEGINS: Final = "(?:(?<![a-z])tempo:|<bpm:)"
_METER_WORDS: Final = {"3/4": "waltztime", "6/8": "sixeight", "12/8": "sixeight", "4/4": "fourfour", "2/4": "fourfour"}
_OPTION_METERS: Final = {2: "fourfour", 3: "threefour", 4: "fourfour", 6: "sixeight"}


def key_word(pitch_class: int) -> str:
    """Internal word of a key, such as `keycs` for C sharp."""
    return "key" + NOTE_NAMES[pitch_class % 12].lower().replace("#", "s")


def word_concepts() -> dict[str, str]:
    """Every known word and the concept that it means; a phrase's word is written without its spaces."""
    words = {_joined(phrase): concept for phrase, concept in _phrase_concepts().items()}
    words |= {key_word(index): concept for index, concept in enumerate(KEY_CONCEPTS)}
    words |= {str(bpm): f"bpm:{bpm}" for bpm in BPMS}
    words |= {f"point{concept.removeprefix('fraction:')}": concept for concept in FRACTION_CONCEPTS}
    words |= {_pair_word(pair): pair for pair in PAIR_CONCEPTS}
    words |= {_joined(f"no {concept[4:]}"): concept for concept in NO_INSTRUMENT_CONCEPTS}
    return words | {f"no{layer}": f"no:{layer}" for layer in LAYERS}


def _pair_word(pair: str) -> str:
    """Internal word of an instrument and a layer that are named together, such as `pianopad`."""
    return _joined(_pair_text(pair))


def _pair_text(pair: str) -> str:
    layer, instrument = pair.split(":")
    return f"{instrument} {layer}"


def vocabulary() -> dict[str, int]:
    """Word -> id; ids 0..2 are the special words."""
    return {word: index for index, word in enumerate((*SPECIAL_WORDS, *sorted(word_concepts())))}


def word_to_concept_ids() -> list[int]:
    """Number of the concept in `vocabulary.WORD_CONCEPTS` per word id; special words mean nothing and get -1."""
    words = word_concepts()
    return [WORD_IDS[words[word]] if word in words else -1 for word in vocabulary()]


def build_tokenizer() -> Tokenizer:
    """The tokenizer; an empty text gives the start word alone, and every text is cut at `MAX_TOKENS`."""
    words = vocabulary()
    tokenizer = Tokenizer(WordLevel(words, unk_token=UNKNOWN))
    tempos = [(f"(?i){pattern.pattern}", text) for pattern, text in TEMPO_RULES]
    before = [*_expansions(), *tempos, *_option_rules(), *_phrase_rules(), *_notation_rules(), *_key_rules()]
    rules: list[Any] = [normalizers.Replace(Regex(pattern), text) for pattern, text in before]
    rules += [normalizers.Lowercase()]
    rules += [normalizers.Replace(Regex(pattern), text) for pattern, text in _word_rules()]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Prepend(" "), *rules]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^a-z0-9]+"), "removed")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, words[START])]
    )
    spelled = {rf"^{word}$": text for word, text in _spelled_words().items()} | {r"(?<=^\d\d|^1\d\d)$": " bpm"}
    tokenizer.decoder = decoders.Sequence([decoders.Replace(Regex(word), text) for word, text in spelled.items()])
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _phrase_concepts() -> dict[str, str]:
    """The words and phrases of every concept."""
    return {phrase: concept for concept, listed in WORDS.items() for phrase in listed.split(", ")}


def _joined(phrase: str) -> str:
    return re.sub(r"[^a-z0-9]", "", phrase.replace("&", "and"))


def _spelled_words() -> dict[str, str]:
    """Internal word -> how a user writes it, where that differs."""
    keys = {key_word(index): name for index, name in enumerate(NOTE_NAMES)}
    keys |= {_pair_word(pair): _pair_text(pair) for pair in PAIR_CONCEPTS}
    phrases = {_joined(phrase): phrase.replace("-", " ") for phrase in _phrase_concepts()}
    negations = {f"no{layer}": f"no {layer}" for layer in LAYERS}
    negations |= {_joined(f"no {concept[4:]}"): f"no {concept[4:]}" for concept in NO_INSTRUMENT_CONCEPTS}
    negations |= {word: f".{word[5:]}" for word in word_concepts() if word.startswith("point")}
    return {word: text for word, text in (keys | phrases | negations).items() if word != text}


def _expansions() -> Iterator[tuple[str, str]]:
    """Words that stand for several; one outside the vocabulary is also unknown, and left alone behind a `no`."""
    said_no = "".join(rf"(?<!\b{word} )" for word in ("no", "without", "ohne", "kein", "keine", "sans", "sin"))
    for word, words in COMPOUNDS.items():
        yield rf"(?i){_NOT_IN_WORD}(?:{word}){_WORD_ENDS}", f" {words} "
    for word, nearest in NEAREST.items():
        yield rf"(?i){said_no}{_NOT_IN_WORD}{word}{_WORD_ENDS}", f" unknown {nearest} "


def _option_rules() -> Iterator[tuple[str, str]]:
    """What stands in the template's brackets counts, and the same property in the prompt before it does not."""
    yield r"<(?:bpm|key|meter):>", ""
    yield _before("<bpm:", r"(?<![a-z])tempo:[0-9]+(?:\.[0-9]+)?(?:bpm)?"), ""
    for beats, word in _OPTION_METERS.items():
        yield rf"<meter:{beats}>", f" optionmeter {word} "


def _before(option: str, removed: str) -> str:
    """A pattern of all that an option, which stands behind the prompt, removes from it.

    Whether the option is there is asked once, at the begin; then each match has to begin where the one before it ended
    (`\\G`), and nothing is read twice.
    """
    return rf"(?:\A(?=(?m:.*){option})|\G(?!\A))(?:(?!{option}|{removed})(?m:.))*+\K{removed}"


def _phrase_rules() -> Iterator[tuple[str, str]]:
    """Phrases become one word, longer ones first; then meters, and numbers written with a unit."""
    for phrase in sorted(_phrase_concepts(), key=len, reverse=True):
        if _joined(phrase) != phrase:
            pattern = r"\s*&\s*".join(part.replace("-", "[ -]?") for part in re.split("-?&-?", phrase))
            yield rf"(?i){_NOT_IN_WORD}{pattern}{_WORD_ENDS}", f" {_joined(phrase)} "
    for meter, word in _METER_WORDS.items():
        yield rf"(?<![0-9/]){meter.replace('/', '[ ]?/[ ]?')}(?![0-9/])", f" {word} "


def _notation_rules() -> Iterator[tuple[str, str]]:
    """German keys before Dur and Moll; do re mi before major and minor in French and Spanish."""
    yield "♯", "#"
    yield "♭", "b"
    yield r"(?i)\b[dl]['’](?=[a-z])", " "
    yield rf"(?<=[a-z]{{3}} )(?<!\bin |\bof |\bkey )e(?= [a-z]{{3}})(?! (?:{_MODE_WORD}|flat|sharp))", " "  # Italian
    for name, pitch_class in _GERMAN_PITCH_CLASSES.items():
        yield rf"(?i){_NOT_IN_WORD}{name}(?=[ -]?(?:dur|moll)\b)", f" {key_word(pitch_class)} "
    mode = r"(?=[ -](?:majeur|mineur|mayor|menor)\b)"
    for name, pitch_class in _SYLLABLE_PITCH_CLASSES.items():
        for sign, step in (("(?:#|[ -]diese|[ -]sostenido)", 1), ("(?:b|[ -]bemol)", -1), ("", 0)):
            yield rf"(?i){_NOT_IN_WORD}(?:{name}){sign}{mode}", f" {key_word(pitch_class + step)} "


def _key_rules() -> Iterator[tuple[str, str]]:
    """Keys. A capital letter counts more than a small one: `a` is mostly an article."""
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
    yield rf"{_NOT_IN_WORD}[Aa](?=[ -]+{_MODE_WORD}){_A_MODE_NOT_A_KEY}"
    yield rf"(?<=[^\s.!?:<]\s){_NOT_IN_WORD}A{_WORD_ENDS}{_A_MODE_NOT_A_KEY}"
    yield r"(?<=\b[Ii]n |\b[Oo]f |\b[Kk]ey )a(?=\s*(?:$|[,.;:!?<]|(?:with|and|at)\b))"
    yield r"(?<=^ )A(?=\s*(?:$|[,;]))"


def _word_rules() -> Iterator[tuple[str, str]]:
    """Options, tempos, negated layers; last, fillers go and unknown words become one."""
    modes, meters = _words_of("mode:"), _words_of("meter:")
    yield _before("<key:", rf"{_WORD_BEGINS}(?:key[a-g]s?|{modes}){_WORD_STOPS}"), ""
    yield _before("optionmeter", rf"{_WORD_BEGINS}(?:{meters}){_WORD_STOPS}"), ""
    yield r"<key:|optionmeter", " "
    yield r"(?<=key[a-g]|key[a-g]s)\s+blues\b", " bluesscale "
    yield from _tempo_rules()
    ruled_out = {f"no{layer}": _layer_names(layer) for layer in LAYERS}
    ruled_out |= {
        _joined(f"no {concept[4:]}"): _words_of(f"instrument:{concept[4:]}") for concept in NO_INSTRUMENT_CONCEPTS
    }
    behind = "|".join(f"{word} " for word in ruled_out)
    for begins in (rf"\b(?:{NEGATIONS})\s+(?:(?:{ARTICLES})\s+)?", rf"(?<={behind})\s*(?:{_OR})\s+"):
        for word, names in ruled_out.items():
            yield rf"{begins}(?:{names})\b", f" {word} "
    yield rf"\b(?:{NEGATIONS})\s+(?:(?:{ARTICLES})\s+)?[a-z]\w*", " unknown "
    for pair in PAIR_CONCEPTS:
        layer, instrument = (
            _words_of(f"{kind}:{name}") for kind, name in zip(("layer", "instrument"), pair.split(":"), strict=True)
        )
        yield rf"\b(?:{instrument})\s+(?:{layer})\b", f" {_pair_word(pair)} "
    yield rf"{_WORD_BEGINS}(?:{FILLERS.replace(' ', '|')}){_WORD_STOPS}", ""
    yield rf"{_WORD_BEGINS}(?!(?:{'|'.join(word_concepts())}){_WORD_STOPS})[^\W_]++", "unknown"
    yield rf"{_WORD_BEGINS}unknown(?:[\W_]++unknown{_WORD_STOPS})++", "unknown"


def _tempo_rules() -> Iterator[tuple[str, str]]:
    """The first tempo of the prompt, or the option's; `93.57` is `93 point5 point07`, what has more digits is cut."""
    number = r"(?<![a-z])tempo:[0-9]+(?:\.[0-9]+)?(?:bpm)?"
    yield rf"(?:\A(?m:.)*?{number}|\G(?!\A))(?m:.)*?\K{number}", " unknown "
    yield r"(?<![0-9a-z:.#])(?:[6-9][0-9]|1[0-7][0-9]|180)(?![0-9a-z])", " unknown "
    ends = r"(?:bpm)?(?![0-9.])"
    for bpm, farther in _FARTHER_BPMS.items():
        yield rf"{_TEMPO_BEGINS}(?:{farther})(?:\.[0-9]+)?{ends}", f" {bpm} "
    for digit in range(10):
        yield rf"(?<=[0-9]\.[0-9]){digit}[0-9]*{ends}", f" point0{digit} " if digit else " "
    for digit in range(10):
        yield rf"(?<=[0-9])\.{digit}{ends}", f" point{digit} " if digit else " "
    for bpm in BPMS:
        yield rf"{_TEMPO_BEGINS}{bpm}(?:bpm)?(?![0-9])", f" {bpm} "


def _words_of(*kinds: str) -> str:
    """The words of concepts, or of kinds of concept such as `mode:`, as alternatives of a pattern."""
    concepts = [concept for concept in WORDS if concept in kinds or f"{concept.split(':')[0]}:" in kinds]
    names = {_joined(phrase) for concept in concepts for phrase in WORDS[concept].split(", ")}
    return "|".join(sorted(names, key=lambda name: (-len(name), name)))


def _layer_names(layer: str) -> str:
    """The words of a layer, and of basses and kits: without them there is no such layer."""
    own = INSTRUMENTS[layer] if layer in ("bass", "drums") else ()
    return _words_of(f"layer:{layer}", *(f"instrument:{name}" for name in own))
