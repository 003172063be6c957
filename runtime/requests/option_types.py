"""Values that public parameters take: numbers, curves, objects. Each says its bounds in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from runtime.config.deployment import AdapterId, Strength
from runtime.config.notes import MAX_END_S
from runtime.config.option_ranges import ANY_MODEL, within
from runtime.config.words import read_adapters, read_key, read_names, read_spans, read_tempo, read_time_signature
from runtime.requests.request import DCW_READS, DENOISE_MIN

MAX_SECONDS = MAX_END_S
MIN_SECONDS = 0.1
MAX_CURVE_VALUES = 4096
MAX_CHANNELS = 1024
MAX_PROMPT_CHARACTERS = 2000
MAX_PROMPTS = 8
MAX_ADAPTERS = 8
MAX_SPANS = 64
MAX_TRACK_CLASSES = 16
MAX_CODES = 4096
MAX_CODE_CHARACTERS = 32
MAX_LYRICS_CHARACTERS = 8192
MAX_NAME_CHARACTERS = 50
KEY = re.compile(r"[A-G][#b]? (major|minor)")
LANGUAGE = r"^[A-Za-z]{2,8}(-[A-Za-z]{2,8})?$"
# Mark in the published schema: the list has one value per latent channel.
PER_CHANNEL: JsonDict = {"x-length": "latent_channels"}


@dataclass(frozen=True)
class OneOf:
    """Takes a value of any of `branches` and answers everything else with one sentence instead of one per branch."""

    message: str
    branches: Any = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler.generate_schema(self.branches) if self.branches is not None else handler(source)
        return core_schema.no_info_wrap_validator_function(self._check, inner)

    def _check(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(value)
        except ValidationError:
            raise PydanticCustomError("one_of", "{message}", {"message": self.message}) from None


def bounded(low: float, high: float) -> OneOf:
    """A number or a curve, every value inside `low..high`."""
    number = Annotated[float, Field(ge=low, le=high)]
    numbers = Annotated[list[number], Field(min_length=1, max_length=MAX_CURVE_VALUES, fail_fast=True)]
    return OneOf(
        f"expected a number from {low:g} to {high:g}, or a list of 1 to {MAX_CURVE_VALUES} such numbers",
        number | numbers,
    )


Text = Annotated[str, Field(max_length=MAX_PROMPT_CHARACTERS)]
Track = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Time = Annotated[float, Field(gt=DENOISE_MIN, le=1.0)]
Values = float | list[float]
Weight = Annotated[Values, bounded(0.0, 10.0)]
UnitCurve = Annotated[Values, bounded(0.0, 1.0)]
DcwStrength = Annotated[Values, bounded(*ANY_MODEL.dcw_low.ends)]
NoiseScale = Annotated[Values, bounded(*ANY_MODEL.ode_noise.ends)]
GainValue = Annotated[float, Field(ge=0.0, le=8.0)]
GainChannels = Annotated[
    list[GainValue], Field(min_length=1, max_length=MAX_CHANNELS, fail_fast=True, json_schema_extra=PER_CHANNEL)
]
Gain = Annotated[
    GainValue
    | GainChannels
    | Annotated[list[GainChannels], Field(min_length=1, max_length=MAX_CURVE_VALUES, fail_fast=True)],
    OneOf("expected a number from 0 to 8, a list with one per latent channel, or a list of such lists"),
]


Codes = Annotated[
    Annotated[str, Field(max_length=MAX_CODES * MAX_CODE_CHARACTERS)]
    | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, max_length=MAX_CODES, fail_fast=True)],
    OneOf(f"expected codes such as <|audio_code_12|><|audio_code_7|>, or a list of 1 to {MAX_CODES} numbers"),
]


class OptionModel(BaseModel):
    """Base of options: unknown members, NaN and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class WeightedPrompt(OptionModel):
    """One of several prompts, blended by weight."""

    text: Text = Field(description="Text that describes the audio.")
    weight: Weight = Field(default=1.0, description="Its share: a number, or a curve over the generation.")
    start: Share = Field(default=0.0, description="Active from this share of the steps on.")
    end: Share = Field(default=1.0, description="Active up to this share of the steps (not included, unless it is 1).")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.start < self.end:
            raise PydanticCustomError("range", "needs start < end")
        return self


Prompt = Annotated[
    Text | Annotated[list[WeightedPrompt], Field(min_length=1, max_length=MAX_PROMPTS)],
    OneOf(
        f"expected a text of at most {MAX_PROMPT_CHARACTERS} characters, or a list of 1 to {MAX_PROMPTS} objects "
        "{text, weight, start, end} with weight from 0 to 10 and 0 <= start < end <= 1"
    ),
]


class Span(OptionModel):
    """A segment of time inside the generation."""

    start_s: float = Field(ge=0.0, le=MAX_SECONDS, description="Where it begins, in seconds.")
    end_s: float = Field(ge=0.0, le=MAX_SECONDS, description="Where it ends, in seconds.")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.start_s < self.end_s:
            raise PydanticCustomError("range", "needs start_s < end_s")
        return self


