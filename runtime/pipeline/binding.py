"""Which moods of a prompt are said of single parts of the music: "loud drums and soft piano"."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from runtime.config.conditions import MeaningSpec, PartSpec
from runtime.requests.prompt_words import BoundMood

# A part and its moods lie between two of these, in one of the languages of prompts.
_SEPARATES = re.compile(
    r"[,;:|.+&/\n()]|\b(?:and|but|with|over|under|against|on top of|plus|while|und|aber|mit|uber|über|unter|dazu|et|"
    r"mais|avec|sur|sous|y|e|ed|pero|con|sobre|bajo|ma|su|sopra|sotto)\b",
    re.IGNORECASE,
)


class Token(NamedTuple):
    """A token of a text, and its characters; those of what stands for several words are the last of them."""

    text: str
    start: int
    end: int


class _Said(NamedTuple):
    """A mood that stands with parts. token: its word."""

    mood: str
    parts: tuple[PartSpec, ...]
    token: Token


def bound_moods(
    spec: MeaningSpec, text: str, tokens: Sequence[Token], played: Collection[str]
) -> tuple[tuple[BoundMood, ...], str]:
    """The moods that are said of parts beside which others play, and the text without those that the model is not told.

    tokens: those of the text that are understood. played: the names of all that is played.
    """
    words = {word: name for name, mood in spec.moods.items() for word in mood.words}
    named, found, unread = {words[token.text] for token in tokens if token.text in words}, list[BoundMood](), []
    parts = {name for part in spec.parts for names in part.names.values() for name in names}
    sounding = parts.intersection(played)
    for said in [said for phrase in _phrases(text, tokens) for said in _said(spec, words, phrase)]:
        mood = spec.moods[said.mood]
        if mood.against and not named.intersection(mood.against):
            continue
        bound = [
            BoundMood(said.mood, layer, name, mood.level_db, mood.is_sparse)
            for part in said.parts
            for layer, names in part.names.items()
            for name in names
            if name in sounding
        ]
        if bound and sounding - {each.name for each in bound}:
            found += bound
            unread += [] if mood.is_read else [said.token]
    return tuple(dict.fromkeys(found)), _without(text, unread)


def _phrases(text: str, tokens: Iterable[Token]) -> Iterator[list[Token]]:
    """The tokens between two separators each."""
    ends = [found.start() for found in _SEPARATES.finditer(text)]
    for _, phrase in groupby(tokens, lambda token: sum(end < token.end for end in ends)):
        yield list(phrase)


def _said(spec: MeaningSpec, moods: Mapping[str, str], phrase: Sequence[Token]) -> Iterator[_Said]:
    """The moods of a phrase with their parts: those behind them, or before them where the phrase begins with a part."""
    parts = {word: part for part in spec.parts for word in part.words}
    kinds = groupby(phrase, lambda token: "mood" if token.text in moods else "part" if token.text in parts else "")
    runs = [(kind, list(run)) for kind, run in kinds]
    step = -1 if runs[0][0] == "part" else 1
    for index, (kind, run) in enumerate(runs):
        place = index + step
        if kind == "mood" and 0 <= place < len(runs) and runs[place][0] == "part":
            noun = tuple(parts[token.text] for token in runs[place][1])
            yield from (_Said(moods[token.text], noun, token) for token in run)


def _without(text: str, tokens: Sequence[Token]) -> str:
    for token in sorted(tokens, key=lambda token: token.start, reverse=True):
        text = text[: token.start] + text[token.end :]
    return " ".join(text.split()) if tokens else text
