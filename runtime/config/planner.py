"""`[planner]` in bundle.toml: the autoregressive model that writes structure codes and metadata.

Shape letters: R rows, U new tokens per row, G logits per row, E cache slots that attention reads, H key and value
heads, M capacity of a cache, J width of a head, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runtime.config.explain import FileName, TomlTable
from runtime.config.plan_spec import PlanSpec, TokenRange

# A window that ends nowhere.
NO_WINDOW = 1 << 40
_PLACEHOLDER = re.compile(r"\{(caption|lyrics|thinking)\}")


class LanguageInputs(TomlTable):
    """Role -> tensor name. All but the caches are int64.

    tokens `[R,U]`, position `[R]` of the first of them, write `[R]` the cache slot that it is written to, window `[R]`:
    how many positions attention sees, slots `[E]` 0 to E-1, pick `[R,G,1]`: which of the tokens get logits.
    past: the caches `[R,H,M,J]` in order (keys and values of the first layer, of the second, ...).
    """

    tokens: str = "tokens"
    position: str = "position"
    write: str = "write"
    window: str = "window"
    slots: str = "slots"
    pick: str = "pick"
    past: tuple[str, ...] = Field(min_length=1)


class LanguageOutputs(TomlTable):
    """Role -> tensor name. logits float32 `[R,G,V]`, present: the caches, at the addresses of `past`, in its order."""

    logits: str = "logits"
    present: tuple[str, ...] = Field(min_length=1)


class LanguageGraphSpec(TomlTable):
    """A decoder with caches that grow in place. capacity: M. window: positions that attention sees; 0: all of them.

    With a window a cache is a ring; a sequence then has no end.
    """

    graph: FileName
    capacity: int = Field(ge=2)
    window: int = Field(default=0, ge=0)
    inputs: LanguageInputs
    outputs: LanguageOutputs

    @model_validator(mode="after")
    def _check_caches(self) -> Self:
        past, present = len(self.inputs.past), len(self.outputs.present)
        if past != present:
            raise ValueError(f"inputs.past has {past} names, outputs.present {present}: one for each cache")
        return self

    @property
    def window_input(self) -> int:
        """The value of the input `window`."""
        return self.window or NO_WINDOW


class TokenSamplerSpec(TomlTable):
    """Defaults of sampling, in this order: guidance, top_k, top_p, temperature.

    candidates: the most tokens that any of them leaves to choose from. top_k: 0 for no limit, 1 for the likeliest.
    """

    candidates: int = Field(default=1024, ge=1, le=3840)
    guidance: float = Field(default=1.0, ge=0.0, le=20.0)
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)


class PromptSpec(TomlTable):
    """Templates of a phase's prompts with {caption}, {lyrics} and {thinking}, the text of the phase before.

    negative: of guidance's negative rows. user_negative: the same where the user gave a negative caption, which takes
    the place of {caption}; default: as `negative`.
    """

    prompt: str = ""
    negative: str = ""
    user_negative: str = ""

    def texts(self, values: Mapping[str, str], negative: str = "") -> tuple[str, str]:
        """The prompt and the negative prompt."""
        if not negative:
            return _filled(self.prompt, values), _filled(self.negative, values)
        other = _filled(self.user_negative or self.negative, {**values, "caption": negative})
        return _filled(self.prompt, values), other


class FieldSpec(TomlTable):
    """One line of the thinking, "NAME: VALUE".

    integer: minimum to maximum. choice: one of `values`. text: at most max_tokens tokens, with no token that contains a
    text of `without`; further lines are indented. is_greedy: a choice begins with its likeliest token. option: the
    public option that it is, which forces it where it is given and takes its value where it is not.
    """

    name: str = Field(min_length=1)
    option: Literal["seconds", "bpm", "key", "time_signature", "language"] | None = None
    kind: Literal["integer", "choice", "text"]
    minimum: int = 0
    maximum: int = 0
    values: tuple[str, ...] = ()
    max_tokens: int = Field(default=512, ge=1)
    without: tuple[str, ...] = ()
    is_greedy: bool = False

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if self.kind == "integer" and not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"needs 0 <= minimum <= maximum, got {self.minimum}, {self.maximum}")
        if (self.kind == "choice") != bool(self.values):
            raise ValueError("kind choice has values, and no other kind has them")
        return self

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that may come; () for text."""
        if self.kind == "integer":
            return tuple(str(value) for value in range(self.minimum, self.maximum + 1))
        return self.values


class ThinkingSpec(PromptSpec):
    """The phase that writes metadata: `start`, a line per field, `end`."""

    start: str = "<think>\n"
    end: str = "</think>"
    fields: tuple[FieldSpec, ...] = Field(min_length=1)


