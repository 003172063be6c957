"""Which words of a prompt are understood, and what of it is played."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

WORD: Final = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*")


@dataclass(frozen=True)
class PromptWords:
    """The phrases of texts that the text encoder understands, and those that it has no token for.

    Both are as written, but for typos, which are as they are played, in the order of the texts, without repeats. near:
    by unknown word the words that the text encoder understands and that are written most like it.
    """

    understood: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    near: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether something is understood and nothing is unknown."""
        return bool(self.understood) and not self.unknown

    def with_understood(self, parts: Iterable[str]) -> PromptWords:
        """The same with unknown phrases that stand in one of these parts of texts among the understood ones."""
        spaced = [f" {part.lower()} " for part in parts]
        found = [phrase for phrase in self.unknown if any(f" {phrase.lower()} " in part for part in spaced)]
        if not found:
            return self
        unknown = tuple(phrase for phrase in self.unknown if phrase not in found)
        left = {word for phrase in unknown for word in phrase.split()}
        near = {word: others for word, others in self.near.items() if word in left}
        return PromptWords((*self.understood, *found), unknown, near)

    def __str__(self) -> str:
        understood = f"understood: {', '.join(self.understood) or 'nothing'}"
        if not self.unknown:
            return understood
        near = "".join(f" · {word}: {' or '.join(others)}?" for word, others in self.near.items())
        return f"{understood} · not understood: {', '.join(self.unknown)}{near}"


def with_corrections(text: str, corrections: Mapping[str, str]) -> str:
    """A text with other words in the place of some. corrections: by word."""
    return WORD.sub(lambda word: corrections.get(word[0], word[0]), text) if corrections else text


class BoundMood(NamedTuple):
    """A mood that is said of a part of the music. name: of the part, whose notes lie in `layer` of [notes].

    level_db: how much louder they are. is_sparse: of those that follow each other within a beat it has the first.
    """

    mood: str
    layer: str
    name: str
    level_db: float = 0.0
    is_sparse: bool = False


@dataclass(frozen=True)
class PromptMeaning:
    """What of a prompt is played, as far as the model tells.

    text: as written. names: by kind, such as "layers" or "genre". drawn: the kind of which it names nothing, and the
    name that the seed draws for it and that it is played with; None where nothing is drawn. corrections: by unknown
    word the one that it is played as. bound: moods of single parts. read: the text with corrections, and without moods
    that are only for single parts; None: as it is with corrections.
    """

    text: str
    names: Mapping[str, tuple[str, ...]]
    drawn: tuple[str, str] | None = None
    corrections: Mapping[str, str] = field(default_factory=dict)
    bound: tuple[BoundMood, ...] = ()
    read: str | None = None

    @property
    def played_text(self) -> str:
        """The text that the model gets."""
        text = with_corrections(self.text, self.corrections) if self.read is None else self.read
        return text if self.drawn is None else f"{text}, {self.drawn[1]}"

    @property
    def values(self) -> dict[str, Any]:
        """As JSON has it."""
        meaning = {kind: list(names) for kind, names in self.names.items()}
        drawn, bound = dict([self.drawn] if self.drawn else []), [each._asdict() for each in self.bound]
        return {"plays": str(self), "meaning": meaning, "drawn": drawn, "bound": bound}

    @property
    def bound_names(self) -> dict[str, list[str]]:
        """By mood the parts that it is said of."""
        return {
            mood: [bound.name for bound in self.bound if bound.mood == mood]
            for mood in dict.fromkeys(bound.mood for bound in self.bound)
        }

    def __str__(self) -> str:
        said = "; ".join(", ".join(names) for names in self.names.values())
        drawn = "" if self.drawn is None else f"{self.drawn[0]} drawn by the seed: {self.drawn[1]}"
        corrected = (f"{word} played as {known}" for word, known in self.corrections.items())
        levels = {bound.mood: f" {bound.level_db:+g} dB" for bound in self.bound if bound.level_db}
        bound = (f"{mood}: {', '.join(names)}{levels.get(mood, '')}" for mood, names in self.bound_names.items())
        return " · ".join(filter(None, (said, *bound, drawn, *corrected)))
