"""What a server sends."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from runtime.requests.option_types import MAX_PROMPTS
from runtime.sessions.protocol.base import (
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES_PER_S,
    MAX_SEQ,
    MAX_WRITE_S,
    AudioFormat,
    Blend,
    Count,
    Message,
    Mode,
    Prompts,
    Sample,
    Seq,
)
from runtime.sessions.protocol.plan import PlanChoices


class CanvasLayout(Message):
    """Size of the canvas: frames of `channels` latents."""

    frames: Count
    seconds: float
    frame_rate_hz: float
    channels: Count


class TextWords(Message):
    """Which phrases of one of the session's texts the model understands."""

    text: str
    understood: list[str]
    unknown: list[str]


class ReadyControls(Message):
    """The session's controls: their JSON schema (each with `x-kind`: step or generation) and what they are now."""

    json_schema: dict[str, Any] = Field(alias="schema")
    values: dict[str, Any]
    prompts: Prompts
    prompt_words: list[TextWords] = Field(default=[], description="Of the prompts and the negative prompt.")
    blend: Blend
    source_id: str | None = None
    source_strength: float | None = None
    seed: int


class Limits(Message):
    """Limits of a connection and of the session."""

    message_bytes: Count = MAX_MESSAGE_BYTES
    messages_per_s: Count = Field(default=MAX_MESSAGES_PER_S, description="A text counts once per KiB begun.")
    write_s: float = MAX_WRITE_S
    prompts: Count = MAX_PROMPTS
    keep_s: float = Field(description="How long a session is kept without a connection.")


class Ready(Message):
    """The session is open. `next_sample`: the first sample that will be sent in this epoch."""

    type: Literal["ready"] = "ready"
    session: str
    resume_token: str
    resumed: bool
    epoch: Annotated[int, Field(ge=0, le=MAX_SEQ)]
    sample_rate_hz: Count
    channels: Count
    format: AudioFormat
    mode: Mode
    canvas: CanvasLayout
    controls: ReadyControls
    next_sample: Sample
    limits: Limits
    edges: list[str] = Field(default=[], description="Further addresses of this session's servers.")
    plan: PlanChoices | None = Field(default=None, description="Of its plan; null: it has none.")


class Stages(Message):
    """Milliseconds from a message's arrival to the stages of its change; null where there is none."""

    submitted: float | None = Field(default=None, description="A generation with it is submitted or updated.")
    finished: float | None = Field(default=None, description="That generation's latents are finished.")
    decoded: float | None = Field(default=None, description="Their first audio is sent.")


class Applied(Message):
    """A change is scheduled: from `first_sample` on it has a part in the sound, from `full_sample` on it is complete.

    Null: not known yet; another `applied` with this seq follows. `tick`: the tick that made `first_sample`.
    """

    type: Literal["applied"] = "applied"
    seq: Seq
    tick: Count | None = None
    first_sample: Sample | None = None
    full_sample: Sample | None = None
    stages_ms: Stages | None = None
    prompt_words: list[TextWords] | None = Field(
        default=None, description="Of the prompts and the negative prompt: where they have changed, at once."
    )


class State(Message):
    """The session's state, 4 times a second."""

    type: Literal["state"] = "state"
    playhead_sample: Sample
    sent_until_sample: Sample
    lead_s: float
    generations_in_flight: Count
    generation_s: float = Field(description="Estimated time of one generation, from submit to finish.")
    underruns: Count
    ticks: Count
    tick_ms: float
    canvas_position_s: float
    playing: bool
    stored: bool = Field(default=False, description="Whether the session survives its server.")
    client_time_s: float | None = Field(default=None, description="Of the newest `ack`.")


class CanvasPicture(Message):
    """A picture of the canvas from `start_s` on, `seconds` long: the loop; in extend mode, what is near the playhead.

    `data`: base64 of `width * height` bytes, rows from low to high channels of latents.
    """

    type: Literal["canvas"] = "canvas"
    start_s: float
    seconds: float
    width: Count
    height: Count
    data: str
    seqs: list[int] = Field(description="Per column: the newest seq that is complete there.")


class Changed(Message):
    """Another client of the session has changed it. `values`: what is different now, by name.

    These are controls, and `prompts`, `prompt_words`, `blend`, `source`, `structure` and `timbre` (an id with its
    strength, or null), `band` (its ends in seconds, or null) and `playing`.
    """

    type: Literal["changed"] = "changed"
    values: dict[str, Any]


class Problem(Message):
    """A refused message or a failed generation; nothing else has changed. RFC 9457's members, its `type` as `urn`."""

    type: Literal["problem"] = "problem"
    urn: str = Field(description="urn:tickrt:problem:CODE")
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    code: str
    field: str | None = Field(default=None, description="Path of the wrong member, such as values.guidance.")
    fix: str | None = None
    seq: int | None = None
    retry_after_s: float | None = None


class Closed(Message):
    """The last message of a connection. `resumable`: the session still exists and can be resumed."""

    type: Literal["closed"] = "closed"
    reason: str
    resumable: bool
    url: str | None = Field(default=None, description="Of `moved`: where to go; null: the next address.")
