"""Request bodies: read with a size limit and a deadline, parsed as JSON or multipart, validated by a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from runtime.base.errors import RequestError
from runtime.base.untrusted import parse_json_object, quoted
from runtime.config.explain import full_sentence
from server.asgi.connection import first_completed, wait_disconnected
from server.asgi.problems import Finding, ProblemError, invalid_request, pointer, unavailable
from server.asgi.shares import Shares, client_of
from server.asgi.turns import Turns
from server.config import KIB, ServerSettings

JSON = "application/json"
MULTIPART = "multipart/form-data"
FILE_PARTS = ("source", "timbre", "structure", "condition", "notes")
SMALL_BYTES = 64 * KIB
# What a byte of a MIDI file costs to parse, in bytes of JSON; of the time, that parsing may hold the interpreter.
NOTES_COST, HELD_SHARE = 30, 0.2
# The first bytes of every body, for which there is always room: the number of requests bounds them.
UNCOUNTED_BYTES = 64 * KIB
# What clients send for a part with JSON in it: most give a text no type, and a file the last one.
REQUEST_PART_TYPES = ("", JSON, "text/plain", "application/octet-stream")
PLAIN_ENCODINGS = ("", "7bit", "8bit", "binary")
Model = TypeVar("Model", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")


class Bodies:
    """Request bodies: the memory of those that are being read, without the first UNCOUNTED_BYTES of each, and the turns
    of their clients to have them parsed and validated, which holds the interpreter.

    limit_bytes: of memory, of which one client has the part `client_share` (0: no limit).
    """

    def __init__(self, limit_bytes: int, client_share: float = 0.5) -> None:
        self.memory = Shares("keeps bytes of requests", limit_bytes, client_share)
        self._small, self._large = Turns("reads requests", HELD_SHARE), Turns("reads large requests", HELD_SHARE)

    def turns(self, cost_bytes: int) -> Turns:
        """For work that takes as long as so many bytes of JSON. What takes long does not hold up what does not."""
        return self._large if cost_bytes > SMALL_BYTES else self._small

    async def run(
        self, request: Request, cost_bytes: int, work: Callable[P, T], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """What `work` gives, in a thread, in the turn of the client. Raises ProblemError 503, ClientDisconnect.

        cost_bytes: as for turns().
        """
        work_in_turn = self.turns(cost_bytes).run(client_of(request.scope), work, *arguments, **options)
        running = asyncio.create_task(work_in_turn)
        await first_completed({running, asyncio.create_task(wait_disconnected(request.receive))})
        if running.cancelled():
            raise ClientDisconnect
        return running.result()


@dataclass
class ArrivingBody:
    """A body that is being read. `end` ends that, to make room for others."""

    request: Request
    memory: Shares
    end: Callable[[], None]


@asynccontextmanager
async def receiving(request: Request, bodies: Bodies, settings: ServerSettings) -> AsyncIterator[ArrivingBody]:
    """Read a body inside of the block. Raises ProblemError 408 where it has not arrived in time."""
    async with deadline(settings.body_timeout_s) as end:
        yield ArrivingBody(request, bodies.memory, end)


@asynccontextmanager
async def deadline(timeout_s: float, fix: str = "") -> AsyncIterator[Callable[[], None]]:
    """Gives what ends the block at once. Raises ProblemError 408 then, and where a body has not arrived in time."""
    what = f"the body did not arrive within {timeout_s:g} s"

    def end() -> None:
        nonlocal what
        if not waiting.expired():
            what = "the body is still not there, and other requests need its room"
            waiting.reschedule(0.0)

    try:
        async with asyncio.timeout(timeout_s) as waiting:
            yield end
    except TimeoutError:
        raise ProblemError(408, "request_timeout", what, fix=fix, headers={"Connection": "close"}) from None


@dataclass(frozen=True)
class Upload:
    """The parts of a request: the parsed JSON object, and the bytes of the files that were sent.

    cost_bytes: what they cost to parse, as bytes of JSON. losses: what files in `values` have lost.
    """

    values: dict[str, Any]
    source: bytes | None = None
    timbre: bytes | None = None
    structure: bytes | None = None
    condition: bytes | None = None
    notes: bytes | None = None
    cost_bytes: int = 0
    losses: list[str] = field(default_factory=list)


async def read_upload(request: Request, settings: ServerSettings, bodies: Bodies) -> Upload:
    """JSON, or multipart with parts `request` (JSON) and FILE_PARTS. Raises ProblemError."""
    kind, where, files = media_type(request), "", dict[str, bytes]()
    async with receiving(request, bodies, settings) as body:
        if kind == JSON:
            text = await read_all(body, settings.json_bytes)
        elif kind == MULTIPART:
            text, files = await _read_multipart(body, settings)
            where = "/request"
        else:
            what = f"expected content type {JSON} or {MULTIPART}, got {quoted(kind)}"
            fix = f"send the header content-type: {JSON}"
            headers = {"Accept": f"{JSON}, {MULTIPART}"}
            raise ProblemError(415, "unsupported_media_type", what, fix=fix, headers=headers)
    values = await parse_json(request, text, bodies, where)
    cost_bytes = len(text) + NOTES_COST * len(files.get("notes", b""))
    return Upload(values, **files, cost_bytes=cost_bytes, losses=[])


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


async def read_all(body: ArrivingBody, limit: int) -> bytes:
    """The body. Raises ProblemError 413, 429 or 503."""
    async with aclosing(_limited(body, limit)) as stream:
        return b"".join([part async for part in stream])


async def _limited(body: ArrivingBody, limit: int) -> AsyncGenerator[bytes, None]:
    """The body's parts. Raises ProblemError 413 before more than `limit` bytes are kept."""
    held, total = None, 0
    try:
        if int(body.request.headers.get("content-length", "0")) > limit:
            raise body_too_large(limit)
        async for part in body.request.stream():
            if total + len(part) > limit:
                raise body_too_large(limit)
            total += len(part)
            if held is not None:
                held.grow(len(part))
            elif total > UNCOUNTED_BYTES:
                held = body.memory.take(client_of(body.request.scope), total - UNCOUNTED_BYTES, evict=body.end)
            yield part
    finally:
        if held is not None:
            held.release()


