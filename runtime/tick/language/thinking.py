"""The thinking of a planner in tokens: what may come in each of its fields, and the constraint that follows them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from runtime.base.errors import ConfigError, RequestError
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


class ThinkingConstraint:
    """The fields in their order, each "NAME: VALUE". given: field -> its value, as the user has it. skipped: left out.

    The rules are those of ACE-Step's constrained decoding, but that a field after a text is always the next one.
    Raises RequestError for a value that its field cannot have.
    """

    def __init__(
        self, grammar: ThinkingGrammar, given: Mapping[str, str] | None = None, skipped: Collection[str] = ()
    ) -> None:
        given = given or {}
        for field in grammar.spec.fields:
            _check_given(field, given.get(field.name))
        self._grammar, self._segments = grammar, grammar.segments(given, skipped)
        self._place, self._count, self._is_line_start = 0, 0, False
        self._path: tuple[int, ...] = ()

    @property
    def key(self) -> Hashable:
        """The segment, and what of it came."""
        segment = self._segment
        if isinstance(segment, Text):
            return self._place, self._is_line_start, self._count >= segment.max_tokens
        return self._place, self._path

    @property
    def is_done(self) -> bool:
        """Whether all fields are complete; the end's tokens are left to the next phase's prompt."""
        return self._place == len(self._segments) - 1

    @property
    def is_greedy(self) -> bool:
        """At the first token of a field that is so."""
        segment = self._segment
        return isinstance(segment, Choice) and segment.is_greedy and not self._path

    def write_allowed(self, allowed: Mask) -> None:
        """What the segment may have."""
        segment = self._segment
        if isinstance(segment, Text) and self._count < segment.max_tokens:
            np.copyto(allowed, self._grammar.is_text[segment.field])  # [V]
            if self._is_line_start:
                np.logical_and(allowed, self._grammar.is_indented, out=allowed)  # [V]
                allowed[self._next_token] = True
            return
        allowed[:] = False
        allowed[list(self._choices())] = True  # [V]

    def forced(self, limit: int) -> list[int]:
        """The rest of a name or of a given value, and what follows it."""
        ahead, found = copy(self), list[int]()
        while len(found) < limit and not ahead.is_done:
            choices = ahead._choices()
            if len(choices) != 1:
                break
            found.append(choices[0])
            ahead.advance(choices[0])
        return found

    def advance(self, token: int) -> None:
        """Go on in the segment, or to the next one."""
        segment = self._segment
        if isinstance(segment, Text):
            self._advance_text(token)
            return
        self._path = (*self._path, token)
        is_complete = self._path == segment.tokens if isinstance(segment, Fixed) else token == self._grammar.newline
        if is_complete:
            self._enter(self._place + 1)

    def state(self) -> list[int]:
        """Segment, tokens of a text, whether a line begins, what of the segment came."""
        return [self._place, self._count, int(self._is_line_start), *self._path]

    def restore(self, state: Sequence[int]) -> None:
        """As `state` gave."""
        self._place, self._count, self._is_line_start = state[0], state[1], bool(state[2])
        self._path = tuple(state[3:])

    @property
    def _segment(self) -> Segment:
        return self._segments[self._place]

    @property
    def _next_token(self) -> int:
        """The first token behind a text."""
        following = self._segments[self._place + 1]
        assert isinstance(following, Fixed)
        return following.tokens[0]

    def _choices(self) -> tuple[int, ...]:
        """The tokens that may come, where they are few; () in a text."""
        segment = self._segment
        if isinstance(segment, Fixed):
            return segment.tokens[len(self._path) : len(self._path) + 1]
        if isinstance(segment, Choice):
            return segment.tree[self._path]
        if self._count < segment.max_tokens:
            return ()
        return (self._next_token,) if self._is_line_start else (self._grammar.newline,)

    def _advance_text(self, token: int) -> None:
        if self._is_line_start and token == self._next_token:
            self._enter(self._place + 1)
            self.advance(token)
            return
        self._count += 1
        self._is_line_start = bool(self._grammar.has_newline[token])

    def _enter(self, place: int) -> None:
        self._place, self._path, self._count, self._is_line_start = place, (), 0, False


def _check_given(field: FieldSpec, value: str | None) -> None:
    if value is None or field.kind == "text" or value in field.choices:
        return
    expected = f"{field.minimum} to {field.maximum}" if field.kind == "integer" else ", ".join(field.values)
    raise RequestError(f"{field.name} is {value!r}, expected {expected}")


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
