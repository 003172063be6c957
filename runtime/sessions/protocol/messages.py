"""Every message of the live protocol, once: parsing, the JSON schema and the documentation are drawn from these models.

Messages are JSON objects with the member `type`; unknown members are errors. Times are seconds, positions of audio are
samples on the play axis (since the session began, in real time while it plays). `seq` is the client's counter: one for
all messages that change sound, larger each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from pydantic_core import from_json

from runtime.errors import RequestError, TickError, did_you_mean
from runtime.requests.options import options_error
from runtime.sessions.protocol.base import (
    MAX_MESSAGE_BYTES,
    MAX_MESSAGES_PER_S,
    MAX_SEQ,
    MAX_WRITE_S,
    AudioFormat,
    Blend,
    LivePrompt,
    Message,
    Mode,
)
from runtime.sessions.protocol.client import (
    Ack,
    Close,
    GetCanvas,
    Open,
    Pause,
    Play,
    Reset,
    Seek,
    SetAdapter,
    SetBand,
    SetControls,
    SetPrompts,
    SetReference,
    SetSource,
    SetStructure,
    SetTimbre,
    WriteAudio,
)
from runtime.sessions.protocol.plan import GetPlan, Plan, SetPlan
from runtime.sessions.protocol.server import (
    Applied,
    CanvasLayout,
    CanvasPicture,
    Changed,
    Closed,
    Limits,
    Problem,
    Ready,
    ReadyControls,
    Stages,
    State,
    TextWords,
)
from runtime.untrusted import one_line, parse_json_object

__all__ = [
    "CLIENT_MESSAGES",
    "MAX_MESSAGES_PER_S",
    "MAX_MESSAGE_BYTES",
    "MAX_SEQ",
    "MAX_WRITE_S",
    "SERVER_MESSAGES",
    "SUBPROTOCOL",
    "Ack",
    "Applied",
    "AudioFormat",
    "Blend",
    "CanvasLayout",
    "CanvasPicture",
    "Changed",
    "ClientMessage",
    "Close",
    "Closed",
    "GetCanvas",
    "Limits",
    "LivePrompt",
    "Mode",
    "Open",
    "Pause",
    "Play",
    "Problem",
    "Ready",
    "ReadyControls",
    "Reply",
    "Reset",
    "Seek",
    "ServerMessage",
    "SetAdapter",
    "SetBand",
    "SetControls",
    "SetPrompts",
    "SetReference",
    "SetSource",
    "SetStructure",
    "SetTimbre",
    "Stages",
    "State",
    "TextWords",
    "WriteAudio",
    "client_message",
    "message_text",
    "messages_schema",
    "parse_client_message",
    "parse_server_message",
    "problem_of",
    "seq_of",
]

SUBPROTOCOL = "tickrt.live.v1"
MAX_DETAIL_CHARACTERS = 1000
MAX_FIELD_CHARACTERS = 200

ClientMessage = (
    Open
    | SetControls
    | SetPrompts
    | SetReference
    | SetAdapter
    | WriteAudio
    | SetBand
    | Seek
    | Reset
    | Play
    | Pause
    | Ack
    | GetCanvas
    | SetPlan
    | GetPlan
    | Close
)
ServerMessage = Ready | Applied | State | CanvasPicture | Plan | Changed | Problem | Closed
# Gets the error of a message that was posted, or None.
Reply = Callable[[TickError | None], None]
_Parsed = TypeVar("_Parsed", bound=Message)


def _by_type(union: Any) -> dict[str, Any]:
    return {model.model_fields["type"].default: model for model in get_args(union)}


CLIENT_MESSAGES: dict[str, type[ClientMessage]] = _by_type(ClientMessage)
SERVER_MESSAGES: dict[str, type[ServerMessage]] = _by_type(ServerMessage)


def client_message(values: Mapping[str, Any]) -> ClientMessage:
    """A client's message from its members. Raises RequestError that names the first wrong one and what it takes."""
    return _validate(values, CLIENT_MESSAGES)


def parse_client_message(data: str | bytes) -> ClientMessage:
    """A client's message from JSON text. Raises RequestError that names the first wrong member and what it takes."""
    return client_message(parse_json_object(data))


def parse_server_message(data: str | bytes) -> ServerMessage:
    """A server's message from JSON text. Raises RequestError."""
    try:
        values = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the message is not JSON: {error}") from None
    return _validate(values, SERVER_MESSAGES)


def seq_of(data: str | bytes) -> int | None:
    """The `seq` of a message that was refused, where it has one."""
    try:
        seq = parse_json_object(data).get("seq")
    except RequestError:
        return None
    return seq if type(seq) is int and 0 < seq <= MAX_SEQ else None


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


def _validate(values: Any, models: Mapping[str, type[_Parsed]]) -> _Parsed:
    if not isinstance(values, dict):
        raise RequestError("a message is a JSON object with the member type")
    model = _model_of(values.get("type"), models)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise options_error(error, model) from None


def _model_of(name: Any, models: Mapping[str, type[_Parsed]]) -> type[_Parsed]:
    if isinstance(name, str) and name in models:
        return models[name]
    fix = did_you_mean(name, models) if isinstance(name, str) else ""
    raise RequestError(f"expected one of {', '.join(models)}", field="type", fix=fix)
