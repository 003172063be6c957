"""Request bodies: read with a size limit and a deadline, parsed as JSON or multipart, validated by a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from runtime.config.explain import full_sentence
from runtime.errors import RequestError
from runtime.untrusted import parse_json_object, quoted
from server.asgi.paced import Paced
from server.asgi.problems import MAX_FINDINGS, Finding, ProblemError, pointer, unavailable
from server.config import KIB, ServerSettings

JSON = "application/json"
MULTIPART = "multipart/form-data"
FILE_PARTS = ("source", "timbre", "structure", "condition", "notes")
SMALL_JSON_BYTES = 64 * KIB
# The first bytes of every body, for which there is always room: the number of requests bounds them.
UNCOUNTED_BYTES = 64 * KIB
# What clients send for a part with JSON in it: most give a text no type, and a file the last one.
REQUEST_PART_TYPES = ("", JSON, "text/plain", "application/octet-stream")
PLAIN_ENCODINGS = ("", "7bit", "8bit", "binary")
Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")


@dataclass
class BodyBudget:
    """Bytes of request bodies being read now, over all connections, without the first UNCOUNTED_BYTES of each.

    `large_json`: where they are parsed and validated.
    """

    limit_bytes: int
    used_bytes: int = 0
    large_json: Paced = field(default_factory=Paced)

    def reserve(self, size: int) -> None:
        """Reserve bytes. Raises ProblemError 503 above the limit."""
        if self.used_bytes + size > self.limit_bytes:
            raise unavailable("busy", "too many large requests are being read")
        self.used_bytes += size

    def release(self, size: int) -> None:
        """Return reserved bytes."""
        self.used_bytes -= size


@dataclass(frozen=True)
class Upload:
    """The parts of a request: the parsed JSON object, and the bytes of the files that were sent.

    is_large: the JSON is, or the notes are.
    """

    values: dict[str, Any]
    source: bytes | None = None
    timbre: bytes | None = None
    structure: bytes | None = None
    condition: bytes | None = None
    notes: bytes | None = None
    is_large: bool = False


async def read_upload(request: Request, settings: ServerSettings, budget: BodyBudget) -> Upload:
    """JSON, or multipart with parts `request` (JSON) and FILE_PARTS. Raises ProblemError."""
    if _accepted_type(request, JSON, MULTIPART) == JSON:
        body = await _read_json_body(request, settings, budget)
        return Upload(await parse_json(body, budget), is_large=_is_large(body))
    async with body_deadline(settings):
        return await _read_multipart(request, settings, budget)


async def read_json(request: Request, settings: ServerSettings, budget: BodyBudget) -> dict[str, Any]:
    """A body that is a JSON object. Raises ProblemError."""
    _accepted_type(request, JSON)
    return await parse_json(await _read_json_body(request, settings, budget), budget)


async def _read_json_body(request: Request, settings: ServerSettings, budget: BodyBudget) -> bytes:
    async with body_deadline(settings):
        return await read_all(request, settings.json_bytes, budget)


def _accepted_type(request: Request, *accepted: str) -> str:
    """The request's media type. Raises ProblemError 415 where it is none of `accepted`."""
    kind = media_type(request)
    if kind not in accepted:
        raise ProblemError(
            415,
            "unsupported_media_type",
            f"expected content type {' or '.join(accepted)}, got {quoted(kind)}",
            fix=f"send the header content-type: {JSON}",
            headers={"Accept": ", ".join(accepted)},
        )
    return kind


@asynccontextmanager
async def body_deadline(settings: ServerSettings) -> AsyncIterator[None]:
    """Raises ProblemError 408 where a body has not arrived in time."""
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            yield
    except TimeoutError:
        raise ProblemError(
            408,
            "request_timeout",
            f"the body did not arrive within {settings.body_timeout_s:g} s",
            headers={"Connection": "close"},
        ) from None


