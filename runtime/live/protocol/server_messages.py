"""Every message of a server of the live protocol, and the schema of both directions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from pydantic_core import from_json

from runtime.base.errors import RequestError, TickError
from runtime.base.untrusted import one_line
from runtime.live.protocol.messages import (
    CLIENT_MESSAGES,
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES_PER_S,
    MAX_SEQ,
    MAX_WRITE_S,
    AudioFormat,
    Blend,
    ClientMessage,
    Count,
    Message,
    Mode,
    NewSection,
    Prompts,
    Sample,
    Seq,
    by_type,
    validated,
)
from runtime.requests.option_types import MAX_PROMPTS

MAX_DETAIL_CHARACTERS = 1000
MAX_FIELD_CHARACTERS = 200


class PlanChoices(Message):
    """What a section can be.

    group_size: a code has a digit of so many values for each layer, the first layer's counting 1; 0: of another kind.
    silent: of each layer the digit of its silence; empty where that is not known.
    """

    kinds: list[str]
    layers: list[str]
    bars: list[int]
    group_size: Count = 0
    silent: list[Count] = Field(default_factory=list)


class SectionMessage(NewSection):
    """A section of the plan. `codes`: its structure codes, once all of them are there.

    `first_bar`: the number of its first bar, as in `beat`: another prompt, tempo or key may begin to count anew.
    """

    index: Count
    first_bar: Count
    start_s: float
    end_s: float
    codes: list[int] | None


class Plan(Message):
    """The plan from what is near the playhead on, where it has changed and at the beginning. Times are the canvas'."""

    type: Literal["plan"] = "plan"
    header: dict[str, Any] = Field(description="Of the whole plan: genre, bpm, meter, key and more.")
    sections: list[SectionMessage]
    seq: Count | None = Field(default=None, description="Of the newest `set_plan` that was taken.")


class CanvasLayout(Message):
    """Size of the canvas: frames of `channels` latents."""

    frames: Count
    seconds: float
    frame_rate_hz: float
    channels: Count


class BoundPart(Message):
    """A mood of a single part of the music: `name`, whose notes are in a layer.

    level_db: how much louder they are. is_sparse: of those that follow each other within a beat it has the first.
    """

    mood: str
    layer: str
    name: str
    level_db: float = 0.0
    is_sparse: bool = False


class TextWords(Message):
    """Which phrases of one of the session's texts the model understands, and what of it is played."""

    text: str
    understood: list[str]
    unknown: list[str]
    near: dict[str, list[str]] = Field(
        default={}, description="By unknown word those that the model understands and that are written most like it."
    )
    plays: str = Field(default="", description="What of a prompt is played, in one line; empty where it is not told.")
    meaning: dict[str, list[str]] = Field(default={}, description="The same by kind, such as layers or genre.")
    drawn: dict[str, str] = Field(
        default={}, description="By kind what the session's seed has drawn, as the prompt names nothing of it."
    )
    bound: list[BoundPart] = Field(default=[], description="Moods that are said of single parts, and what they do.")


class MusicControl(Message):
    """A musical control of the bundle (`[controls]`), for a client to draw.

    words: for equal parts of its range, what a client adds to every prompt. option: the control of the schema that it
    sets. values: those to choose from; none: any.
    """

    words: list[str]
    option: str | None
    values: list[str | int]


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
    music: dict[str, MusicControl] = Field(
        default={}, description="Musical controls, by name: words that a client adds to its prompts, or a control."
    )


class Limits(Message):
    """Limits of a connection and of the session."""

    message_bytes: Count = MAX_MESSAGE_BYTES
    messages_per_s: Count = Field(default=MAX_MESSAGES_PER_S, description="A text counts once per KiB begun.")
    write_s: float = MAX_WRITE_S
    prompts: Count = MAX_PROMPTS
    keep_s: float = Field(description="How long a session is kept without a connection.")


class LayerKeys(Message):
    """A layer of the model's notes and its MIDI keys; of percussion every key is a drum.

    rows: of the canvas' picture, one for each key; row 0 is the lowest.
    """

    name: str
    keys: list[int]
    rows: list[int]
    is_percussion: bool


