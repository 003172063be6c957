"""Lyria RealTime's WebSocket: Google's SDKs and pages play live sessions."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, WebSocket

from server.protocols.errors import ErrorBody
from server.protocols.lyria.connection import LyriaConnection
from server.service.service import service_of

PATH = "/ws/google.ai.generativelanguage.{version}.GenerativeService.BidiGenerateMusic"
# HTTP status -> Google's name of it.
STATUSES = {
    HTTPStatus.BAD_REQUEST: "INVALID_ARGUMENT",
    HTTPStatus.UNPROCESSABLE_ENTITY: "INVALID_ARGUMENT",
    HTTPStatus.UNAUTHORIZED: "UNAUTHENTICATED",
    HTTPStatus.FORBIDDEN: "PERMISSION_DENIED",
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.TOO_MANY_REQUESTS: "RESOURCE_EXHAUSTED",
    HTTPStatus.NOT_IMPLEMENTED: "UNIMPLEMENTED",
    HTTPStatus.SERVICE_UNAVAILABLE: "UNAVAILABLE",
}
router = APIRouter(include_in_schema=False)


@router.websocket(PATH)
@router.websocket(f"/{PATH}")  # Google's client for Node.js asks for //ws.
async def play_lyria(websocket: WebSocket) -> None:
    """Play a live session; server/protocols/README.md has what its client can do."""
    service = service_of(websocket)
    connection = LyriaConnection(websocket, service)
    service.check_room()
    await websocket.accept()
    await connection.run()


def error_body(problem: dict[str, Any]) -> dict[str, Any]:
    """A problem as Google's servers answer it."""
    message = "; ".join(filter(None, [problem["detail"], problem.get("fix")]))
    status = STATUSES.get(HTTPStatus(problem["status"]), "INTERNAL")
    return {"error": {"code": problem["status"], "message": message, "status": status}}


ERROR_SHAPES: dict[str, ErrorBody] = {"/ws/": error_body, "//ws/": error_body}