class CodesSpec(PromptSpec):
    """The phase that writes structure codes, with a token of every group per code.

    A code is a number whose digits are the tokens, each counted from its group's first; the first group's digit counts
    1, the second's as much as the first group has tokens, and so on. markers: tokens before a code that are given and
    never sampled.
    """

    groups: Annotated[tuple[TokenRange, ...], Field(min_length=1)]
    markers: TokenRange | None = None

    @property
    def count(self) -> int:
        """How many different numbers the tokens of a code can be."""
        return prod(group.count for group in self.groups)

    def number(self, tokens: Sequence[int]) -> int:
        """The number that the tokens of one code stand for."""
        total = 0
        for group, token in zip(reversed(self.groups), reversed(tokens), strict=True):
            total = total * group.count + token - group.first
        return total

    def numbers(self, tokens: Iterable[int]) -> list[int]:
        """The numbers of the complete codes among tokens, of which those of no group are left out."""
        digits = [token for token in tokens if any(group.first <= token < group.end for group in self.groups)]
        width = len(self.groups)
        return [self.number(digits[place : place + width]) for place in range(0, len(digits) - width + 1, width)]

    def tokens(self, number: int) -> tuple[int, ...]:
        """The tokens of one code's number."""
        found = []
        for group in self.groups:
            number, digit = divmod(number, group.count)
            found.append(group.first + digit)
        return tuple(found)


class PlannerSpec(LanguageGraphSpec):
    """The planner. One execute takes `prefill_tokens` tokens of a prompt, or verifies up to `verify_tokens` drafts.

    tokenizer: none where requests give tokens. vocabulary: V. end_token: ends plans and codes. default: whether
    generations of `default_from_s` seconds or more are planned whose options do not say. draft: a smaller graph with
    the same tokens, for speculation.
    """

    default: bool = True
    default_from_s: float = Field(default=0.0, ge=0.0)
    tokenizer: FileName | None = None
    vocabulary: int = Field(ge=2)
    end_token: int = Field(ge=0)
    prefill_tokens: int = Field(default=32, ge=1)
    verify_tokens: int = Field(default=5, ge=2)
    sampler: TokenSamplerSpec = TokenSamplerSpec()
    thinking: ThinkingSpec | None = None
    plan: PlanSpec | None = None
    codes: CodesSpec
    draft: LanguageGraphSpec | None = None

    @model_validator(mode="after")
    def _check_capacity(self) -> Self:
        for name, graph in (("", self), ("draft.", self.draft)):
            if graph is None:
                continue
            least = max(graph.window, 1) + max(self.prefill_tokens, self.verify_tokens) - 1
            if graph.capacity < least:
                raise ValueError(
                    f"{name}capacity is {graph.capacity}, expected at least {least}: the window and the tokens of one "
                    "execute"
                )
            if graph.window and graph.capacity % self.prefill_tokens:
                raise ValueError(
                    f"{name}capacity is {graph.capacity}, expected a multiple of prefill_tokens {self.prefill_tokens}: "
                    "a chunk does not cross the end of a ring"
                )
        return self

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        ends = {f"codes.groups.{index}": group.end for index, group in enumerate(self.codes.groups)}
        if self.codes.markers is not None:
            ends["codes.markers"] = self.codes.markers.end
        if self.plan is not None:
            ends |= {f"plan.{name}": end for name, end in self.plan.ends()}
        for name, end in ends.items():
            if end > self.vocabulary:
                raise ValueError(f"{name} ends at token {end}, vocabulary is {self.vocabulary}")
        if self.tokenizer is None and (self.thinking is not None or self.plan is not None):
            raise ValueError("thinking and plan need a tokenizer: they begin with text")
        if self.plan is not None and self.plan.pitches:
            found, expected = [len(each) for each in self.plan.pitches], [group.count for group in self.codes.groups]
            if found != expected:
                raise ValueError(f"plan.pitches is for {found} tokens, codes.groups have {expected}")
        if self.plan is not None and self.plan.onsets:
            found, expected = [len(each) for each in self.plan.onsets], [group.count for group in self.codes.groups]
            if len(found) != len(expected) or any(
                each not in (0, count) for each, count in zip(found, expected, strict=True)
            ):
                raise ValueError(
                    f"plan.onsets is for {found} tokens, codes.groups have {expected}; 0 for a group of none"
                )
        if self.end_token >= self.vocabulary:
            raise ValueError(f"end_token is {self.end_token}, vocabulary is {self.vocabulary}")
        return self


def _filled(template: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], ""), template)
