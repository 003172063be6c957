"""What tools take, as JSON schemas: drawn from the options of a generation and the messages of live sessions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from runtime.audio.formats import AUDIO_FORMATS, format_name
from runtime.live.hosting.host import SessionHost
from runtime.live.parts.controls import controls_schema
from runtime.live.protocol.messages import Message
from runtime.requests.option_types import Text
from server.asgi.openapi import GenerationBody, body_schema
from server.config import MIB
from server.protocols.mcp.files import FILE_URI
from server.service.service import Service

# Options that name audio.
FILE_OPTIONS = tuple(name for name in GenerationBody.model_fields if name.endswith("_id"))

# What a message may carry of a file.
CONTENT_BYTES = 2 * MIB
RETURN_AUDIO: dict[str, Any] = {
    "type": "boolean",
    "default": False,
    "description": "Send the audio itself, too, besides the link to the file: for hosts that play it. Up to "
    f"{CONTENT_BYTES // MIB} MiB.",
}
# No options of a tool: what it makes is sent whole.
NO_OPTIONS = ("stream",)
SESSION = {"type": "string", "description": "The id that live_open has answered."}
# Of the messages of live sessions what tools choose themselves.
NO_MEMBERS = ("type", "seq", "resume", "format", "paused", "events", "slots")


class Nothing(BaseModel):
    """A tool that takes nothing."""

    model_config = ConfigDict(extra="forbid")


class VocabularyArguments(BaseModel):
    """What the tool `vocabulary` takes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text | None = Field(
        default=None, description="A prompt: what of it is played, and which of its words are not known."
    )


class RecordArguments(BaseModel):
    """What the tool `live_record` takes."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    session: str = Field(max_length=200, description=SESSION["description"])
    seconds: float = Field(ge=0.1, description="How much of the session's audio, from where the last passage ended.")
    response_format: str = Field(default="wav", max_length=20)
    return_audio: bool = Field(default=False, description=RETURN_AUDIO["description"])


def record_model(service: Service) -> type[RecordArguments]:
    """RecordArguments with this server's limit on `seconds`, and formats of audio."""
    seconds = RecordArguments.model_fields["seconds"].description
    shown: Any = {"pattern": f"^({'|'.join(AUDIO_FORMATS)})$", "json_schema_extra": {"enum": list(AUDIO_FORMATS)}}
    file_format: Any = Field(default="wav", description="The file's format.", **shown)
    return create_model(
        "RecordArguments",
        __base__=RecordArguments,
        seconds=(float, Field(ge=0.1, le=service.settings.max_seconds, description=seconds)),
        response_format=(Annotated[str, BeforeValidator(format_name)], file_format),
    )


def generation_schema(service: Service) -> dict[str, Any]:
    """The options of a generation, as /v1/schema has them, and `return_audio`. What is null there may be left out."""
    schema = body_schema(service.body_model)
    properties = {name: _without_null(item) for name, item in schema["properties"].items() if name not in NO_OPTIONS}
    for name in set(FILE_OPTIONS) & set(properties):
        properties[name] = _file_option(properties[name])
    return _pruned({**schema, "properties": {**properties, "return_audio": RETURN_AUDIO}})


def source_schema(generation: dict[str, Any], needed: Sequence[str], without: Iterable[str] = ()) -> dict[str, Any]:
    """Of the options of a generation those that say something of a source, and what is needed. It takes all others."""
    required = [*generation.get("required", ()), *needed]
    shown = {
        name: item
        for name, item in generation["properties"].items()
        if name not in without and (name in required or name == "return_audio" or "x-needs-source" in item)
    }
    definitions = generation.get("$defs", {})
    return _pruned({"type": "object", "properties": shown, "required": required, "$defs": definitions})


def _without_null(item: dict[str, Any]) -> dict[str, Any]:
    """An option that is left out where it is null: one that has a value."""
    kept = {name: value for name, value in item.items() if not (name == "default" and value is None)}
    branches = [branch for branch in kept.pop("anyOf", ()) if branch != {"type": "null"}]
    return {**(branches[0] if len(branches) == 1 else {"anyOf": branches} if branches else {}), **kept}


def _file_option(described: dict[str, Any]) -> dict[str, Any]:
    """An option that names audio: more texts than ids do so."""
    more = f"Also the uri of a file that a tool made ({FILE_URI}...), or a path where the tools run on your machine."
    return {"type": "string", "description": f"{described['description']} {more}"}


def model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a tool's own arguments."""
    return _pruned(model.model_json_schema())


def message_schema(
    message: type[Message], *, host: SessionHost | None = None, controls: str = "", optional: bool = False
) -> dict[str, Any]:
    """What a message of a live session takes, and the session where the message has a `seq`.

    controls: the member that has values of controls; with a `host` its schema is that of the model's controls.
    """
    schema = message.model_json_schema()
    has_session = "seq" in schema["properties"]
    properties = {name: item for name, item in schema["properties"].items() if name not in NO_MEMBERS}
    required = [] if optional else [name for name in schema.get("required", ()) if name in properties]
    if "source_id" in properties:
        properties["source_id"] = _file_option(properties["source_id"])
    definitions = schema.get("$defs", {})
    if controls and host is not None:
        values = controls_schema(host.model)
        definitions = {**definitions, **values.get("$defs", {})}
        described = properties[controls].get("description", values.get("description", ""))
        properties[controls] = {
            "type": "object",
            "description": described,
            "properties": values["properties"],
            "additionalProperties": False,
        }
    if has_session:
        properties, required = {"session": SESSION, **properties}, ["session", *required]
    made = {"type": "object", "properties": properties, "additionalProperties": False, "required": required}
    return _pruned({**made, "$defs": definitions})


def session_schema() -> dict[str, Any]:
    """A session alone."""
    return {
        "type": "object",
        "properties": {"session": SESSION},
        "required": ["session"],
        "additionalProperties": False,
    }


def _pruned(schema: dict[str, Any]) -> dict[str, Any]:
    """Without titles, which say what names say, and without definitions that nothing refers to."""
    schema = {name: item for name, item in _without_titles(schema).items() if name not in ("$schema", "description")}
    definitions: dict[str, Any] = schema.pop("$defs", {})
    used: dict[str, Any] = {}
    waiting = list(_references(schema))
    while waiting:
        name = waiting.pop()
        if name not in used:
            used[name] = definitions[name]
            waiting += _references(definitions[name])
    return {**schema, "$defs": used} if used else schema


def _without_titles(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        name: {key: _without_titles(value) for key, value in item.items()}
        if name in ("properties", "$defs")
        else _without_titles(item)
        for name, item in node.items()
        if not (name == "title" and isinstance(item, str))
    }


def _references(node: Any) -> Iterable[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"].rpartition("/")[2]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _references(item)
