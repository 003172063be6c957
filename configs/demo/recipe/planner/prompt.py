"""Prompts as the planner reads them: a `tokenizers` file that turns a caption into the tokens of a plan page.

The rules of the text encoder's tokenizer find the words; further ones write what they mean for a plan. Layers are those
that the decoder lets sound: those of the genre, unless the prompt says "only", and those that are named, or that the
instruments play in; the others are named as silent. Of several genres, tempos, meters, keys or modes the last counts,
so that options win. Other words are dropped.
"""

from collections.abc import Iterator
from typing import Any, Final

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel

from configs.demo.recipe.corpus.genres import GENRES
from configs.demo.recipe.corpus.vocabulary import ONLY, PLAYED_BY
from configs.demo.recipe.instruments import LAYERS
from configs.demo.recipe.planner.tokens import TOKENS, bpm_token
from configs.demo.recipe.text_encoder import DEFAULT_GENRE, HOME_LAYERS, MOOD_TEMPOS
from configs.demo.recipe.tokenizer import build_tokenizer, word_concepts

# A tempo word's place in the range of tempos of a genre, or of all songs.
_TEMPOS: Final = {"very slow": 60, "slow": 72, "medium": 102, "fast": 138, "very fast": 166}
_LISTED_ONCE: Final = ("genre", "bpm", "meter", "key", "mode")
# Every text begins with it: rules that read the whole text write behind it.
_HEAD: Final = "head"
# A word that comes again: the nearest one is looked for, which is near where a long text has few words.
_REPEATED: Final = r"(?<![^ ])([^ ]++)(?=.*? \1(?![^ ]))"


def build_prompt_tokenizer() -> Tokenizer:
    """The tokenizer; its ids are the planner's, in the order of the text."""
    tokenizer = Tokenizer(WordLevel({_written(name): index for index, name in enumerate(TOKENS)}, unk_token=TOKENS[0]))
    rules: list[Any] = [normalizers.Replace(Regex(pattern), text) for pattern, text in _rules()]
    tokenizer.normalizer = normalizers.Sequence([build_tokenizer().normalizer, *rules])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _written(name: str) -> str:
    """A name without spaces."""
    return name.replace(" ", "_")


def _rules() -> Iterator[tuple[str, str]]:
    yield r"[^a-z0-9]+", " "
    yield r"\A ?", f"{_HEAD} "
    for name, words in _words_by_name().items():
        yield rf"(?<![^ ])(?:{'|'.join(sorted(words, key=len, reverse=True))})(?![^ ])", name
    yield _REPEATED, " "  # what follows reads the text often: no text has many names
    for mood, tempo in MOOD_TEMPOS.items():
        yield rf"\A{_HEAD}(?!.*(?:bpm|genre):)(?=.*{mood}(?![^ ]))", f"{_HEAD} {_name_of(tempo)}"
    yield from _genre_rules()
    yield from _layer_rules()
    yield rf"\A{_HEAD}(?=.*layer:)(?!.*genre:)", f"{_HEAD} genre:{DEFAULT_GENRE}"
    yield _REPEATED, " "
    for kind in _LISTED_ONCE:
        yield rf"{kind}:\S++(?=.* {kind}:)", " "
    yield r"(?<![^ ])(?:[^ :]+|instrument:[^ ]+)(?![^ ])", " "


def _words_by_name() -> dict[str, list[str]]:
    """The words of every token, and of every instrument, whose token names both layers and it."""
    found = dict[str, list[str]]()
    for word, concept in word_concepts().items():
        found.setdefault(_name_of(concept), []).append(word)
    return {name: words for name, words in found.items() if name}


def _name_of(concept: str) -> str:
    """What a concept is written as; "" where a plan has nothing of it."""
    kind, _, value = concept.partition(":")
    if kind == "bpm":
        return bpm_token(int(value))
    if kind == "tempo":
        return bpm_token(_TEMPOS[value])
    if kind in LAYERS:  # an instrument and its layer
        return f"layer:{kind}"
    if kind in ("section", "fraction", "not"):
        return ""
    return _written(concept)


def _genre_rules() -> Iterator[tuple[str, str]]:
    """The layers of its genre, but where a text says "only" and names layers or instruments."""
    yield rf"\A{_HEAD}(?!(?=.*(?<![^ ]){ONLY}(?![^ ]))(?=.*(?:instrument|layer):))", f"{_HEAD} band"
    for layer in LAYERS:
        genres = "|".join(_written(name) for name, genre in GENRES.items() if layer in genre.layer_set)
        is_of_the_last = rf"(?=(?>.*genre:)(?:{genres})(?![^ ]))"
        yield rf"\A{_HEAD}(?=.* band){is_of_the_last}(?!.*no:{layer})", f"{_HEAD} layer:{layer}"


def _layer_rules() -> Iterator[tuple[str, str]]:
    """An instrument plays in a layer that sounds, or else at home; then all other layers are silent."""
    for name, layers in PLAYED_BY.items():
        homes = " ".join(f"home:{layer}" for layer in HOME_LAYERS.get(name, layers))
        plays = rf"(?!.*layer:(?:{'|'.join(layers)}))"
        yield rf"\A{_HEAD}(?=.*instrument:{_written(name)}(?![^ ])){plays}", f"{_HEAD} {homes}"
    yield "home:", "layer:"
    for layer in LAYERS:
        yield rf"layer:{layer}(?=.*no:{layer})", " "
        yield rf"\A{_HEAD}(?=.*layer:)(?!.*(?:layer|no):{layer})", f"{_HEAD} no:{layer}"
