"""What a prompt says of how a song goes: what it begins with, which kinds follow each other, whether it rises."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import NamedTuple

from runtime.config.plan_spec import PlanSpec

_WITH = r"(?:with|mit|avec|par|con)"
_ONLY = r"(?:only|just|nur|lediglich|seulement|solo)"
_AT_FIRST = r"(?:at first|(?:at|in) the (?:start|beginning|intro)|am anfang|au début|al principio)"
_THEN = r"(?:then|followed by|dann|danach|puis|ensuite|luego)"
# What stands behind these, up to the end of a clause, is heard first.
_BEGINS = (
    re.compile(
        rf"\b(?:start|begin|open|fang|fäng|commenc|empiez|comienz|inizi)[a-z]{{0,4}} (?:{_ONLY} )?{_WITH} "
        r"([^,.;:\n]{1,60})",
        re.IGNORECASE,
    ),
    re.compile(rf"\b(?:first|zuerst|d'abord|primero) (?:{_ONLY}|the) ([^,.;:\n]{{1,60}})", re.IGNORECASE),
    re.compile(rf"\b{_ONLY} ([^,.;:\n]{{1,40}}) {_AT_FIRST}\b", re.IGNORECASE),
    re.compile(rf"(?:^|[,.;:\n] ?)([^,.;:\n]{{1,40}}) (?:{_ONLY}|alone|allein) {_AT_FIRST}\b", re.IGNORECASE),
    re.compile(rf"(?:^|[,.;:\n] ?)([^,.;:\n]{{1,40}}) (?:first|zuerst),? (?:and )?{_THEN}\b", re.IGNORECASE),
    re.compile(rf"\bintro:? (?:{_WITH} |of |is |in )?(?:{_ONLY} )([^,.;:\n]{{1,60}})", re.IGNORECASE),
)
_CLAUSE_ENDS = re.compile(r"\b(?:then|before|and add|adding|later|dann|danach|puis|ensuite|luego)\b", re.IGNORECASE)
_LATER = (
    *("then", "and then", "add", "then add", "later", "come", "come in", "comes in", "come in later", "join", "dann"),
    *("später", "kommt", "kommen", "dann kommt", "später kommt", "dann kommen", "später kommen", "puis", "luego"),
    *("después", "poi", "dopo"),
)
_KIND_WORD = re.compile(r"\b([a-z]{3,9}?)(?:[ -]?(?:up|down))?\b", re.IGNORECASE)
_FOLLOWS = re.compile(
    r"[ ,]{0,3}(?:(?:and |und )?(?:then|to|into|dann|puis|luego)|followed by|leading (?:in)?to|before|->|→)"
    r"(?: (?:a|an|the|ein|der|le|el|big|huge|heavy|massive|hard)){0,3} ?",
    re.IGNORECASE,
)
_GROWS = r"(?:gets?|getting|grows?|growing|becom(?:es?|ing)|ends?) (?:ever |always |slowly |gradually )?"
_CLIMAX = r"(?:builds?|building|rises?|rising|swells?)(?: up)? to (?:a|the) (?:[a-z]{1,12} )?climax"
_LOUDER, _QUIETER = r"(?:louder|stronger|bigger)", r"(?:quieter|softer|calmer)"
_LOUD, _QUIET = r"(?:loud(?:ly|er)?|big(?:ger)?|stronger)", r"(?:quiet(?:ly|er)?|soft(?:ly|er)?|calm(?:ly|er)?)"
_MORE = rf"immer (?:lauter|stärker)|de plus en plus fort|cada vez más fuerte|crescendo|{_CLIMAX}"
_LESS = "immer (?:leiser|ruhiger)|de plus en plus (?:calme|doux)|cada vez más suave|diminuendo|decrescendo"
_RISES = re.compile(rf"\b(?:{_LOUDER} and {_LOUDER}|{_GROWS}{_LOUD}|{_QUIET} to {_LOUD}|{_MORE})\b", re.IGNORECASE)
_FALLS = re.compile(rf"\b(?:{_QUIETER} and {_QUIETER}|{_GROWS}{_QUIET}|{_LOUD} to {_QUIET}|{_LESS})\b", re.IGNORECASE)
# What is read here is no typo of another word.
WORDS = frozenset(
    re.findall(r"[a-zà-ÿ]{4,}", " ".join([_RISES.pattern, _FALLS.pattern, _FOLLOWS.pattern, *_LATER, _AT_FIRST, _ONLY]))
)


class Course(NamedTuple):
    """How a song goes. kinds, layers: of its first sections, in tokens. rise: 1, it gets louder; -1, quieter."""

    kinds: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    rise: int = 0


def read_course(spec: PlanSpec, text: str, tokens: Callable[[str], Collection[int]]) -> Course:
    """What a prompt says of a song's course. tokens: of a text."""
    layers = first_layers(spec, text, tokens)
    kinds = tuple(ordered_kinds(spec, text))
    if layers and not kinds and spec.beginning:
        kinds = (spec.kind.token(spec.beginning),)
    return Course(kinds, layers, int(_RISES.search(text) is not None) - int(_FALLS.search(text) is not None))


def course_words(spec: PlanSpec, text: str, tokens: Callable[[str], Collection[int]]) -> list[str]:
    """The parts of a prompt that say its song's course, and what else says that something follows."""
    parts = [found[0] for pattern in (_RISES, _FALLS) if (found := pattern.search(text)) is not None]
    if first_layers(spec, text, tokens):
        parts += [found[0] for pattern in _BEGINS if (found := pattern.search(text)) is not None]
    words = [word for word in _KIND_WORD.finditer(text) if word[1].lower() in _kind_names(spec)]
    follows = [_FOLLOWS.fullmatch(text, first.end(), second.start()) for first, second in pairwise(words)]
    pairs = zip(pairwise(words), follows, strict=True)
    parts += [f"{first[0]}{found[0]}{second[0]}" for (first, second), found in pairs if found is not None]
    return [*parts, *_LATER] if parts else []


def first_layers(spec: PlanSpec, text: str, tokens: Callable[[str], Collection[int]]) -> tuple[int, ...]:
    """The layers that a prompt begins with, as the token of them all; () where it names none."""
    for pattern in _BEGINS:
        if (found := pattern.search(text)) is None:
            continue
        named = spec.layers_named(tokens(_CLAUSE_ENDS.split(found[1], maxsplit=1)[0]))
        value = next((value for value in spec.layers.values if frozenset(value.split("+")) == named), None)
        if value is not None:
            return (spec.layers.token(value),)
    return ()


def ordered_kinds(spec: PlanSpec, text: str) -> Iterator[int]:
    """The kinds of sections that a prompt names one after the other, such as "build up then drop"."""
    names = _kind_names(spec)
    words = [word for word in _KIND_WORD.finditer(text) if word[1].lower() in names]
    follows = [_FOLLOWS.fullmatch(text, first.end(), second.start()) for first, second in pairwise(words)]
    for word, before, after in zip(words, [None, *follows], [*follows, None], strict=False):
        if before is not None or after is not None:
            yield spec.kind.token(names[word[1].lower()])


def _kind_names(spec: PlanSpec) -> dict[str, str]:
    names = {name: name for name in spec.kind.values} | dict(spec.tags)
    return names | {f"{name}s": kind for name, kind in names.items()}
