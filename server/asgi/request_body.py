"""Request bodies: read with a limit and a deadline, parsed strictly, checked against a model.

Nothing is parsed before it is known to be small enough, and nothing that a parser could choke on reaches it.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from server.asgi.problems import Finding, ProblemError, pointer, unavailable
from server.config import ServerSettings

JSON = "application/json"
MULTIPART = "multipart/form-data"
ACCEPTED = f"{JSON}, {MULTIPART}"
MAX_INTEGER_DIGITS = 64
MAX_FLOAT_DIGITS = 1024
MAX_CONTAINERS = 100_000
Model = TypeVar("Model", bound=BaseModel)


@dataclass
class BodyBudget:
    """Bytes of request bodies that are in memory at this moment, over all connections."""

    limit_bytes: int
    used_bytes: int = 0

    def take(self, size: int) -> None:
        """Count bytes in. Raises a 503 ProblemError where there is no room."""
        if self.used_bytes + size > self.limit_bytes:
            raise unavailable("busy", "too many large requests are being read at this moment")
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Count bytes out."""
        self.used_bytes -= size


@dataclass(frozen=True)
class Upload:
    """What a request carries: the parsed JSON object, and the source file's bytes if one came along."""

    values: dict[str, Any]
    source: bytes | None = None


async def read_upload(request: Request, settings: ServerSettings, budget: BodyBudget) -> Upload:
    """JSON, or multipart with parts `request` (JSON) and `source` (audio). Raises ProblemError 4xx or 503."""
    kind = media_type(request)
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            if kind == MULTIPART:
                return await _read_multipart(request, settings, budget)
            body = await _read_all(request, settings.json_bytes, budget)
    except TimeoutError:
        raise ProblemError(
            408,
            "request_timeout",
            f"the body did not arrive within {settings.body_timeout_s:g} s",
            headers={"Connection": "close"},
        ) from None
    return Upload(await run_in_threadpool(parse_object, body, settings.json_depth))


def media_type(request: Request) -> str:
    """The request's media type, one of the two that are read here. Raises ProblemError 415."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise ProblemError(
            415, "unsupported_content_encoding", f"bodies in {encoding[:40]!r} are not read", fix="send it uncompressed"
        )
    found = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if found not in (JSON, MULTIPART):
        raise ProblemError(
            415,
            "unsupported_media_type",
            f"expected content type {JSON} or {MULTIPART}, got {found[:60]!r}",
            fix=f"send the header content-type: {JSON}",
            headers={"Accept": ACCEPTED},
        )
    return found


async def _read_all(request: Request, limit: int, budget: BodyBudget) -> bytes:
    async with aclosing(_limited(request, limit, budget)) as stream:
        return b"".join([part async for part in stream])


async def _limited(request: Request, limit: int, budget: BodyBudget) -> AsyncGenerator[bytes, None]:
    """The body's parts; a 413 ProblemError before the first byte over `limit` is kept."""
    declared = request.headers.get("content-length", "0")
    total = 0
    try:
        if int(declared) > limit:
            raise too_large(limit)
        async for part in request.stream():
            if total + len(part) > limit:
                raise too_large(limit)
            budget.take(len(part))
            total += len(part)
            yield part
    finally:
        budget.give_back(total)


def too_large(limit: int) -> ProblemError:
    """413. The connection closes after it: the rest of the body is not read."""
    return ProblemError(
        413,
        "content_too_large",
        f"the body is larger than {limit} bytes",
        fix="send less; the server's limits are json_bytes and upload_bytes",
        headers={"Connection": "close"},
    )


async def _read_multipart(request: Request, settings: ServerSettings, budget: BodyBudget) -> Upload:
    """`request` may be a text field or a file part; `source` must be a file part."""
    limit = settings.upload_bytes + settings.json_bytes
    # Read as latin-1, a text field gives back its exact bytes, so that wrong UTF-8 is seen and not mended.
    headers = Headers({"content-type": request.headers["content-type"] + "; charset=latin-1"})
    async with aclosing(_limited(request, limit, budget)) as stream:
        parser = MultiPartParser(headers, stream, max_files=2, max_fields=2, max_part_size=settings.json_bytes)
        try:
            form = await parser.parse()
        except MultiPartException as error:
            if "maximum size" in error.message:
                raise too_large(settings.json_bytes) from None
            raise ProblemError(400, "malformed_multipart", error.message) from None
    try:
        fields = _only_known([name for name, _ in form.multi_items()], form)
        text = await _field_bytes(fields.get("request"), settings.json_bytes)
        source = await _field_bytes(fields.get("source"), settings.upload_bytes)
    finally:
        await form.close()
    _check_parts(fields)
    return Upload(await run_in_threadpool(parse_object, text or b"", settings.json_depth, "/request"), source)