class Ready(Message):
    """The session is open. `next_sample`: the first sample that will be sent in this epoch."""

    type: Literal["ready"] = "ready"
    session: str
    resume_token: str
    resumed: bool
    notice: str = Field(
        default="",
        description="What of a resumed session is new, in plain words: its canvas, which begins at sample 0 where "
        'another model or precision made the one before. "": nothing.',
    )
    losses: list[str] = Field(default=[], description="What of the source of `open` could not be decoded.")
    epoch: Annotated[int, Field(ge=0, le=MAX_SEQ)]
    sample_rate_hz: Count
    channels: Count
    format: AudioFormat
    mode: Mode
    canvas: CanvasLayout
    lengths_s: list[float] = Field(default=[], description="Those that a canvas of this mode may have.")
    controls: ReadyControls
    next_sample: Sample
    limits: Limits
    edges: list[str] = Field(default=[], description="Further addresses of this session's servers.")
    plan: PlanChoices | None = Field(default=None, description="Of its plan; null: it has none.")
    layers: list[LayerKeys] = Field(default=[], description="That its notes have; empty: the model tells none.")
    muted: list[str] = Field(default=[], description="Layers that are silent.")
    stems: bool = Field(default=False, description="Whether GET /v1/sessions/{session}/stems has those of what plays.")


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
    at_sample: Sample | None = Field(default=None, description="At once: where a change with `at` begins.")
    prompt_words: list[TextWords] | None = Field(
        default=None, description="Of the prompts and the negative prompt: where they have changed, at once."
    )
    losses: list[str] = Field(default=[], description="At once: what of a source could not be decoded.")


class Beat(Message):
    """The newest bar line of what was sent: up to `sent_until_sample`."""

    bpm: float = Field(description="As it sounds, from that line on.")
    beats: Count = Field(description="Of the bar.")
    bar: Count = Field(description="Its number: of a song since its beginning or its last change, or of a loop's pass.")
    phase: float = Field(description="How much of a bar has passed at `playhead_sample`: 0 to 1.")
    sample: int = Field(description="Where it begins, on the play axis.")


class State(Message):
    """The session's state, 4 times a second, and where the beat changes."""

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
    beat: Beat | None = Field(default=None, description="null: none is known. Of plans, and of loops with a tempo.")
    loop: list[float] | None = Field(
        default=None, description="Start and end of what repeats, in seconds on the canvas; null: nothing does."
    )


# Layer, pitch (MIDI's; of percussion the key), velocity (1 to 127), first sample, length in samples or null.
LiveNote = tuple[str, int, int, Sample, Count | None]


class TrackedNotes(Message):
    """The notes of the chunk of audio that follows, sent to clients that open with events ["notes"].

    Each is [layer, pitch, velocity, sample, samples], samples null where it goes on behind `end_sample`. `notes` begin
    in the chunk; `open` began before it, and sound in it. What is in neither does not sound there. With `replaces` it
    holds in place of what was told of these samples before.
    """

    type: Literal["notes"] = "notes"
    start_sample: Sample
    end_sample: Sample
    replaces: bool
    notes: list[LiveNote]
    open: list[LiveNote]


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
    strength, or null), `band` (its ends in seconds, or null), `muted` (names of layers) and `playing`.
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


ServerMessage = Ready | Applied | State | TrackedNotes | CanvasPicture | Plan | Changed | Problem | Closed
SERVER_MESSAGES: dict[str, type[ServerMessage]] = by_type(ServerMessage)


def parse_server_message(data: str | bytes) -> ServerMessage:
    """A server's message from JSON text. Raises RequestError."""
    try:
        values = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the message is not JSON: {error}") from None
    return validated(values, SERVER_MESSAGES)


def message_text(message: ClientMessage | ServerMessage) -> str:
    """The JSON text of a message."""
    return message.model_dump_json()


def problem_of(error: TickError, seq: int | None = None) -> Problem:
    """The message that reports an error. `seq`: the message that it answers, where that has one."""
    return Problem(
        urn=f"urn:tickrt:problem:{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=error.status,
        detail=one_line(error.what, MAX_DETAIL_CHARACTERS),
        code=error.code,
        field=one_line(getattr(error, "field", ""), MAX_FIELD_CHARACTERS) or None,
        fix=error.fix or None,
        seq=seq,
        retry_after_s=getattr(error, "retry_after_s", None),
    )


def messages_schema() -> dict[str, Any]:
    """JSON schema of all messages: `client` and `server` name the alternatives, `$defs` holds them."""
    directions: dict[str, tuple[JsonSchemaMode, Iterable[type[BaseModel]]]] = {
        "client": ("validation", CLIENT_MESSAGES.values()),
        "server": ("serialization", SERVER_MESSAGES.values()),
    }
    named = [(model, mode) for mode, models in directions.values() for model in models]
    references, schema = models_json_schema(named, title="TickRT live protocol")
    for direction, (mode, models) in directions.items():
        schema[direction] = {"oneOf": [references[model, mode] for model in models]}
    return schema