def media_type(request: Request) -> str:
    """The request's media type. Raises ProblemError 415 for a compressed body."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ProblemError(
            415,
            "unsupported_content_encoding",
            f"content encoding {quoted(encoding)} is not supported",
            fix="send it uncompressed",
        )
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_all(request: Request, limit: int, budget: BodyBudget) -> bytes:
    """The body. Raises ProblemError 413 or 503."""
    async with aclosing(_limited(request, limit, budget)) as stream:
        return b"".join([part async for part in stream])


async def _limited(request: Request, limit: int, budget: BodyBudget) -> AsyncGenerator[bytes, None]:
    """The body's parts. Raises ProblemError 413 before more than `limit` bytes are kept."""
    declared = request.headers.get("content-length", "0")
    total = counted = 0
    try:
        if int(declared) > limit:
            raise too_large(limit)
        async for part in request.stream():
            if total + len(part) > limit:
                raise too_large(limit)
            total += len(part)
            more = max(0, total - UNCOUNTED_BYTES) - counted
            budget.reserve(more)
            counted += more
            yield part
    finally:
        budget.release(counted)


def too_large(limit: int) -> ProblemError:
    """413. It closes the connection: the rest of the body is not read."""
    return ProblemError(
        413,
        "content_too_large",
        f"the body is larger than {limit} bytes",
        fix="send less; the server's limits are json_bytes and upload_bytes",
        headers={"Connection": "close"},
    )


@asynccontextmanager
async def read_file(request: Request, settings: ServerSettings, budget: BodyBudget) -> AsyncIterator[bytes]:
    """The bytes of one file: the body, or a form's part `source`. Raises ProblemError 4xx or 503."""
    limit = min(settings.upload_bytes, settings.sources_bytes)
    async with body_deadline(settings):
        if media_type(request) == MULTIPART:
            form = await parse_form(request, limit, settings.json_bytes, budget)
            try:
                data = await field_bytes(_known_fields(form, ("source",))["source"], limit)
            finally:
                await form.close()
        else:
            data = await read_all(request, limit, budget)
    budget.reserve(len(data))
    try:
        yield data
    finally:
        budget.release(len(data))


async def _read_multipart(request: Request, settings: ServerSettings, budget: BodyBudget) -> Upload:
    """`request` may be a text field or a file part; the others must be file parts."""
    form = await parse_form(request, settings.upload_bytes + settings.json_bytes, settings.json_bytes, budget)
    try:
        fields = _known_fields(form, ("request", *FILE_PARTS))
        text = await field_bytes(fields["request"], settings.json_bytes)
        files = {name: await field_bytes(fields[name], settings.upload_bytes) for name in FILE_PARTS if name in fields}
    finally:
        await form.close()
    is_large = _is_large(text) or _is_large(files.get("notes", b""))
    return Upload(await parse_json(text, budget, "/request"), **files, is_large=is_large)


async def parse_form(
    request: Request, limit: int, field_limit: int, budget: BodyBudget, *, max_fields: int = 6
) -> FormData:
    """A multipart form, to be closed by the caller; its texts are latin-1. Raises ProblemError 4xx or 503."""
    # latin-1 keeps the exact bytes of a text field, so that invalid UTF-8 is refused instead of replaced.
    headers = Headers({"content-type": request.headers["content-type"] + "; charset=latin-1"})
    async with aclosing(_limited(request, limit, budget)) as stream:
        parser = _FormParser(headers, stream, max_files=6, max_fields=max_fields, max_part_size=field_limit)
        try:
            return await parser.parse()
        except MultiPartException as error:
            if "maximum size" in error.message:
                raise too_large(field_limit) from None
            raise ProblemError(400, "malformed_multipart", error.message) from None
        except OSError as error:
            raise unavailable("storage", f"the upload cannot be kept in a temporary file: {error.strerror}") from None


