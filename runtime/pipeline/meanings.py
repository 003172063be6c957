"""What prompts mean to a bundle: the words that it understands, and what is played, of single parts too.

The seed draws what a prompt does not name of some kind; in "loud drums and soft piano" moods are bound to parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np

from runtime.config.bundle import Bundle
from runtime.config.conditions import MeaningSpec, PartSpec
from runtime.music.part_moods import NO_MOODS, PartMoods, part_moods
from runtime.pipeline.compose import text_values
from runtime.pipeline.songs.course import course_words
from runtime.pipeline.songs.planner import Planner
from runtime.pipeline.text_encoder import TextEncoder, Token
from runtime.requests.options import GenerationOptions
from runtime.requests.prompt_words import BoundMood, PromptMeaning, PromptWords
from runtime.requests.seeds import drawn_name
from runtime.requests.segments import Segment

# A part and its moods lie between two of these, in one of the languages of prompts.
_SEPARATES = re.compile(
    r"[,;:|.+&/\n()]|\b(?:and|but|with|over|under|against|on top of|plus|while|und|aber|mit|uber|über|unter|dazu|et|"
    r"mais|avec|sur|sous|y|e|ed|pero|con|sobre|bajo|ma|su|sopra|sotto)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class PromptReader:
    """Reads the prompts of options. Any thread. Methods raise RequestError, EngineError.

    text_encoder: None where the bundle takes no text. planner: None where its generations have no plan.
    """

    bundle: Bundle
    text_encoder: TextEncoder | None
    planner: Planner | None = None

    def words(self, options: GenerationOptions) -> PromptWords | None:
        """Which words of the prompts and the negative prompt are understood; None where the bundle takes no text."""
        if self.text_encoder is None:
            return None
        prompts = [options.prompt] if isinstance(options.prompt, str) else [item.text for item in options.prompt]
        words, planner = self.text_encoder.words(prompts, options.negative_prompt), self.planner
        if planner is None or planner.spec.plan is None or options.plan is False:
            return words
        return words.with_understood(course_words(planner.spec.plan, ", ".join(prompts), planner.tokens))

    def meanings(self, options: GenerationOptions, seed: int) -> tuple[PromptMeaning, ...]:
        """What is played of each prompt, with what the seed draws; () where that is not told."""
        encoder = self.text_encoder
        if encoder is None or not encoder.names:
            return ()
        if isinstance(options.prompt, str):
            return (prompt_meaning(encoder, options.prompt, options, seed),)
        fields = ((f"prompt.{index}.text", item.text) for index, item in enumerate(options.prompt))
        return tuple(prompt_meaning(encoder, text, options, seed, field) for field, text in fields)

    def moods(self, options: GenerationOptions, seed: int, frames: int | None = None) -> PartMoods:
        """What the prompts say of single parts; none where the model does not tell. frames: that their weights span.

        Without them curves count by their mean.
        """
        if self.bundle.notes is None or not (meanings := self.meanings(options, seed)):
            return NO_MOODS
        bound = [meaning.bound for meaning in meanings]
        if isinstance(options.prompt, str) or not any(bound):
            return part_moods(bound[:1], [1.0])
        span = None if frames is None else Segment(0, frames, total_frames=frames)
        weights = [item.weight for item in options.prompt]
        return part_moods(bound, [float(np.mean(one)) if span is None else span.curve(one) for one in weights])

    def drawn(self, options: GenerationOptions, seed: int) -> GenerationOptions:
        """Options whose prompts are as played, with what the seed draws for them."""
        if not (texts := [meaning.played_text for meaning in self.meanings(options, seed)]):
            return options
        if isinstance(options.prompt, str):
            return options.model_copy(update={"prompt": texts[0]})
        items = zip(options.prompt, texts, strict=True)
        return options.model_copy(update={"prompt": [item.model_copy(update={"text": text}) for item, text in items]})


def prompt_meaning(
    text_encoder: TextEncoder, text: str, options: GenerationOptions, seed: int, field: str = "prompt"
) -> PromptMeaning:
    """What is played of a prompt, with the options that its template has; seed: what draws where it is drawn.

    A typo of one known word is played as that. The empty prompt gets nothing drawn. Raises RequestError, EngineError.
    """
    values = text_values(options, options.task or "text2music", text, None)
    found, kind = PromptMeaning(text, {}, corrections=text_encoder.corrections(text)), text_encoder.drawn_kind
    names = text_encoder.meaning(found.played_text, field=field, values=values)
    spec, read = text_encoder.spec.meaning, found.played_text
    if spec is not None and spec.moods:
        bound, read = bound_moods(spec, read, text_encoder.tokens(read), [*chain(*names.values())])
        found = replace(found, bound=bound, read=read)
        names = text_encoder.meaning(read, field=field, values=values)
    if kind and text.strip() and kind not in names:
        found = replace(found, drawn=(kind, drawn_name(text_encoder.names[kind], seed)))
        names = text_encoder.meaning(found.played_text, field=field, values=values)
    return replace(found, names=names)


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
