"""/mcp for assistants, and the files that were made for them. The SDK is imported with the first request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from server.asgi.problems import ProblemError, draining
from server.protocols.errors import json_rpc_error
from server.service.service import Service, service_of

if TYPE_CHECKING:
    from server.protocols.mcp.endpoint import Endpoint

ERROR_SHAPES = {"/mcp": json_rpc_error}


class _Opening:
    """The endpoint of an app, which the first request opens."""

    def __init__(self, service: Service, version: str) -> None:
        self._service, self._version = service, version
        # Held while the SDK is imported, in another thread.
        self._lock = asyncio.Lock()
        self.endpoint: Endpoint | None = None

    async def opened(self) -> Endpoint:
        """The endpoint. Raises ProblemError 501 where the SDK is not installed."""
        async with self._lock:
            if self.endpoint is None:
                if find_spec("mcp") is None:
                    what = "MCP needs the package mcp, which this server does not have"
                    raise ProblemError(501, "not_available", what, fix="pip install 'tickrt[mcp]' on the server")
                self.endpoint = (await run_in_threadpool(_import))(self._service, self._version)
        return self.endpoint

    async def close(self) -> None:
        """End it."""
        if self.endpoint is not None:
            await self.endpoint.close()


def _import() -> Callable[[Service, str], Endpoint]:
    from server.protocols.mcp.endpoint import open_endpoint

    return open_endpoint


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Sessions of assistants, and their files, live as long as the app."""
    app.state.mcp = _Opening(app.state.service, app.version)
    yield
    await app.state.mcp.close()


router = APIRouter(tags=["MCP"], lifespan=_lifespan)


class _Answer(Response):
    """What the SDK answers to a request."""

    def __init__(self, endpoint: Endpoint, request: Request) -> None:
        super().__init__()
        self._endpoint, self._request = endpoint, request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Raises ProblemError as long as nothing was sent."""
        await self._endpoint.answer(self._request, scope, receive, send)


# No GET: nothing is sent to assistants but answers.
@router.api_route("/mcp", methods=["POST", "DELETE"], include_in_schema=False)
async def answer(request: Request) -> Response:
    """A message of the Model Context Protocol."""
    if service_of(request).admission.is_draining:
        raise draining()
    return _Answer(await _opening_of(request).opened(), request)


@router.get("/mcp/files/{name}", include_in_schema=False)
async def get_file(request: Request, name: str) -> FileResponse:
    """A file that a tool made."""
    endpoint = await _opening_of(request).opened()
    file = endpoint.tools.files.get(name)
    headers = {"Cache-Control": "no-store"}
    return FileResponse(
        file.path, media_type=file.media_type, filename=name, content_disposition_type="inline", headers=headers
    )


def _opening_of(request: Request) -> _Opening:
    opening: _Opening = request.app.state.mcp
    return opening
