"""What every message of the live protocol is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_SEQ = 2**32 - 1
MAX_SAMPLE = 2**64 - 1

Seq = Annotated[int, Field(ge=1, le=MAX_SEQ, description="The client's counter, larger than in any message before.")]
Sample = Annotated[int, Field(ge=0, le=MAX_SAMPLE)]
Seconds = Annotated[float, Field(ge=0.0, le=1e9)]
Count = Annotated[int, Field(ge=0, le=MAX_SAMPLE)]
Identifier = Annotated[str, Field(min_length=1, max_length=200)]


class Message(BaseModel):
    """A JSON object without unknown members; it does not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, strict=True, populate_by_name=True, serialize_by_alias=True
    )
