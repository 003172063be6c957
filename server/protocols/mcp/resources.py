"""Resources: files that were made, plans, and schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from runtime.live.protocol.server_messages import messages_schema
from server.asgi.openapi import SCHEMA_TYPE, body_schema
from server.asgi.problems import ProblemError
from server.protocols.mcp.making import FILE_URI
from server.protocols.mcp.schemas import CONTENT_BYTES
from server.protocols.mcp.tools import Tools

PLAN_URI = "tickrt://plans/"
SCHEMA_URI, LIVE_SCHEMA_URI = "tickrt://schema", "tickrt://schema/live"
JSON = "application/json"
# The newest ones are listed.
MAX_LISTED = 100
TEMPLATES = {
    f"{FILE_URI}{{name}}": ("file", "A file that a tool made."),
    f"{PLAN_URI}{{name}}": ("plan", "What was planned of a file, by its name, or of a live session, by its id."),
}


@dataclass(frozen=True)
class ResourceEntry:
    """A resource. size_bytes: None where it is made when it is read."""

    uri: str
    name: str
    description: str
    media_type: str
    size_bytes: int | None = None


def resources(tools: Tools, client: str) -> Iterator[ResourceEntry]:
    """What a client may read: schemas, its files, their plans, and those of live sessions."""
    yield ResourceEntry(SCHEMA_URI, "schema", "JSON schema of the options of a generation.", SCHEMA_TYPE)
    yield ResourceEntry(LIVE_SCHEMA_URI, "live-schema", "JSON schema of the messages of live sessions.", SCHEMA_TYPE)
    for file in tools.files.of(client)[:MAX_LISTED]:
        what = json.dumps(file.facts.get("options", file.facts), ensure_ascii=False)[:200]
        yield ResourceEntry(f"{FILE_URI}{file.name}", file.name, what, file.media_type, file.size_bytes)
        if file.plan:
            yield ResourceEntry(f"{PLAN_URI}{file.name}", f"plan of {file.name}", "What was planned of it.", JSON)
    for session_id in tools.live.with_plan():
        yield ResourceEntry(f"{PLAN_URI}{session_id}", f"plan of {session_id}", "Sections of a live session.", JSON)


async def read_resource(tools: Tools, uri: str) -> tuple[str, str | bytes]:
    """The media type and the content of a resource. Raises ProblemError, UnknownSessionError, FileError."""
    texts: dict[str, Callable[[], object]] = {
        SCHEMA_URI: lambda: body_schema(tools.service.body_model),
        LIVE_SCHEMA_URI: messages_schema,
    }
    if (make := texts.get(uri)) is not None:
        return SCHEMA_TYPE, json.dumps(await run_in_threadpool(make))
    if uri.startswith(FILE_URI):
        file = tools.files.get(uri.removeprefix(FILE_URI))
        if file.size_bytes > CONTENT_BYTES:
            what = f"the file has {file.size_bytes} bytes, a message takes at most {CONTENT_BYTES}"
            fix = f"open {file.path}" if tools.files.keeps else f"GET /mcp/files/{file.name}, or ask for mp3"
            raise ProblemError(413, "content_too_large", what, fix=fix)
        return file.media_type, await run_in_threadpool(file.read)
    if uri.startswith(PLAN_URI):
        return JSON, json.dumps(_plan(tools, uri.removeprefix(PLAN_URI)))
    raise ProblemError(404, "resource_not_found", f"there is no resource {uri!r:.200}", fix="list the resources")


def _plan(tools: Tools, name: str) -> object:
    file = tools.files.find(name)
    if file is not None and file.plan:
        return file.plan
    plan = None if file is not None else tools.live.get(name).plan
    if plan is None:
        raise ProblemError(404, "no_plan", "nothing is planned of it", fix="use a model that plans")
    return plan.model_dump(exclude={"type"})