def body_too_large(limit: int) -> ProblemError:
    """413. It closes the connection: the rest of the body is not read."""
    return ProblemError(
        413,
        "content_too_large",
        f"the body is larger than {limit} bytes",
        fix="send less; the server's limits are json_bytes and upload_bytes",
        headers={"Connection": "close"},
    )


@asynccontextmanager
async def receive_file(request: Request, settings: ServerSettings, bodies: Bodies) -> AsyncIterator[bytes]:
    """The bytes of one file: the body, or a form's part `source`. Raises ProblemError 4xx or 503."""
    limit = min(settings.upload_bytes, settings.sources_bytes)
    async with receiving(request, bodies, settings) as body:
        if media_type(request) == MULTIPART:
            form = await parse_form(body, limit, settings.json_bytes)
            try:
                data = await field_bytes(_known_fields(form, ("source",))["source"], limit)
            finally:
                await form.close()
        else:
            data = await read_all(body, limit)
    with bodies.memory.hold(client_of(request.scope), len(data)):
        yield data


async def _read_multipart(body: ArrivingBody, settings: ServerSettings) -> tuple[bytes, dict[str, bytes]]:
    """`request`, which may be a text field or a file part, and the others, which must be file parts."""
    form = await parse_form(body, settings.upload_bytes + settings.json_bytes, settings.json_bytes)
    try:
        fields = _known_fields(form, ("request", *FILE_PARTS))
        text = await field_bytes(fields.pop("request"), settings.json_bytes)
        return text, {name: await field_bytes(part, settings.upload_bytes) for name, part in fields.items()}
    finally:
        await form.close()


async def parse_form(body: ArrivingBody, limit: int, field_limit: int, *, max_fields: int = 6) -> FormData:
    """A multipart form, to be closed by the caller; its texts are latin-1. Raises ProblemError 4xx or 503."""
    # latin-1 keeps the exact bytes of a text field, so that invalid UTF-8 is refused instead of replaced.
    headers = Headers({"content-type": body.request.headers["content-type"] + "; charset=latin-1"})
    async with aclosing(_limited(body, limit)) as stream:
        parser = _FormParser(headers, stream, max_files=6, max_fields=max_fields, max_part_size=field_limit)
        try:
            return await parser.parse()
        except MultiPartException as error:
            if "maximum size" in error.message:
                raise body_too_large(field_limit) from None
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
        raise body_too_large(limit)
    return await field.read()


async def parse_json(request: Request, text: bytes, bodies: Bodies, where: str = "") -> dict[str, Any]:
    """parse_object() in a thread. Raises what that and Bodies.run() raise."""
    return await bodies.run(request, len(text), parse_object, text, where)


def parse_object(body: bytes, where: str = "") -> dict[str, Any]:
    """A bounded JSON object; `where`: the pointer to it. Raises ProblemError 400 or 422."""
    try:
        return parse_json_object(body)
    except RequestError as error:
        findings = [Finding(pointer=where, detail=error.what)] if error.status == 422 else []
        raise ProblemError(error.status, error.code, error.what, errors=findings) from None


def validate(model: type[Model], values: dict[str, Any], fix: str = "see /v1/schema") -> Model:
    """`values` as `model`. Raises ProblemError 422 with a finding for each error; the values are not repeated."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        items = error.errors(include_url=False, include_input=False)
        findings = (Finding(pointer=pointer(item["loc"]), detail=full_sentence(item, model)) for item in items)
        raise invalid_request(findings, fix) from None
