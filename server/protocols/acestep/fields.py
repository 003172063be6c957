"""Parameters of ACE-Step's API: their names, how requests carry them, and errors in its words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from starlette.datastructures import UploadFile
from starlette.requests import Request

from runtime.base.errors import RequestError
from runtime.base.untrusted import parse_json_object, quoted
from runtime.requests.option_types import MAX_CODE_CHARACTERS, MAX_CODES, MAX_LYRICS_CHARACTERS
from server.asgi.problems import Finding, ProblemError
from server.asgi.request_body import (
    MULTIPART,
    ArrivingBody,
    Bodies,
    field_bytes,
    media_type,
    parse_form,
    parse_json,
    read_all,
    receiving,
)
from server.config import ServerSettings

FORM = "application/x-www-form-urlencoded"
MAX_FIELDS = 100
# Items of a list, and characters of texts that may be longer than lyrics.
MAX_ITEMS, LONGER_TEXTS = 1000, {"audio_code_string": MAX_CODES * MAX_CODE_CHARACTERS}
# Parts of a form that are files -> the other names that they have.
FILES = {"src_audio": "ctx_audio", "reference_audio": "ref_audio"}
# Parameter -> the other names that it has.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("caption",),
    "global_caption": ("globalCaption",),
    "negative_prompt": ("negativePrompt",),
    "sample_query": ("sampleQuery", "description", "desc"),
    "sample_mode": ("sampleMode",),
    "use_format": ("useFormat", "format"),
    "model": ("model_name", "modelName", "dit_model", "ditModel"),
    "key_scale": ("keyscale", "keyScale", "key"),
    "time_signature": ("timesignature", "timeSignature"),
    "audio_duration": ("duration", "audioDuration", "target_duration", "targetDuration"),
    "vocal_language": ("vocalLanguage", "language"),
    "inference_steps": ("inferenceSteps",),
    "guidance_scale": ("guidanceScale",),
    "use_random_seed": ("useRandomSeed",),
    "batch_size": ("batchSize",),
    "audio_cover_strength": ("audioCoverStrength", "cover_strength", "coverStrength"),
    "cover_noise_strength": ("coverNoiseStrength",),
    "audio_code_string": ("audioCodeString", "audio_codes"),
    "repainting_start": ("repaintingStart",),
    "repainting_end": ("repaintingEnd",),
    "reference_audio_path": ("ref_audio_path", "referenceAudioPath", "refAudioPath"),
    "src_audio_path": ("ctx_audio_path", "sourceAudioPath", "srcAudioPath", "ctxAudioPath"),
    "task_type": ("taskType",),
    "infer_method": ("inferMethod",),
    "audio_format": ("audioFormat",),
    "track_name": ("trackName",),
    "track_classes": ("trackClasses", "instruments"),
}
# Objects in which metadata may come, too; the first of METADATA that is there.
PARAMETERS, METADATA = "param_obj", ("metas", "meta", "metadata", "user_metadata", "userMetadata")
FLAGS = dict.fromkeys(("1", "true", "yes", "y", "on"), True) | dict.fromkeys(("0", "false", "no", "n", "off"), False)
# Our options as this API calls them.
THEIR_NAMES = {
    "seconds": "audio_duration", "steps": "inference_steps", "guidance": "guidance_scale", "solver": "infer_method",
    "key": "key_scale", "language": "vocal_language", "task": "task_type", "track": "track_name",
    "response_format": "audio_format", "repaint": "repainting_start", "structure_strength": "audio_cover_strength",
    "timbre_strength": "audio_cover_strength", "denoise": "cover_noise_strength", "codes": "audio_code_string",
    "source": "src_audio", "source_id": "src_audio", "timbre": "reference_audio", "timbre_id": "reference_audio",
}  # fmt: skip


async def read_fields(request: Request, settings: ServerSettings, bodies: Bodies) -> tuple[Fields, dict[str, bytes]]:
    """The members of a JSON object, or the texts of a form and its FILES. Raises ProblemError.

    What begins with a brace is JSON, also under another media type: many clients send none, or that of a form.
    """
    kind = media_type(request)
    async with receiving(request, bodies, settings) as arriving:
        if kind == MULTIPART:
            return await _read_form(arriving, settings)
        body = await read_all(arriving, settings.json_bytes)
    if body.lstrip().startswith((b"{", b"[")) or kind.endswith("json"):
        return Fields(await parse_json(request, body, bodies), len(body)), {}
    if kind != FORM:
        raise ProblemError(415, "unsupported_media_type", f"expected JSON or a form, got content type {quoted(kind)}")
    try:
        pairs = parse_qsl(_utf8(body), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise ProblemError(400, "malformed_form", f"the form is no UTF-8, or has over {MAX_FIELDS} fields") from None
    return Fields(_once(pairs), len(body)), {}


async def _read_form(body: ArrivingBody, settings: ServerSettings) -> tuple[Fields, dict[str, bytes]]:
    limit = settings.upload_bytes + settings.json_bytes
    form = await parse_form(body, limit, settings.json_bytes, max_fields=MAX_FIELDS)
    parts = {other: part for part, other in FILES.items()}
    try:
        fields = _once((parts.get(name, name), value) for name, value in form.multi_items())
        files = {name: value for name, value in fields.items() if isinstance(value, UploadFile)}
        for name in files.keys() - FILES.keys():
            refuse_field(name, f"expected a text; the form's files are {' and '.join(FILES)}")
        read = {name: await field_bytes(file, settings.upload_bytes) for name, file in files.items()}
    finally:
        await form.close()
    texts = {name: _utf8(value.encode("latin-1")) for name, value in fields.items() if isinstance(value, str)}
    return Fields(texts, sum(map(len, texts.values()))), read


def _once(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name. Raises ProblemError for a name that occurs more than once."""
    fields: dict[str, Any] = {}
    for name, value in items:
        if name in fields:
            refuse_field(name, "occurs more than once")
        fields[name] = value
    return fields


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ProblemError(400, "malformed_form", "the form has a text that is not UTF-8") from None


