"""Lyria RealTime's messages: JSON in camelCase or snake_case; numbers may be texts.

https://ai.google.dev/api/live_music has them. Every message of a client is an object with exactly one member.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from runtime.base.errors import RequestError
from runtime.base.untrusted import parse_json_object, quoted
from runtime.config.explain import sentence
from runtime.config.words import read_key
from runtime.requests.option_types import Text
from runtime.requests.request import MAX_SEED
from server.live.incoming import ViolationError

SAMPLE_RATE_HZ, CHANNELS = 48_000, 2
MIME_TYPE = f"audio/l16;rate={SAMPLE_RATE_HZ};channels={CHANNELS}"
MAX_MESSAGE_BYTES = 2**20
MAX_SEED_INT32 = min(MAX_SEED, 2**31 - 1)
MAX_WEIGHT = 1e6
MAX_WEIGHTED_PROMPTS = 100


def _specified(value: Any) -> Any:
    """The first value of Google's enumerations means that there is none."""
    return None if isinstance(value, str) and value.endswith("_UNSPECIFIED") else value


class _Message(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


class LyriaPrompt(_Message):
    """A prompt; only the relation of the weights matters."""

    text: Text
    weight: float = Field(default=1.0, ge=0.0, le=MAX_WEIGHT)


class ClientContent(_Message):
    """Replaces the prompts."""

    weighted_prompts: list[LyriaPrompt] = Field(max_length=MAX_WEIGHTED_PROMPTS)


Scale = Literal[
    "C_MAJOR_A_MINOR",
    "D_FLAT_MAJOR_B_FLAT_MINOR",
    "D_MAJOR_B_MINOR",
    "E_FLAT_MAJOR_C_MINOR",
    "E_MAJOR_D_FLAT_MINOR",
    "F_MAJOR_D_MINOR",
    "G_FLAT_MAJOR_E_FLAT_MINOR",
    "G_MAJOR_E_MINOR",
    "A_FLAT_MAJOR_F_MINOR",
    "A_MAJOR_G_FLAT_MINOR",
    "B_FLAT_MAJOR_G_MINOR",
    "B_MAJOR_A_FLAT_MINOR",
]
Mode = Literal["QUALITY", "DIVERSITY", "VOCALIZATION"]


class MusicGenerationConfig(_Message):
    """Replaces the whole configuration."""

    temperature: float | None = Field(default=None, ge=0.0, le=3.0)
    top_k: int | None = Field(default=None, ge=1, le=1000)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED_INT32)
    guidance: float | None = Field(default=None, ge=0.0, le=6.0)
    bpm: int | None = Field(default=None, ge=60, le=200)
    density: float | None = Field(default=None, ge=0.0, le=1.0)
    brightness: float | None = Field(default=None, ge=0.0, le=1.0)
    scale: Annotated[Scale | None, BeforeValidator(_specified)] = None
    mute_bass: bool | None = None
    mute_drums: bool | None = None
    only_bass_and_drums: bool | None = None
    music_generation_mode: Annotated[Mode | None, BeforeValidator(_specified)] = None

    @property
    def controls(self) -> dict[str, Any]:
        """The values as [controls] of a bundle takes them: the scale is its major key, such as "Db major"."""
        key = None if self.scale is None else read_key(f"{self.scale.partition('_MAJOR')[0]} major")
        return {**self.model_dump(), "scale": key}


class Setup(_Message):
    """The first message. Any model's name is that of the server's model."""

    model: str = Field(min_length=1, max_length=200)


Playback = Literal["PLAY", "PAUSE", "STOP", "RESET_CONTEXT"]


class ClientMessage(_Message):
    """A client's message: exactly one of these is given."""

    setup: Setup | None = None
    client_content: ClientContent | None = None
    music_generation_config: MusicGenerationConfig | None = None
    playback_control: Playback | None = None

    @property
    def content(self) -> Setup | ClientContent | MusicGenerationConfig | Playback:
        """The one that is given."""
        (name,) = self.model_fields_set
        found: Setup | ClientContent | MusicGenerationConfig | Playback = getattr(self, name)
        return found


def parse_message(data: str | bytes) -> Setup | ClientContent | MusicGenerationConfig | Playback:
    """What a client's message has.

    Raises ViolationError where it is none, after which Google's servers close the connection, too; RequestError where
    only a value cannot be used.
    """
    if len(data) > MAX_MESSAGE_BYTES:
        raise ViolationError(f"The message is larger than {MAX_MESSAGE_BYTES} bytes.", reason="too_large")
    try:
        values = parse_json_object(data)
    except RequestError as error:
        raise ViolationError(f"Invalid JSON payload received. {error.what}") from None
    given = {name: value for name, value in values.items() if value is not None}
    if len(given) != 1:
        names = ", ".join(map(to_camel, ClientMessage.model_fields))
        raise ViolationError(f"Invalid JSON payload received. Expected exactly one of {names}.")
    try:
        return ClientMessage.model_validate(given).content
    except ValidationError as error:
        raise _explained(error) from None


def _explained(error: ValidationError) -> RequestError:
    """The first unknown name, as Google says it; else the first wrong value."""
    items = error.errors(include_url=False, include_input=False)
    for item in items:
        if item["type"] == "extra_forbidden":
            *parents, name = map(str, item["loc"])
            place = f" at {quoted('.'.join(parents))}" if parents else ""
            return ViolationError(
                f'Invalid JSON payload received. Unknown name "{name:.40}"{place}: Cannot find field.'
            )
    return RequestError(sentence(items[0]), field=".".join(map(str, items[0]["loc"])))


def message_bytes(**members: Any) -> bytes:
    """A message of the server. Google's servers send JSON in binary messages, and some clients only decode these."""
    return json.dumps(members, separators=(",", ":")).encode()


def audio_message(pcm: bytes, source_metadata: Mapping[str, Any]) -> bytes:
    """A message with one chunk: interleaved little-endian 16-bit samples, and what they were made with."""
    data = base64.b64encode(pcm).decode()
    chunk = {"data": data, "mimeType": MIME_TYPE, "sourceMetadata": source_metadata}
    return message_bytes(serverContent={"audioChunks": [chunk]})


def source_metadata(prompts: ClientContent, config: MusicGenerationConfig) -> dict[str, Any]:
    """What a chunk was made with, in the client's words."""
    given = {"clientContent": prompts, "musicGenerationConfig": config}
    return {name: model.model_dump(by_alias=True, exclude_none=True) for name, model in given.items()}
