"""What a client sends. Messages that change sound have a `seq`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from runtime.config.deployment import Strength
from runtime.errors import RequestError
from runtime.requests.option_types import MAX_SECONDS, MIN_SECONDS, Share
from runtime.requests.request import MAX_SEED
from runtime.sessions.protocol.base import (
    MAX_WRITE_S,
    AudioFormat,
    Blend,
    Count,
    Identifier,
    Message,
    Mode,
    Prompts,
    Sample,
    Seconds,
    Seq,
)

MAX_RAMP_MS = 60_000.0
MAX_SLOTS = 4
MAX_CONTROLS = 64

ReferenceKind = Literal["source", "timbre", "structure"]

RampMs = Annotated[float, Field(ge=0.0, le=MAX_RAMP_MS, description="Numbers move to their new value in this time.")]
Controls = Annotated[dict[Annotated[str, Field(max_length=100)], Any], Field(max_length=MAX_CONTROLS)]


class Open(Message):
    """Opens a session; the first message of a connection. With `resume`, only that member counts."""

    type: Literal["open"] = "open"
    mode: Mode = Field(default="loop", description="loop: a canvas that repeats; extend: music without an end.")
    seconds: float | None = Field(
        default=None, ge=MIN_SECONDS, le=MAX_SECONDS, description="Length of the canvas. Default: the model's."
    )
    prompts: Prompts = Field(default=[], description="Empty: unconditional.")
    blend: Blend = Field(default="velocity", description="What the weights blend: velocities, or condition tokens.")
    controls: Controls = Field(default={}, description="Name -> value, as in `set`.")
    source_id: Identifier | None = Field(default=None, description="A source uploaded to /v1/sources.")
    source_strength: Share | None = Field(default=None, description="0 ignores the source, 1 returns it.")
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED, description="Default: drawn at random.")
    slots: int = Field(default=2, ge=1, le=MAX_SLOTS, description="Generations in flight at a time.")
    format: AudioFormat = Field(default="s16", description="Encoding of the audio that the server sends.")
    paused: bool = Field(default=False, description="Nothing is generated before `play`.")
    plan: bool | None = Field(default=None, description="Play by a plan. Default: where mode and model have one.")
    resume: Identifier | None = Field(default=None, description="The resume token of an earlier connection.")


class SetControls(Message):
    """Changes controls (merge patch): null is the default, what is left out stays."""

    type: Literal["set"] = "set"
    seq: Seq
    values: Controls
    ramp_ms: RampMs = 0.0
    at: Seconds | None = Field(
        default=None, description="Played from here on (seconds on the play axis), where that is still to be sent."
    )


class SetPrompts(Message):
    """Replaces the prompts."""

    type: Literal["prompts"] = "prompts"
    seq: Seq
    items: Prompts
    blend: Blend | None = Field(default=None, description="Left out: unchanged.")
    ramp_ms: RampMs = 0.0


class _Reference(Message):
    seq: Seq
    id: Identifier | None = Field(description="An id of /v1/sources; null: none.")
    strength: Share | None = Field(default=None, description="0 ignores it, 1 is its full effect.")


class SetSource(_Reference):
    """Sets or removes the source that generations start from."""

    type: Literal["source"] = "source"


class SetStructure(_Reference):
    """Sets or removes the source whose structure generations follow; needs a bundle with [structure]."""

    type: Literal["structure"] = "structure"


class SetTimbre(_Reference):
    """Sets or removes the source whose timbre generations take; needs a bundle with [timbre]."""

    type: Literal["timbre"] = "timbre"


SetReference = SetSource | SetStructure | SetTimbre


class SetAdapter(Message):
    """Adds a LoRA adapter, changes its strength, or removes it."""

    type: Literal["adapter"] = "adapter"
    seq: Seq
    id: Identifier = Field(description="An id of /v1/adapters.")
    strength: Strength | None = Field(description="0 is off; null removes it.")
    ramp_ms: RampMs = 0.0


class WriteAudio(Message):
    """Writes audio into the canvas. One binary message follows: `samples` interleaved samples per channel."""

    type: Literal["write"] = "write"
    seq: Seq
    at_s: Seconds = Field(description="Position of the first sample: seconds on the canvas.")
    mode: Literal["replace", "sum"] = "replace"
    samples: int = Field(ge=1, description=f"Samples per channel, at the session's rate; at most {MAX_WRITE_S:g} s.")
    format: Literal["s16", "f32"] = "s16"


class SetBand(Message):
    """Plays only a part of the canvas; both null: the whole canvas."""

    type: Literal["band"] = "band"
    seq: Seq
    start_s: Seconds | None
    end_s: Seconds | None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if (self.start_s is None) != (self.end_s is None):
            raise PydanticCustomError("range", "start_s and end_s are both numbers or both null")
        if self.start_s is not None and self.end_s is not None and not self.start_s < self.end_s:
            raise PydanticCustomError("range", "needs start_s < end_s")
        return self


class Seek(Message):
    """Continues at another position of the canvas."""

    type: Literal["seek"] = "seek"
    to_s: Seconds


class Reset(Message):
    """Begins anew: what is generated next does not continue what was played. Needs the mode extend."""

    type: Literal["reset"] = "reset"
    seq: Seq


class Play(Message):
    """Continues after `pause`."""

    type: Literal["play"] = "play"


class Pause(Message):
    """Stops generations and audio until `play`."""

    type: Literal["pause"] = "pause"


class Ack(Message):
    """Reports the client's playhead; sent about 20 times a second."""

    type: Literal["ack"] = "ack"
    playhead_sample: Sample = Field(description="The next sample that the client plays.")
    worst_lead_s: float | None = Field(
        default=None, ge=-1e9, le=1e9, description="Least audio buffered ahead of the playhead since the last ack."
    )
    received_bytes: Count | None = None
    client_time_s: float | None = Field(default=None, description="Any clock of the client; `state` repeats it.")


class GetCanvas(Message):
    """Asks for a picture of the canvas."""

    type: Literal["canvas"] = "canvas"


class Close(Message):
    """Ends the session."""

    type: Literal["close"] = "close"


def control_of(kind: ReferenceKind, untaken: Collection[str]) -> str:
    """The control that the strength of a reference sets. Raises RequestError where the bundle has no such part."""
    control = "denoise" if kind == "source" else f"{kind}_strength"
    if control in untaken:
        raise RequestError(f"the bundle has no [{kind}]", field="type")
    return control