def refuse_field(name: str, what: str, fix: str = "") -> NoReturn:
    """Raises ProblemError 422 for the parameter `name`."""
    raise ProblemError(422, "invalid_request", what, fix=fix, errors=[Finding(pointer=f"/{name}", detail=what)])


def error_text(problem: Mapping[str, Any]) -> str:
    """A problem document in one line, with this API's names."""
    text, fix = problem["detail"], problem.get("fix")
    if errors := problem.get("errors"):
        parts = errors[0]["pointer"].removeprefix("/query").split("/")
        name = parts[1] if len(parts) > 1 else ""
        what = errors[0]["detail"].removeprefix(f"{name}: ")
        text = f"{THEIR_NAMES.get(name, name)}: {what}" if name else what
    return text if not fix or fix == "see /v1/schema" else f"{text} ({fix})"


class Fields:
    """Parameters by name, from the request and the objects in it; those of a form are texts, empty ones not given.

    cost_bytes: what they cost to read, as bytes of JSON.
    """

    def __init__(self, values: Mapping[str, Any], cost_bytes: int = 0) -> None:
        self.cost_bytes = cost_bytes
        metadata = next((name for name in METADATA if values.get(name)), METADATA[0])
        self._objects = (values, _object(values, PARAMETERS), _object(values, metadata))

    def get(self, name: str) -> Any:
        """The value as it was sent; None where it was not."""
        for values in self._objects:
            for alias in (name, *ALIASES.get(name, ())):
                value = values.get(alias)
                if value is not None and value != "":
                    return value
        return None

    def text(self, name: str) -> str:
        """A text; "" where there is none. Raises ProblemError."""
        value = self.get(name)
        if value is None:
            return ""
        if isinstance(value, (dict, list, bool)):
            refuse_field(name, f"expected a text, got {quoted(value)}")
        text, most = str(value).strip(), LONGER_TEXTS.get(name, MAX_LYRICS_CHARACTERS)
        if len(text) > most:
            refuse_field(name, f"has {len(text)} characters, at most {most} are taken")
        return text

    def number(self, name: str) -> float | None:
        """A finite number. Raises ProblemError."""
        text = self.text(name)
        try:
            value = float(text) if text else None
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            refuse_field(name, f"expected a number, got {quoted(text)}")
        return value

    def integer(self, name: str) -> int | None:
        """A whole number. Raises ProblemError."""
        value = self.number(name)
        if value is not None and not value.is_integer():
            refuse_field(name, f"expected a whole number, got {value:g}")
        return None if value is None else int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """true or false, also as a text or 1 and 0. Raises ProblemError."""
        value = self.get(name)
        if value is None:
            return default
        found = FLAGS.get(str(value).strip().lower())
        if found is None:
            refuse_field(name, f"expected true or false, got {quoted(value)}")
        return found

    def texts(self, name: str) -> list[str]:
        """A list, or a text with commas or bars between its items. Raises ProblemError."""
        value = self.get(name)
        items = value if isinstance(value, list) else self.text(name).replace("|", ",").split(",")
        if len(items) > MAX_ITEMS:
            refuse_field(name, f"has {len(items)} items, at most {MAX_ITEMS} are taken")
        return [text for item in items if (text := str(item).strip())]


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, or its JSON as a text; {} where there is none. Raises ProblemError."""
    value = values.get(name)
    try:
        found = parse_json_object(value) if isinstance(value, str) and value.strip() else value or {}
    except RequestError as error:
        refuse_field(name, error.what)
    if not isinstance(found, dict):
        refuse_field(name, "expected a JSON object")
    return found
