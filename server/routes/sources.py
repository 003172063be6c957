"""/v1/sources: audio and latents uploaded once, used by generations and live sessions by id."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from runtime.base.errors import source_as
from server.asgi.openapi import SOURCE_ID, problem_responses, upload_body
from server.asgi.request_body import receive_file
from server.asgi.shares import client_of
from server.service.service import Service, service_of
from server.service.sources import Source

router = APIRouter(prefix="/v1/sources", tags=["sources"])
SourceId = Annotated[str, Path(pattern=SOURCE_ID)]


class SourceCard(BaseModel):
    """One source: its id is the SHA-256 of its bytes. losses: what of it could not be decoded."""

    id: str = Field(pattern=SOURCE_ID)
    object: Literal["source"] = "source"
    kind: Literal["audio", "latents"]
    bytes: int
    seconds: float
    losses: list[str] = []


class SourceList(BaseModel):
    """All sources, the one used last first."""

    object: Literal["list"] = "list"
    data: list[SourceCard]


def source_card(source: Source) -> SourceCard:
    """The description of a source."""
    seconds, size = source.milliseconds / 1000, source.size_bytes
    values = {"id": source.id, "kind": source.kind, "bytes": size, "seconds": seconds, "losses": source.losses}
    return SourceCard.model_validate(values)


@router.post(
    "",
    status_code=201,
    responses={
        200: {"model": SourceCard, "description": "The source is known already"},
        **problem_responses(400, 401, 403, 408, 413, 415, 422, 429, 500, 503),
    },
    openapi_extra={"requestBody": upload_body()},
)
async def create_source(request: Request, response: Response) -> SourceCard:
    """Upload a source: the file as the body, or as the part `source` of a form. The same bytes have the same id.

    Where the space for sources is used up, those used least recently are removed.
    """
    service = service_of(request)
    service.ready_pipeline()
    client = client_of(request.scope)
    with service.admission.limit_client(client):
        async with receive_file(request, service.settings, service.bodies) as data:
            outcome = "refused"
            try:
                source, is_new = await service.file_turns.run(client, service.sources.add, data, client)
                outcome = "stored" if is_new else "known"
            finally:
                service.metrics.source_uploads.labels(outcome).inc()
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/sources/{source.id}"
    return source_card(source)


@router.get("", responses=problem_responses(401, 403, 503))
async def list_sources(request: Request) -> SourceList:
    """All sources, the one used last first."""
    service = service_of(request)
    service.ready_pipeline()
    return SourceList(data=[source_card(source) for source in await run_in_threadpool(service.sources.all)])


@router.get("/{source_id}", responses=problem_responses(401, 403, 404, 422, 503))
async def get_source(request: Request, source_id: SourceId) -> SourceCard:
    """One source."""
    service = service_of(request)
    service.ready_pipeline()
    return source_card(await run_in_threadpool(service.sources.get, source_id))


@router.delete("/{source_id}", status_code=204, responses=problem_responses(401, 403, 404, 422, 503))
async def delete_source(request: Request, source_id: SourceId) -> None:
    """Delete a source. Generations and sessions that use it go on."""
    service = service_of(request)
    service.ready_pipeline()
    await run_in_threadpool(service.sources.remove, source_id)


async def store_source(service: Service, client: str, data: bytes, part: str) -> Source:
    """A file as a source; `part`: its name in errors. Raises ProblemError, RequestError, StoreError."""
    with service.bodies.memory.hold(client, len(data)), source_as(part):
        source, _ = await service.file_turns.run(client, service.sources.add, data, client)
        return source
