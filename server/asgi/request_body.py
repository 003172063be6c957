"""Request bodies: read with a size limit and a deadline, parsed as JSON or multipart, validated by a model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from server.asgi.problems import Finding, ProblemError, pointer, unavailable
from server.config import ServerSettings

JSON = "application/json"
MULTIPART = "multipart/form-data"
ACCEPTED = f"{JSON}, {MULTIPART}"
MAX_CONTAINERS = 100_000
MAX_FINDINGS = 20
Model = TypeVar("Model", bound=BaseModel)


@dataclass
class BodyBudget:
    """Bytes of request bodies being read now, over all connections."""

    limit_bytes: int
    used_bytes: int = 0

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
    """The parts of a request: the parsed JSON object, and the bytes of the source file where one was sent."""

    values: dict[str, Any]
    source: bytes | None = None


async def read_upload(request: Request, settings: ServerSettings, budget: BodyBudget) -> Upload:
    """JSON, or multipart with parts `request` (JSON) and `source` (audio). Raises ProblemError 4xx or 503."""
    kind = media_type(request)
    if kind not in (JSON, MULTIPART):
        raise ProblemError(
            415,
            "unsupported_media_type",
            f"expected content type {JSON} or {MULTIPART}, got {kind[:60]!r}",
            fix=f"send the header content-type: {JSON}",
            headers={"Accept": ACCEPTED},
        )
    async with _body_deadline(settings):
        if kind == MULTIPART:
            return await _read_multipart(request, settings, budget)
        body = await _read_all(request, settings.json_bytes, budget)
    return Upload(await run_in_threadpool(parse_object, body))


@asynccontextmanager
async def _body_deadline(settings: ServerSettings) -> AsyncIterator[None]:
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
            f"content encoding {encoding[:40]!r} is not supported",
            fix="send it uncompressed",
        )
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _read_all(request: Request, limit: int, budget: BodyBudget) -> bytes:
    async with aclosing(_limited(request, limit, budget)) as stream:
        return b"".join([part async for part in stream])


async def _limited(request: Request, limit: int, budget: BodyBudget) -> AsyncGenerator[bytes, None]:
    """The body's parts. Raises ProblemError 413 before more than `limit` bytes are kept."""
    declared = request.headers.get("content-length", "0")
    total = 0
    try:
        if int(declared) > limit:
            raise too_large(limit)
        async for part in request.stream():
            if total + len(part) > limit:
                raise too_large(limit)
            budget.reserve(len(part))
            total += len(part)
            yield part
    finally:
        budget.release(total)


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
    async with _body_deadline(settings):
        if media_type(request) == MULTIPART:
            form = await _parse_form(request, limit, settings.json_bytes, budget)
            try:
                data = await _field_bytes(_known_fields(form, ("source",))["source"], limit)
            finally:
                await form.close()
        else:
            data = await _read_all(request, limit, budget)
    budget.reserve(len(data))
    try:
        yield data
    finally:
        budget.release(len(data))


async def _read_multipart(request: Request, settings: ServerSettings, budget: BodyBudget) -> Upload:
    """`request` may be a text field or a file part; `source` must be a file part."""
    form = await _parse_form(request, settings.upload_bytes + settings.json_bytes, settings.json_bytes, budget)
    try:
        fields = _known_fields(form, ("request", "source"))
        text = await _field_bytes(fields["request"], settings.json_bytes)
        source = await _field_bytes(fields["source"], settings.upload_bytes) if "source" in fields else None
    finally:
        await form.close()
    return Upload(await run_in_threadpool(parse_object, text, "/request"), source)


async def _parse_form(request: Request, limit: int, field_limit: int, budget: BodyBudget) -> FormData:
    # latin-1 keeps the exact bytes of a text field, so that invalid UTF-8 is refused instead of replaced.
    headers = Headers({"content-type": request.headers["content-type"] + "; charset=latin-1"})
    async with aclosing(_limited(request, limit, budget)) as stream:
        parser = MultiPartParser(headers, stream, max_files=2, max_fields=2, max_part_size=field_limit)
        try:
            return await parser.parse()
        except MultiPartException as error:
            if "maximum size" in error.message:
                raise too_large(field_limit) from None
            raise ProblemError(400, "malformed_multipart", error.message) from None


def _known_fields(form: FormData, known: tuple[str, ...]) -> dict[str, str | UploadFile]:
    """The fields by name, after checking that there are no others, the first is there, and `source` is a file."""
    names = [name for name, _ in form.multi_items()]
    for name in names:
        if name not in known:
            raise _part_problem(name, f"is unknown; this form takes {' and '.join(known)}")
        if names.count(name) > 1:
            raise _part_problem(name, "occurs more than once")
    if known[0] not in names:
        raise _part_problem(known[0], "is missing")
    if isinstance(form.get("source"), str):
        raise _part_problem("source", "has to be a file: the part has no filename")
    return dict(form.multi_items())


MAGIC = (b"RIFF", b"RF64", b"riff", b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff", b"\x1a\x45\xdf\xa3")


def check_source(data: bytes) -> None:
    """Refuse a source without the magic bytes of a known format. Raises ProblemError 415."""
    head = data[:12]
    is_mpeg = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    if not (head.startswith(MAGIC) or is_mpeg or head[4:8] == b"ftyp" or head[8:9] == b"{"):
        raise ProblemError(
            415, "unsupported_media_type", "the source is not audio", fix="send wav, flac, ogg, mp3 or safetensors"
        )


def _part_problem(name: str, what: str) -> ProblemError:
    finding = Finding(pointer=pointer([name[:100]]), detail=what)
    return ProblemError(422, "invalid_request", f"form field {name[:100]!r} {what}", errors=[finding])


async def _field_bytes(field: str | UploadFile, limit: int) -> bytes:
    if isinstance(field, str):
        return field.encode("latin-1")
    if (field.size or 0) > limit:
        raise too_large(limit)
    return await field.read()


def parse_object(body: bytes, where: str = "") -> dict[str, Any]:
    """A JSON object without repeated keys, NaN or Infinity. Raises ProblemError 400 or 422."""
    if body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:
        raise ProblemError(400, "malformed_json", f"the body has more than {MAX_CONTAINERS} arrays and objects")
    try:
        value = from_json(body, allow_inf_nan=False)
        json.loads(body, object_pairs_hook=_refuse_repeated_keys)
    except ValueError as error:
        raise ProblemError(400, "malformed_json", f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise _invalid("expected a JSON object", where)
    return value


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    """pydantic_core keeps the last of repeated keys without an error."""
    counts = Counter(name for name, _ in pairs)
    if len(counts) < len(pairs):
        raise _invalid(f"the key {counts.most_common(1)[0][0][:100]!r} occurs more than once", "")


def _invalid(what: str, where: str) -> ProblemError:
    return ProblemError(422, "invalid_request", what, errors=[Finding(pointer=where, detail=what)])


def validate(model: type[Model], values: dict[str, Any]) -> Model:
    """`values` as `model`. Raises ProblemError 422 with one finding per error; the values are not repeated."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_url=False, include_input=False, include_context=False)
        findings = [Finding(pointer=pointer(item["loc"]), detail=item["msg"]) for item in items[:MAX_FINDINGS]]
        what = f"{findings[0].pointer or 'the body'}: {findings[0].detail}"
        raise ProblemError(422, "invalid_request", what, fix="see /v1/schema", errors=findings) from None
