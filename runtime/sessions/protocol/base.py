"""What every message of the live protocol is made of."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from runtime.requests.option_types import MAX_PROMPTS, Text

MAX_SEQ = 2**32 - 1
MAX_SAMPLE = 2**64 - 1
MAX_MESSAGE_BYTES = 2**20
MAX_WRITE_S = 10.0
MAX_MESSAGES_PER_S = 1000

Seq = Annotated[int, Field(ge=1, le=MAX_SEQ, description="The client's counter, larger than in any message before.")]
Sample = Annotated[int, Field(ge=0, le=MAX_SAMPLE)]
Seconds = Annotated[float, Field(ge=0.0, le=1e9)]
Count = Annotated[int, Field(ge=0, le=MAX_SAMPLE)]
Identifier = Annotated[str, Field(min_length=1, max_length=200)]
Mode = Literal["loop", "extend"]
AudioFormat = Literal["s16", "f32", "opus"]
Blend = Literal["velocity", "tokens"]


class Message(BaseModel):
    """A JSON object without unknown members; it does not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, strict=True, populate_by_name=True, serialize_by_alias=True
    )


class LivePrompt(Message):
    """One of a session's prompts."""

    text: Text = Field(description="Text that describes the audio.")
    weight: float = Field(default=1.0, ge=0.0, le=10.0, description="Its share of the blend.")


Prompts = Annotated[list[LivePrompt], Field(max_length=MAX_PROMPTS)]