def _only_known(names: list[str], form: Any) -> dict[str, str | UploadFile]:
    for name in names:
        if name not in ("request", "source"):
            raise _part_problem(name, "is not a part of this form; it has request and source")
        if names.count(name) > 1:
            raise _part_problem(name, "is there more than once")
    return dict(form.multi_items())


def _check_parts(fields: dict[str, str | UploadFile]) -> None:
    if "request" not in fields:
        raise _part_problem("request", "is missing: the options as JSON")
    if isinstance(fields.get("source"), str):
        raise _part_problem("source", "needs a file: the part has no filename")


def _part_problem(name: str, what: str) -> ProblemError:
    finding = Finding(pointer=pointer([name[:100]]), detail=what)
    return ProblemError(422, "invalid_request", f"form field {name[:100]!r} {what}", errors=[finding])


async def _field_bytes(field: str | UploadFile | None, limit: int) -> bytes | None:
    if not isinstance(field, UploadFile):
        return None if field is None else field.encode("latin-1")
    if (field.size or 0) > limit:
        raise too_large(limit)
    return await field.read()


def parse_object(body: bytes, depth: int, where: str = "") -> dict[str, Any]:
    """A JSON object, strictly: UTF-8, no repeated keys, no NaN or Infinity, bounded depth. Raises ProblemError."""
    check_nesting(body, depth)
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=_finite,
            parse_int=_integer,
            parse_constant=_no_constant,
        )
    except UnicodeDecodeError as error:
        raise ProblemError(400, "malformed_json", f"the body is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        what = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ProblemError(400, "malformed_json", what) from None
    if not isinstance(value, dict):
        raise _invalid("expected a JSON object", where)
    return value


_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)


def check_nesting(body: bytes, depth: int) -> None:
    """Refuse what is nested deeper than `depth` before a recursive parser sees it. Raises ProblemError 400."""
    containers = body.count(b"[") + body.count(b"{")
    if containers <= depth:
        return
    if containers > MAX_CONTAINERS:
        raise ProblemError(400, "malformed_json", f"the body has more than {MAX_CONTAINERS} lists and objects")
    level = 0
    for token in _TOKENS.finditer(body):
        first = token.group()[0]
        level += (first in b"[{") - (first in b"]}")
        if level > depth:
            raise ProblemError(400, "malformed_json", f"the body is nested deeper than {depth} levels")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise _invalid(f"the key {repeated[:100]!r} is there more than once", "")
    return result


def _finite(text: str) -> float:
    if len(text) > MAX_FLOAT_DIGITS:
        raise _invalid(f"a number has more than {MAX_FLOAT_DIGITS} digits", "")
    value = float(text)
    if not math.isfinite(value):
        raise _invalid("a number is not finite", "")
    return value


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise _invalid(f"an integer has more than {MAX_INTEGER_DIGITS} digits", "")
    return int(text)


def _no_constant(name: str) -> float:
    raise _invalid(f"{name} is not a JSON number", "")


def _invalid(what: str, where: str) -> ProblemError:
    return ProblemError(422, "invalid_request", what, errors=[Finding(pointer=where, detail=what)])


def validate(model: type[Model], values: dict[str, Any]) -> Model:
    """`values` as `model`. Raises ProblemError 422 with one finding per fault; the values found are not repeated."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_url=False, include_input=False, include_context=False)
        findings = [Finding(pointer=pointer(path_in(values, item["loc"])), detail=item["msg"]) for item in items[:20]]
        first = findings[0]
        what = f"{first.pointer or 'the body'}: {first.detail}"
        raise ProblemError(422, "invalid_request", what, fix="see /v1/schema", errors=findings) from None


def path_in(values: Any, loc: tuple[str | int, ...]) -> list[str | int]:
    """The parts of a pydantic location that are steps into `values`, without the names of union branches."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        if isinstance(values, dict) and isinstance(part, str) and (part in values or index == len(loc) - 1):
            values = values.get(part)
        elif isinstance(values, list) and isinstance(part, int) and part < len(values):
            values = values[part]
        else:
            continue
        path.append(part)
    return path


__all__ = ["ACCEPTED", "BodyBudget", "ClientDisconnect", "Upload", "parse_object", "read_upload", "validate"]
