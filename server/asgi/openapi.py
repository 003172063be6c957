"""The model of the request body, its JSON schema, and the OpenAPI document.

examples.json has its texts, groups and headers, and examples by operation: parameters, bodies and answers. `answer` is
that of an operation's first status 2xx: none where there is none, or bytes. `bodies` are several, named.
"""

from __future__ import annotations

import json
from copy import copy
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BeforeValidator, Field, create_model
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema, models_json_schema
from pydantic_core import PydanticCustomError

from runtime.audio.encoding import available_formats
from runtime.audio.formats import ARCHIVE, FORMATS, FormatName, StemFormat, format_name
from runtime.config.bundle import DEFAULTED, Bundle
from runtime.config.option_ranges import NumberRange, found_outside
from runtime.requests.jumps import solvers_of
from runtime.requests.option_types import MAX_SECONDS, MIN_SECONDS, PER_CHANNEL
from runtime.requests.options import GenerationOptions
from runtime.requests.tasks import known_tasks
from runtime.requests.validation import untaken_options
from server.asgi.problems import MEDIA_TYPE, ProblemDocument
from server.asgi.request_body import FILE_PARTS

_DATA: dict[str, Any] = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))
EXAMPLES: dict[str, dict[str, Any]] = _DATA.pop("operations")
STATUSES, PARTS = _DATA.pop("statuses"), _DATA.pop("parts")
# Of the response of a generation; each is a decimal number, or a text.
GENERATION_HEADERS: dict[str, str] = _DATA.pop("headers")
NUMBERS = ("X-Seed", "X-Sample-Rate", "X-Channels", "X-Bit-Depth")

SCHEMA_TYPE = "application/schema+json"
REF = "#/components/schemas/{model}"
OPEN_PATH = "/health/live"
ADMIN_HEADER = "X-Admin-Key"
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
SOURCE_ID = "^[0-9a-f]{64}$"
SourceId = Annotated[str, Field(pattern=SOURCE_ID)]


class GenerationBody(GenerationOptions):
    """The body of POST /v1/audio/generations: the options of a generation, and the format of the response."""

    model: str | None = Field(
        default=None, max_length=100, description="The id of a model in /v1/models. Default: the server's only one."
    )
    source_id: SourceId | None = Field(
        default=None, description="The id of an uploaded source (/v1/sources), in place of the form's part `source`."
    )
    target_id: SourceId | None = Field(
        default=None,
        description="The id of an uploaded source that target_curve and x0_strength draw to. Default: the source.",
    )
    timbre_id: SourceId | None = Field(
        default=None, description="The id of an uploaded source, in place of the form's part `timbre`: a reference."
    )
    structure_id: SourceId | None = Field(
        default=None,
        description="The id of an uploaded source, in place of the form's part `structure`: what a cover keeps melody "
        "and rhythm of. Default: the source.",
    )
    response_format: Annotated[FormatName, BeforeValidator(format_name)] = Field(
        default="wav",
        description="wav, pcm (s16le without a header), flac, ogg (Opus), mp3, mid (MIDI: its notes), or latents "
        "(safetensors, float32 [T, C]); also by another usual name, such as MP3 or audio/mpeg.",
    )
    stems: Annotated[StemFormat | None, BeforeValidator(format_name)] = Field(
        default=None,
        description="A zip archive in place of one file: the mix and its layers, or the tracks that the model extracts "
        "from it, in this format with 24 bits, the notes as MIDI, and the options.",
    )
    quantize: bool = Field(default=False, description="Notes of mid lie on the beat of the plan.")
    sample_rate_hz: int | None = Field(
        default=None, ge=8_000, le=192_000, description="Samples per second of the response. Default: the model's."
    )
    bit_rate_kbps: int | None = Field(
        default=None,
        ge=8,
        le=320,
        description="kbit/s of mp3 (the nearest that it has) or ogg. Default: 96 or 64 per channel.",
    )
    stream: bool = Field(
        default=True, description="Send audio while it is generated; false sends it whole, with its length."
    )
    metadata: bool = Field(
        default=True, description="Write the options, the prompt among them, and the seed into the file."
    )


