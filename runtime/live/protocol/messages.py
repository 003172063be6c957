"""Every message of a client of the live protocol, once: parsing, JSON schema and documentation are drawn from it.

Messages are JSON objects with the member `type`; unknown members are errors. Times are seconds, positions of audio are
samples on the play axis (since the session began, in real time while it plays). `seq` is the client's counter: one for
all messages that change sound, larger each time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError, PydanticSerializationError, to_json

from runtime.base.errors import RequestError, TickError, did_you_mean
from runtime.base.untrusted import parse_json_object
from runtime.config.deployment import AdapterId, Strength
from runtime.requests.option_types import MAX_PROMPTS, MAX_SECONDS, MIN_SECONDS, OneOf, Share, Text
from runtime.requests.options import options_error
from runtime.requests.request import MAX_SEED

SUBPROTOCOL = "tickrt.live.v1"
MAX_SEQ = 2**32 - 1
MAX_SAMPLE = 2**64 - 1
MAX_MESSAGE_BYTES = 2**20
MAX_WRITE_S = 10.0
MAX_MESSAGES_PER_S = 1000
MAX_RAMP_MS = 60_000.0
MAX_SLOTS = 4
MAX_CONTROLS = 64
MAX_SECTIONS = 64
MAX_CODES = 4096
MAX_LOOP_BARS = 64
MAX_WAIT_BARS = 64
MAX_ITEMS = 256
MAX_ECHO_BARS = 16
MAX_LAYERS = 64

Seq = Annotated[int, Field(ge=1, le=MAX_SEQ, description="The client's counter, larger than in any message before.")]
Sample = Annotated[int, Field(ge=0, le=MAX_SAMPLE)]
Seconds = Annotated[float, Field(ge=0.0, le=1e9)]
Count = Annotated[int, Field(ge=0, le=MAX_SAMPLE)]
Identifier = Annotated[str, Field(min_length=1, max_length=200)]
Mode = Literal["loop", "extend"]
AudioFormat = Literal["s16", "f32", "opus"]
Blend = Literal["velocity", "tokens"]
Layers = Annotated[list[Identifier], Field(max_length=MAX_LAYERS)]
ReferenceKind = Literal["source", "timbre", "structure"]
EventKind = Literal["notes"]
RampMs = Annotated[float, Field(ge=0.0, le=MAX_RAMP_MS, description="Numbers move to their new value in this time.")]
Controls = Annotated[dict[Annotated[str, Field(max_length=100)], Any], Field(max_length=MAX_CONTROLS)]


class Message(BaseModel):
    """A JSON object without unknown members; it does not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, strict=True, populate_by_name=True, serialize_by_alias=True
    )


class InBars(Message):
    """A bar line that is to come: the first is 1."""

    bars: int = Field(ge=1, le=MAX_WAIT_BARS)


At = Annotated[
    Annotated[
        Seconds | Literal["bar"] | InBars,
        OneOf(f'expected seconds, "bar", or {{"bars": 1}} to {{"bars": {MAX_WAIT_BARS}}}'),
    ]
    | None,
    Field(
        description='Played from here on: seconds on the play axis, where that is still to be sent; "bar": from the '
        'first bar on that begins when it can be made; {"bars": 2}: from the second. `applied` has its sample.'
    ),
]


class LivePrompt(Message):
    """One of a session's prompts."""

    text: Text = Field(description="Text that describes the audio.")
    weight: float = Field(default=1.0, ge=0.0, le=10.0, description="Its share of the blend.")


Prompts = Annotated[list[LivePrompt], Field(max_length=MAX_PROMPTS)]


# What a client sends. Messages that change sound have a `seq`.


