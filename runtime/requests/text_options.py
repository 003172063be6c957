"""Public parameters that become text for the model besides the prompt: lyrics, metadata and the instruction."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runtime.config.option_ranges import ANY_MODEL, within
from runtime.config.words import read_key, read_tempo, read_time_signature

MAX_LYRICS_CHARACTERS = 8192
MAX_NAME_CHARACTERS = 50
KEY = re.compile(r"[A-G][#b]? (major|minor)")
LANGUAGE = r"^[A-Za-z]{2,8}(-[A-Za-z]{2,8})?$"


def _checked_key(key: str) -> str:
    if KEY.fullmatch(key) is None:
        raise PydanticCustomError("key", 'expected a key such as "C major", "F# minor", "Bb major" or "Am"')
    return key


class TextOptions(BaseModel):
    """Lyrics, metadata and the instruction. A bundle takes those that its templates have a placeholder for."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

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