def body_model(max_seconds: float, bundle: Bundle | None = None) -> type[GenerationBody]:
    """GenerationBody with this server's limit on `seconds`, and the defaults of its model where that is known."""
    limit = min(max_seconds, MAX_SECONDS)
    description = GenerationOptions.model_fields["seconds"].description
    seconds = Field(default=None, ge=min(MIN_SECONDS, limit), le=limit, description=description)
    fields = {} if bundle is None else _model_fields(bundle)
    return create_model("GenerationBody", __base__=GenerationBody, seconds=(float | None, seconds), **fields)


def _model_fields(bundle: Bundle) -> dict[str, Any]:
    """Fields that differ by model: defaults, the rule of guidance; without what it cannot take, or audio."""
    fields: dict[str, Any] = {name: _shown(name, default=bundle.default_of(name)) for name in DEFAULTED}
    fields["guidance"][1].json_schema_extra["x-rule"] = bundle.guidance.rule
    hidden = [*untaken_options(bundle), *bundle.options.without_choice]
    hidden += ["prompt", "negative_prompt"] if bundle.text_encoder is None else []
    hidden += ["timbre_id"] if bundle.timbre is None else []
    hidden += ["structure_id"] if bundle.structure is None else []
    for name in hidden:
        annotation, info = _shown(name)
        info.default = "" if name == "prompt" else info.default
        fields[name] = (Annotated[annotation, SkipJsonSchema()], info)  # type: ignore[type-arg]
    for name, values in (("task", known_tasks(bundle)), ("solver", solvers_of(bundle))):
        choices = {"anyOf": [{"enum": list(values), "type": "string"}, {"type": "null"}]}
        fields[name] = _shown(name, default=bundle.default_of(name), **choices)
    fields["dcw"] = _shown("dcw", default=bundle.sampler.dcw.model_dump())
    for name, taken in bundle.options.narrowed.items():
        fields[name] = _narrowed(name, taken, *fields.get(name, _shown(name)))
    annotation, info = _shown("response_format", enum=formats_of(bundle))
    info.default = info.default if bundle.codec else "latents"
    fields["response_format"] = (annotation, info)
    return fields


def formats_of(bundle: Bundle) -> list[str]:
    """The formats of responses that a bundle can make on this machine."""
    return available_formats(audio=bundle.codec is not None, notes=bundle.notes is not None)


def _shown(name: str, **schema: Any) -> tuple[Any, FieldInfo]:
    """A field of the body with other members in its JSON schema."""
    info = copy(GenerationBody.model_fields[name])
    extra = info.json_schema_extra
    info.json_schema_extra = {**(extra if isinstance(extra, dict) else {}), **schema}
    return info.annotation, info


def _narrowed(name: str, taken: NumberRange, annotation: Any, info: FieldInfo) -> tuple[Any, FieldInfo]:
    """A field that takes the numbers of a bundle's range alone, and says so in its JSON schema."""
    shown = info.json_schema_extra

    def check(value: Any) -> Any:
        if (number := taken.outside(value)) is not None:
            raise PydanticCustomError("range", "{what}", {"what": found_outside(name, taken, number)})
        return value

    def narrow(schema: JsonDict) -> None:
        schema.update(shown if isinstance(shown, dict) else {})
        taken.narrow(schema)

    info.metadata = [*info.metadata, BeforeValidator(check)]
    info.json_schema_extra = narrow
    return annotation, info


@cache
def body_schema(model: type[GenerationBody]) -> dict[str, Any]:
    """JSON schema of the request body; pages and tools draw controls from it."""
    schema = model.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of problem responses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="ProblemDocument")}}}
    retry = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
    return {
        status: {
            "description": STATUSES[str(status)],
            "content": content,
            **({"headers": retry} if status in (429, 503) else {}),
        }
        for status in statuses
    }