class _FormParser(MultiPartParser):
    """Starlette's parser; it also checks what that one ignores: the end of the form, and how its parts are encoded."""

    _has_ended = False

    async def parse(self) -> FormData:
        """The form. Raises MultiPartException, ProblemError 415."""
        self.stream = self._to_the_end(self.stream)
        return await super().parse()

    async def _to_the_end(self, stream: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """The stream, all of which has to be a form: an error while it is read closes the files of its parts."""
        async for chunk in stream:
            yield chunk
        if not self._has_ended:
            raise MultiPartException("the form is incomplete: it does not end with its boundary")

    def on_end(self) -> None:
        """The closing boundary was read."""
        self._has_ended = True

    def on_headers_finished(self) -> None:
        """The headers of a part were read. Raises ProblemError 415."""
        super().on_headers_finished()
        headers = Headers(raw=self._current_part.item_headers)
        encoding = headers.get("content-transfer-encoding", "").strip().lower()
        if encoding not in PLAIN_ENCODINGS:
            raise _unsupported(f"content transfer encoding {quoted(encoding)}", "send the part's bytes as they are")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._current_part.field_name == "request" and kind not in REQUEST_PART_TYPES:
            raise _unsupported(f"content type {quoted(kind)} of the form field 'request'", f"send it as {JSON}")


def _unsupported(what: str, fix: str) -> ProblemError:
    return ProblemError(415, "unsupported_media_type", f"{what} is not supported", fix=fix)


def _known_fields(form: FormData, known: tuple[str, ...]) -> dict[str, str | UploadFile]:
    """The fields by name, after checking that there are no others, the first is there, and FILE_PARTS are files."""
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in known:
            raise _part_problem(name, f"is unknown; this form takes {', '.join(known)}")
        if names.count(name) > 1:
            raise _part_problem(name, "occurs more than once")
    if known[0] not in names:
        raise _part_problem(known[0], "is missing")
    for name in FILE_PARTS:
        if isinstance(form.get(name), str):
            raise _part_problem(name, "has to be a file: the part has no filename")
    return dict(form.multi_items())


MAGIC = (b"RIFF", b"RF64", b"riff", b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff", b"\x1a\x45\xdf\xa3")


def check_source(data: bytes, part: str = "source") -> None:
    """Refuse a file without the magic bytes of a known format. Raises ProblemError 415."""
    head = data[:12]
    is_mpeg = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    if not (head.startswith(MAGIC) or is_mpeg or head[4:8] == b"ftyp" or head[8:9] == b"{"):
        raise ProblemError(
            415, "unsupported_media_type", f"the {part} is not audio", fix="send wav, flac, ogg, mp3 or safetensors"
        )


def _part_problem(name: str, what: str) -> ProblemError:
    return ProblemError(
        422,
        "invalid_request",
        f"form field {quoted(name)} {what}",
        errors=[Finding(pointer=pointer([name]), detail=what)],
    )


async def field_bytes(field: str | UploadFile, limit: int) -> bytes:
    """The bytes of a form's text or file. Raises ProblemError 413."""
    if isinstance(field, str):
        return field.encode("latin-1")
    if (field.size or 0) > limit:
        raise too_large(limit)
    return await field.read()


async def parse_json(body: bytes, budget: BodyBudget, where: str = "") -> dict[str, Any]:
    """parse_object() in a thread."""
    return await in_thread(budget, _is_large(body), parse_object, body, where)


async def validate_upload(model: type[Model], upload: Upload, budget: BodyBudget) -> Model:
    """validate() in a thread."""
    return await in_thread(budget, upload.is_large, validate, model, upload.values)


def _is_large(data: bytes) -> bool:
    return len(data) > SMALL_JSON_BYTES


async def in_thread(budget: BodyBudget, is_large: bool, work: Callable[..., Result], *arguments: object) -> Result:
    """What `work` gives, which holds the interpreter for long where `is_large`."""
    run = budget.large_json.run if is_large else run_in_threadpool
    return await run(work, *arguments)


def parse_object(body: bytes, where: str = "") -> dict[str, Any]:
    """A bounded JSON object; `where`: the pointer to it. Raises ProblemError 400 or 422."""
    try:
        return parse_json_object(body)
    except RequestError as error:
        findings = [Finding(pointer=where, detail=error.what)] if error.status == 422 else []
        raise ProblemError(error.status, error.code, error.what, errors=findings) from None


def validate(model: type[Model], values: dict[str, Any], fix: str = "see /v1/schema") -> Model:
    """`values` as `model`. Raises ProblemError 422 with one finding per error; the values are not repeated."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_url=False, include_input=False)[:MAX_FINDINGS]
        findings = [Finding(pointer=pointer(item["loc"]), detail=full_sentence(item, model)) for item in items]
        what = f"{findings[0].pointer or 'the body'}: {findings[0].detail}"
        raise ProblemError(422, "invalid_request", what, fix=fix, errors=findings) from None