class Open(Message):
    """Opens a session; the first message of a connection. With `resume`, only that member counts."""

    type: Literal["open"] = "open"
    mode: Mode = Field(default="loop", description="loop: a canvas that repeats; extend: music without an end.")
    seconds: float | None = Field(
        default=None,
        ge=MIN_SECONDS,
        le=MAX_SECONDS,
        description="Length of the canvas: the first of `ready.lengths_s` that holds it. Default: the model's, or what "
        "the bars of a loop need.",
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
    bars: int | None = Field(default=None, ge=0, le=MAX_LOOP_BARS, description="The control `loop_bars`.")
    events: list[EventKind] = Field(
        default=[], max_length=8, description="What else to tell with the audio: notes, of a model that has them."
    )
    muted: Layers = Field(default=[], description="Layers that are silent, as in `mute`.")
    resume: Identifier | None = Field(default=None, description="The resume token of an earlier connection.")


class SetControls(Message):
    """Changes controls (merge patch): null is the default, what is left out stays."""

    type: Literal["set"] = "set"
    seq: Seq
    values: Controls
    ramp_ms: RampMs = 0.0
    at: At = None


class SetPrompts(Message):
    """Replaces the prompts."""

    type: Literal["prompts"] = "prompts"
    seq: Seq
    items: Prompts
    blend: Blend | None = Field(default=None, description="Left out: unchanged.")
    ramp_ms: RampMs = 0.0
    at: At = None


class _Reference(Message):
    seq: Seq
    id: Identifier | None = Field(description="An id of /v1/sources; null: none.")
    strength: Share | None = Field(default=None, description="0 ignores it, 1 is its full effect.")
    at: At = None


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
    id: AdapterId = Field(min_length=1, max_length=200, description="An id of /v1/adapters.")
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
    """Plays only a part of the canvas; both null: the whole canvas, or the bars of `loop_bars`."""

    type: Literal["band"] = "band"
    seq: Seq
    start_s: Seconds | None
    end_s: Seconds | None
    at: At = None

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if (self.start_s is None) != (self.end_s is None):
            raise PydanticCustomError("range", "start_s and end_s are both numbers or both null")
        if self.start_s is not None and self.end_s is not None and not self.start_s < self.end_s:
            raise PydanticCustomError("range", "needs start_s < end_s")
        return self


class MuteLayers(Message):
    """Makes layers silent, and all others sound. Needs a bundle with [stems] whose stems are layers."""

    type: Literal["mute"] = "mute"
    seq: Seq
    layers: Layers = Field(description="Names of `ready.layers`; none: all layers sound.")
    at: At = None


class SetClock(Message):
    """Follows a clock of others: from the next bar on its tempo, and its beats, where they differ enough to be heard.

    That is by more than 0.3 beats per minute, or 20 ms. Needs a beat, as `at` "bar" does. Sent once a second or less.
    """

    type: Literal["clock"] = "clock"
    seq: Seq
    bpm: float = Field(ge=1.0, le=1000.0, description="As measured over some beats.")
    sample: Sample | None = Field(
        default=None, description="Where one of its beats lies, on the play axis; null: not known, and beats stay."
    )


class Seek(Message):
    """Continues at another position of the canvas."""

    type: Literal["seek"] = "seek"
    to_s: Seconds
    at: At = None
    seq: Seq | None = None


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


class NewSection(Message):
    """A section that a client asks for."""

    kind: Identifier
    layers: Annotated[list[Identifier], Field(min_length=1, max_length=64)]
    bars: int = Field(ge=1, le=1024)


class SetPlan(Message):
    """Replaces what is not played yet: the sections from the start of one on, codes from one on, or both.

    What follows is planned by itself. `start_s`: seconds on the canvas. Beside sections, `codes` are those of the first
    of them, from its beginning on.
    """

    type: Literal["set_plan"] = "set_plan"
    seq: Seq
    start_s: Seconds
    sections: Annotated[list[NewSection], Field(max_length=MAX_SECTIONS)] | None = None
    codes: Annotated[list[Count], Field(min_length=1, max_length=MAX_CODES)] | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.sections and self.codes is not None and self.sections is not None:
            raise PydanticCustomError("some", "codes beside sections need a section that they are of")
        if self.sections is None and self.codes is None:
            raise PydanticCustomError("some", "needs sections or codes")
        return self


class GetPlan(Message):
    """Asks for the plan."""

    type: Literal["get_plan"] = "get_plan"


class NoteItem(Message):
    """A note that a client plays."""

    pitch: int = Field(ge=0, le=127, description="MIDI's; moved by octaves into the layer's keys. Of drums the key.")
    start_s: Seconds = Field(default=0.0, description="Seconds from `at` on.")
    seconds: float = Field(default=0.5, gt=0.0, le=MAX_SECONDS, description="How long it sounds.")
    velocity: int = Field(default=100, ge=1, le=127, description="How loud it is.")


class PlayNotes(Message):
    """Plays notes: generations follow them, in place of what their layer would play.

    echo: a bar that was played comes back `bars` bars later. hold: the notes are a chord, the harmony of all bars from
    the next one on, until another one is held; without items the plan's again. at: at their times. In a loop notes stay
    in their bars, pass after pass.
    """

    type: Literal["notes"] = "notes"
    seq: Seq
    mode: Literal["echo", "hold", "at"] = "echo"
    items: Annotated[list[NoteItem], Field(max_length=MAX_ITEMS)]
    layer: Identifier | None = Field(
        default=None, description="Null: the one whose keys have the pitch; of hold, pad and bass."
    )
    at: Seconds = Field(
        default=0.0, description="What the items' `start_s` counts from: seconds on the play axis. Not for hold."
    )
    bars: int = Field(default=1, ge=1, le=MAX_ECHO_BARS, description="Of echo: so many bars later.")
    quantize: bool = Field(default=True, description="Of echo: onsets lie on sixteenths.")
    exact: bool = Field(
        default=True, description="Write them into what is generated, too; false: it may vary what was played."
    )


ClientMessage = (
    Open
    | SetControls
    | SetPrompts
    | SetReference
    | SetAdapter
    | WriteAudio
    | SetBand
    | MuteLayers
    | SetClock
    | Seek
    | Reset
    | Play
    | Pause
    | Ack
    | GetCanvas
    | SetPlan
    | GetPlan
    | PlayNotes
    | Close
)
# Gets the error of a message that was posted, or None.
Reply = Callable[[TickError | None], None]
Parsed = TypeVar("Parsed", bound=Message)


def by_type(union: Any) -> dict[str, Any]:
    return {model.model_fields["type"].default: model for model in get_args(union)}


CLIENT_MESSAGES: dict[str, type[ClientMessage]] = by_type(ClientMessage)


def client_message(values: Mapping[str, Any]) -> ClientMessage:
    """A client's message from its members. Raises RequestError that names the first wrong one and what it takes."""
    return validated(values, CLIENT_MESSAGES)


def parse_client_message(data: str | bytes) -> ClientMessage:
    """A client's message from JSON text. Raises RequestError that names the first wrong member and what it takes."""
    return client_message(parse_json_object(data))


def seq_of(data: str | bytes) -> int | None:
    """The `seq` of a message that was refused, where it has one."""
    try:
        seq = parse_json_object(data).get("seq")
    except RequestError:
        return None
    return seq if type(seq) is int and 0 < seq <= MAX_SEQ else None


def seq_in(message: ClientMessage) -> int | None:
    """The `seq` of a message, where it has one."""
    seq: int | None = getattr(message, "seq", None)
    return seq


def control_of(kind: ReferenceKind, untaken: Collection[str]) -> str:
    """The control that the strength of a reference sets. Raises RequestError where the bundle has no such part."""
    control = "denoise" if kind == "source" else f"{kind}_strength"
    if control in untaken:
        raise RequestError(f"the bundle has no [{kind}]", field="type")
    return control


def validated(values: Any, models: Mapping[str, type[Parsed]]) -> Parsed:
    """Members as JSON text has them: strict, but with lists for tuples, and texts or objects for other types of Python.

    Parsed values that are validated as such are refused for those.
    """
    if not isinstance(values, dict):
        raise RequestError("a message is a JSON object with the member type")
    model = _model_of(values.get("type"), models)
    try:
        return model.model_validate_json(to_json(values, inf_nan_mode="constants"))
    except ValidationError as error:
        raise options_error(error, model) from None
    except PydanticSerializationError as error:
        raise RequestError(f"the message is not JSON: {error}") from None


def _model_of(name: Any, models: Mapping[str, type[Parsed]]) -> type[Parsed]:
    if isinstance(name, str) and name in models:
        return models[name]
    fix = did_you_mean(name, models) if isinstance(name, str) else ""
    raise RequestError(f"expected one of {', '.join(models)}", field="type", fix=fix)