def audio_response() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entry of a generation's response."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    number = {"pattern": "^[0-9]+$"}
    headers = {
        name: {"description": text, "schema": {"type": "string", **(number if name in NUMBERS else {})}}
        for name, text in GENERATION_HEADERS.items()
    }
    content = {item.media_type: binary for item in (*FORMATS.values(), ARCHIVE)}
    told = {"operationId": "get_generation", "parameters": {"generation_id": "$response.header.X-Generation-Id"}}
    described = {"content": content, "headers": headers, "links": {"what made it": told}}
    return {200: {"description": "The audio, or the latents", **described}}


def request_body() -> dict[str, Any]:
    """The OpenAPI entry of the request body: JSON or multipart."""
    body = {"$ref": REF.format(model="GenerationBody")}
    files = dict.fromkeys(FILE_PARTS, PARTS["file"]) | {name: PARTS[name] for name in ("condition", "notes")}
    form = {
        "type": "object",
        "required": ["request"],
        "additionalProperties": False,
        "properties": {"request": body, **files},
    }
    file = {"contentType": "application/octet-stream"}
    encoding = {"request": {"contentType": "application/json"}, **dict.fromkeys(FILE_PARTS, file)}
    return {
        "required": True,
        "content": {
            "application/json": {"schema": body},
            "multipart/form-data": {"schema": form, "encoding": encoding},
        },
    }


def their_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of errors that have the shape of another server's, as its clients read them."""
    content = {"application/json": {"schema": {"type": "object"}}}
    return {status: {"description": STATUSES[str(status)], "content": content} for status in statuses}


def upload_body() -> dict[str, Any]:
    """The OpenAPI entry of an uploaded file: the body itself, or a form's only part."""
    form = {
        "type": "object",
        "required": ["source"],
        "additionalProperties": False,
        "properties": {"source": PARTS["file"]},
    }
    content = {"application/octet-stream": {"schema": PARTS["file"]}, "multipart/form-data": {"schema": form}}
    return {"required": True, "content": content}


def openapi_document(
    app: FastAPI, model: type[GenerationBody], latent_channels: int | None, *, has_key: bool
) -> dict[str, Any]:
    """The OpenAPI document, with the schemas that the routes refer to.

    Lists with one value per latent channel get that length, where it is known. `has_key`: whether the API key is
    required on every path but OPEN_PATH.
    """
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    describe(document)
    _, definitions = models_json_schema([(ProblemDocument, "serialization"), (model, "validation")], ref_template=REF)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    if latent_channels is not None:
        _set_channels(schemas, latent_channels)
    if has_key:
        _require_key(document)
    return document


def _require_key(document: dict[str, Any]) -> None:
    """Require the API key on every path but OPEN_PATH, in addition to the admin key where that is required."""
    document["components"].setdefault("securitySchemes", {}).update(SECURITY_SCHEMES)
    document["security"] = [{name: []} for name in SECURITY_SCHEMES]
    document["paths"][OPEN_PATH]["get"]["security"] = []
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        if others := operation.get("security"):
            operation["security"] = [{**other, name: []} for other in others for name in SECURITY_SCHEMES]


def _set_channels(node: Any, channels: int) -> None:
    """Set the length of every array that the options mark as one value per latent channel."""
    if isinstance(node, dict):
        if node.get("x-length") == PER_CHANNEL["x-length"]:
            node.update(minItems=channels, maxItems=channels)
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            _set_channels(child, channels)


def describe(document: dict[str, Any]) -> None:
    """Add groups and links; give every operation its example, and the first sentence of its description as summary."""
    document.update(_DATA)
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        sentence = operation["description"].partition("\n\n")[0].partition(". ")[0].rstrip(".")
        operation["summary"] = sentence.replace("`", "")
        _show(operation, EXAMPLES[operation["operationId"]])


def _show(operation: dict[str, Any], example: dict[str, Any]) -> None:
    for parameter in operation.get("parameters", ()):
        if parameter["name"] in example.get("parameters", ()):
            parameter["example"] = example["parameters"][parameter["name"]]
    for name, key in (("body", "example"), ("bodies", "examples")):
        if name in example:
            operation["requestBody"]["content"]["application/json"][key] = example[name]
    answers = [found for status, found in operation["responses"].items() if status.startswith("2")]
    for content in (content for answer in answers for content in answer.get("content", {}).values()):
        if "answer" in example:
            content["example"] = example["answer"]