def _object_not(text: str, example: str) -> BeforeValidator:
    """What is said of an item that is a text still."""

    def check(value: Any) -> Any:
        if isinstance(value, str):
            raise PydanticCustomError("text", "{message}", {"message": f"expected {text}, such as {example}"})
        return value

    return BeforeValidator(check)


Spans = Annotated[
    list[Annotated[Span, _object_not("FROM:TO in seconds", '"4:7.5"')]],
    Field(min_length=1, max_length=MAX_SPANS),
    BeforeValidator(read_spans),
]
Tracks = Annotated[list[Track], Field(min_length=1, max_length=MAX_TRACK_CLASSES), BeforeValidator(read_names)]


class NoteOptions(OptionModel):
    """A note that the generation plays."""

    layer: str | None = Field(
        default=None, max_length=100, description="The layer that plays it. Default: the one whose keys have the pitch."
    )
    pitch: int = Field(
        ge=0, le=127, description="MIDI's, 60 is middle C; moved by octaves into the layer's keys. Of drums the key."
    )
    start_s: float = Field(ge=0.0, le=MAX_SECONDS, description="When it begins, in seconds.")
    seconds: float = Field(gt=0.0, le=MAX_SECONDS, description="How long it sounds.")
    velocity: int = Field(default=100, ge=1, le=127, description="How loud it is.")

    @property
    def end_s(self) -> float:
        """When it ends."""
        return self.start_s + self.seconds

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if self.end_s > MAX_SECONDS:
            raise PydanticCustomError("range", f"needs start_s + seconds <= {MAX_SECONDS:g}")
        return self


class DcwOptions(OptionModel):
    """Wavelet-domain correction of each step (DCW); off where both strengths are 0."""

    mode: Literal["low", "high", "double", "pix"] = Field(
        default="double",
        description="Which bands are corrected: low, high, both (double), or the frames themselves (pix).",
    )
    low: DcwStrength = Field(
        default=0.0,
        description="Strength in the low band, or of mode pix. Not for mode high. Above 0.02 the demo loses its key.",
    )
    high: DcwStrength = Field(
        default=0.0,
        description="Strength in the high band. For modes high and double. Above 0.2 the demo loses its key.",
    )

    @model_validator(mode="after")
    def _read(self) -> Self:
        for name in ("low", "high"):
            values = np.atleast_1d(getattr(self, name))
            if name not in DCW_READS[self.mode] and np.any(values):
                raise PydanticCustomError("dcw", f"mode {self.mode} does not read {name}: leave it out")
        return self


class AdapterOptions(OptionModel):
    """One LoRA adapter of GET /v1/adapters."""

    id: AdapterId = Field(min_length=1, max_length=100, description="Its id.")
    strength: Strength = Field(default=1.0, description="How strongly it acts; 0 is off.")


def _one_each(adapters: list[AdapterOptions]) -> list[AdapterOptions]:
    if len({item.id for item in adapters}) < len(adapters):
        raise PydanticCustomError("unique", "expected every adapter once")
    return adapters


Adapters = Annotated[
    list[Annotated[AdapterOptions, _object_not("ID:STRENGTH", '"soft:0.7"')]],
    Field(max_length=MAX_ADAPTERS),
    AfterValidator(_one_each),
    BeforeValidator(read_adapters),
]


def _checked_key(key: str) -> str:
    if KEY.fullmatch(key) is None:
        raise PydanticCustomError("key", 'expected a key such as "C major", "F# minor", "Bb major" or "Am"')
    return key


class TextOptions(OptionModel):
    """Lyrics, metadata and the instruction. A bundle takes those that its templates have a placeholder for."""

    lyrics: str = Field(
        default="",
        max_length=MAX_LYRICS_CHARACTERS,
        description="Text to sing, with sections such as [verse] and [chorus]; models that do not sing take the "
        "sections alone, as those of the plan. Empty: what the model makes of it.",
    )
    language: str = Field(default="en", pattern=LANGUAGE, description="The lyrics' language, as a code such as en.")
    bpm: Annotated[Annotated[float, within(ANY_MODEL.bpm)] | None, BeforeValidator(read_tempo)] = Field(
        default=None,
        description='Beats per minute, also as "120 BPM". Default, or "N/A": the model\'s choice.',
    )
    key: Annotated[
        Annotated[str, AfterValidator(_checked_key), Field(max_length=MAX_NAME_CHARACTERS)] | None,
        BeforeValidator(read_key),
    ] = Field(
        default=None,
        description='A key such as "C major", "F# minor", "Bb Major" or "Am". Default, or "N/A": the model\'s choice.',
    )
    time_signature: Annotated[Literal[2, 3, 4, 6] | None, BeforeValidator(read_time_signature)] = Field(
        default=None,
        description='Beats in a bar: 2/4, 3/4, 4/4, 6/8, also as "4/4". Default, or "N/A": the model\'s choice.',
    )
    instruction: str | None = Field(
        default=None, max_length=500, description="What the model is told to do. Default: the task's instruction."
    )
