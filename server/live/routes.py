"""WS /v1/live opens a live session, WS /v1/live/{session} resumes one; /v1/sessions lists and ends them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Literal

from fastapi import APIRouter, Request, Response, WebSocket
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from runtime.audio.formats import ARCHIVE
from runtime.base.errors import UnknownSessionError
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.services import SessionInfo
from runtime.live.protocol.messages import SUBPROTOCOL
from runtime.live.protocol.server_messages import Plan, State, messages_schema
from runtime.pipeline.stem_files import StemFiles, stems_bytes, zip_bytes
from server.asgi.openapi import SCHEMA_TYPE, problem_responses
from server.asgi.problems import ProblemError, unavailable
from server.asgi.shares import client_of
from server.asgi.websocket import choose_subprotocol
from server.live.connection import LiveConnection, refuse
from server.service.replicas import TIMEOUT_S, ask_all, ask_owner
from server.service.service import Service, service_of

# What was played last, as stems; until a session says what that is; until another replica has decoded it.
PASSAGE_S, ANSWER_S, STEMS_TIMEOUT_S = 120.0, 5.0, 30.0
router = APIRouter(prefix="/v1", tags=["live"])


class SessionCard(BaseModel):
    """A live session. `state`: the newest one that its client got."""

    id: str
    object: Literal["live.session"] = "live.session"
    connected: bool
    state: State | None


class SessionDetail(SessionCard):
    """One session. `plan`: the newest one; null: it has none, or none yet."""

    plan: Plan | None


class SessionList(BaseModel):
    """All live sessions."""

    object: Literal["list"] = "list"
    data: list[SessionCard]


@router.websocket("/live")
async def live(websocket: WebSocket) -> None:
    """Open a live session; server/live/PROTOCOL.md has the messages."""
    await _serve(websocket, None)


@router.websocket("/live/{session}")
async def resume(websocket: WebSocket, session: str) -> None:
    """Resume a live session."""
    await _serve(websocket, session)


async def _serve(websocket: WebSocket, session: str | None) -> None:
    service = service_of(websocket)
    service.check_draining()
    if session is None:
        service.check_room()
    await websocket.accept(choose_subprotocol(websocket.scope["subprotocols"], SUBPROTOCOL))
    try:
        host = service.live_host()
    except ProblemError as error:
        await refuse(websocket, error, service.membership.room_url())
        return
    connection = LiveConnection(websocket, host, service.settings, service.live_metrics, service.membership)
    await connection.run(session, service.draining)


@router.get("/sessions", responses=problem_responses(401, 403, 501, 503))
async def list_sessions(request: Request) -> SessionList:
    """All live sessions of all replicas, also those that are kept for a client that may come back."""
    service = service_of(request)
    cards = [_card(info) for info in service.live_host().sessions()]
    for answer in await ask_all(request, service.membership.others):
        cards += SessionList.model_validate_json(answer).data
    return SessionList(data=cards)


@router.get("/sessions/{session}", responses=problem_responses(401, 403, 404, 422, 501, 503))
async def get_session(request: Request, session: str) -> SessionDetail:
    """One live session, with its plan."""
    info = _find(service_of(request).live_host(), session)
    if info is None:
        return SessionDetail.model_validate_json(await _from_owner(request))
    return SessionDetail(**_card(info).model_dump(), plan=info.plan)


@router.get(
    "/sessions/{session}/stems",
    response_class=Response,
    responses={
        200: {"content": {ARCHIVE.media_type: {"schema": {"type": "string", "format": "binary"}}}},
        **problem_responses(401, 403, 404, 422, 429, 501, 503),
    },
)
async def get_stems(request: Request, session: str) -> Response:
    """What a live session plays, as a zip archive: the mix, its layers (FLAC of 24 bits), which sum to it, and notes.

    One pass of a loop; else what was played last, up to two minutes. For models with [stems].
    """
    service = service_of(request)
    host = service.live_host()
    host.check_stems()
    if _find(host, session) is None:
        content = await _from_owner(request, STEMS_TIMEOUT_S)
    else:
        content = await _stems(service, host, session, client_of(request.scope))
    headers = {"Content-Disposition": f'attachment; filename="{session}{ARCHIVE.suffix}"', "Cache-Control": "no-store"}
    return Response(content, media_type=ARCHIVE.media_type, headers=headers)


@router.delete("/sessions/{session}", status_code=204, responses=problem_responses(401, 403, 404, 422, 501, 503))
async def end_session(request: Request, session: str) -> Response:
    """End a live session; its client gets `closed`."""
    host = service_of(request).live_host()
    if _find(host, session) is None:
        await _from_owner(request)
    host.end(session, "deleted")
    return Response(status_code=204)


@router.delete(
    "/sessions/{session}/epochs/{epoch}", status_code=204, responses=problem_responses(401, 403, 404, 422, 501, 503)
)
async def leave_session(request: Request, session: str, epoch: int) -> Response:
    """The client of this epoch of a session is gone: the session ends in 8 s, unless it is resumed before."""
    host = service_of(request).live_host()
    if _find(host, session) is None:
        await _from_owner(request)
    host.release(session, epoch)
    return Response(status_code=204)


@router.get(
    "/schema/live",
    response_class=Response,
    responses={200: {"content": {SCHEMA_TYPE: {"schema": {"type": "object"}}}}, **problem_responses(401, 403)},
)
async def get_live_schema() -> Response:
    """JSON schema of the messages of WS /v1/live: `client` and `server`. `ready` has that of the controls."""
    return JSONResponse(_messages_schema(), media_type=SCHEMA_TYPE)


_messages_schema = cache(messages_schema)


def _find(host: SessionHost, session: str) -> SessionInfo | None:
    return next((info for info in host.sessions() if info.id == session), None)


async def _stems(service: Service, host: SessionHost, session: str, client: str) -> bytes:
    """The archive. Its memory counts as that of a response; it takes no place in the tick loop."""
    try:
        # Until the host's thread has looked.
        passage = await asyncio.wait_for(asyncio.wrap_future(host.passage(session, PASSAGE_S)), ANSWER_S)
    except TimeoutError:
        raise unavailable("busy", "the session does not answer now") from None
    permit = service.admission.admit(client)
    try:
        permit.finish_ticks()
        permit.reserve(stems_bytes(passage, host.model.channels))
        turns = service.file_turns
        files = StemFiles(passage, await turns.run(client, lambda: passage.latents), metadata=False)
        while await turns.run(client, files.advance):
            pass
        return await turns.run(client, lambda: zip_bytes(files.finish()))
    finally:
        permit.release()


async def _from_owner(request: Request, timeout_s: float = TIMEOUT_S) -> bytes:
    """What the replica answers that has the session. Raises UnknownSessionError where none has it."""
    answer = await ask_owner(request, service_of(request).membership.others, timeout_s)
    if answer is not None:
        return answer
    raise UnknownSessionError("there is no live session with this id", fix="GET /v1/sessions lists them")


def _card(info: SessionInfo) -> SessionCard:
    return SessionCard(id=info.id, connected=info.is_connected, state=info.state)
