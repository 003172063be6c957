"""The thinking of a planner in tokens: what may come in each of its fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import ConfigError
from runtime.config.planner import FieldSpec, PlannerSpec, ThinkingSpec

Mask = NDArray[np.bool_]
NEWLINE = "\n"


class Encoding(Protocol):
    """What a tokenizer makes of a text."""

    @property
    def ids(self) -> list[int]:
        """Its tokens."""


class Tokenizer(Protocol):
    """As in the package tokenizers."""

    def encode(self, sequence: str, *, add_special_tokens: bool = ...) -> Encoding:
        """The text's tokens."""

    def decode_batch(self, sequences: Any, *, skip_special_tokens: bool = ...) -> list[str]:
        """The texts of several sequences."""

    def get_added_tokens_decoder(self) -> Mapping[int, Any]:
        """The tokens that are no text."""


class Fixed(NamedTuple):
    """Tokens that come as they are."""

    tokens: tuple[int, ...]


class Choice(NamedTuple):
    """One of several values and a newline. tree: tokens so far -> those that may come next."""

    tree: Mapping[tuple[int, ...], tuple[int, ...]]
    is_greedy: bool


class Text(NamedTuple):
    """Text that ends with a line that is not indented: the next field."""

    field: str
    max_tokens: int


Segment = Fixed | Choice | Text


class ThinkingGrammar:
    """The thinking of a bundle in tokens, shared by all sequences. Raises ConfigError for a field without tokens."""

    def __init__(self, planner: PlannerSpec, tokenizer: Tokenizer) -> None:
        assert planner.thinking is not None
        self.spec: ThinkingSpec = planner.thinking
        self._tokenizer, self._vocabulary = tokenizer, planner.vocabulary
        self._not_text = [*planner.codes.groups, *([planner.codes.markers] if planner.codes.markers else [])]
        self.newline = self.encode(NEWLINE)[-1]
        self._names = {field.name: self.encode(f"{field.name}:") for field in self.spec.fields}
        self._values = {field.name: self._segment(field) for field in self.spec.fields}

    def encode(self, text: str) -> tuple[int, ...]:
        """A text's tokens."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def segments(self, given: Mapping[str, str], skipped: Collection[str]) -> tuple[Segment, ...]:
        """Start, name and value of every field that is not skipped, end."""
        found: list[Segment] = [Fixed(self.encode(self.spec.start))]
        for name in self._names:
            if name not in skipped:
                value = Fixed(self.encode(f" {given[name]}{NEWLINE}")) if name in given else self._values[name]
                found += [Fixed(self._names[name]), value]
        return (*found, Fixed(self.encode(self.spec.end)))

    @cached_property
    def texts(self) -> list[str]:
        """Every token's text; "" for those that are no text."""
        texts = self._tokenizer.decode_batch([[token] for token in range(self._vocabulary)], skip_special_tokens=False)
        for token in self._tokenizer.get_added_tokens_decoder():
            if token < self._vocabulary:
                texts[token] = ""
        for tokens in self._not_text:
            texts[tokens.first : tokens.end] = [""] * tokens.count
        return texts

    @cached_property
    def has_newline(self) -> Mask:
        """Which tokens end a line, `[V]`."""
        return np.array([NEWLINE in text for text in self.texts])

    @cached_property
    def is_text(self) -> Mapping[str, Mask]:
        """Field of text -> the tokens that it may have, `[V]`."""
        return {field.name: self._text_mask(field.without) for field in self.spec.fields if field.kind == "text"}

    @cached_property
    def is_indented(self) -> Mask:
        """Which tokens go on with a text after a newline, `[V]`."""
        return np.array([text[:1] in (" ", "\t") for text in self.texts])

    def _text_mask(self, without: Collection[str]) -> Mask:
        return np.array([bool(text) and not any(part in text for part in without) for text in self.texts])  # [V]

    def _segment(self, field: FieldSpec) -> Segment:
        if field.kind == "text":
            return Text(field.name, field.max_tokens)
        tree: dict[tuple[int, ...], dict[int, None]] = {}
        name = self._names[field.name]
        for value in field.choices:
            tokens = self.encode(f"{field.name}: {value}")
            if tokens[: len(name)] != name or len(tokens) == len(name):
                raise ConfigError(
                    f"planner.thinking: the tokenizer does not begin {f'{field.name}: {value}'!r} with the tokens of "
                    f"{f'{field.name}:'!r}",
                    fix="use the checkpoint's tokenizer",
                )
            path = (*tokens[len(name) :], self.newline)
            for place, token in enumerate(path):
                tree.setdefault(path[:place], {})[token] = None
        longer = field.kind == "integer"
        return Choice({path: self._next(found, longer) for path, found in tree.items()}, field.is_greedy)

    def _next(self, found: Iterable[int], has_longer: bool) -> tuple[int, ...]:
        """Behind a complete number more digits may come, behind another complete value the newline."""
        tokens = tuple(found)
        return tokens if has_longer or self.newline not in tokens else (self.newline,)


def thinking_values(text: str) -> dict[str, str]:
    """Field -> value of a thinking's text; lines of one value are joined by spaces."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.split(NEWLINE):
        if line[:1].isspace():
            found.get(name, []).append(line.strip())
        elif ":" in line and not line.startswith("<"):
            name, _, value = line.partition(":")
            found[name.strip()] = [value.strip()]
            name = name.strip()
    return {key: " ".join(part for part in parts if part) for key, parts in found.items()}
