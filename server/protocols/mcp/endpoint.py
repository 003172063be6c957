"""/mcp of the server: requests of the SDK's protocol, each with a bound in bytes and time, and their sessions."""

from __future__ import annotations

import asyncio
import uuid
from codecs import BOM_UTF8
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mcp.server.lowlevel import Server
from mcp.server.runner import serve_loop
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from runtime.base.untrusted import MAX_JSON_MEMBERS, parse_json_object
from server.asgi.problems import ProblemError
from server.asgi.request_body import read_all, receiving
from server.asgi.shares import Holding, Shares, client_of
from server.config import KIB
from server.protocols.mcp.protocol import make_server
from server.protocols.mcp.tools import Tools, open_tools
from server.service.service import Service

MAX_BODY_BYTES = 256 * KIB
# Larger bodies have at most so many members, some more than arguments: the SDK reads each several times.
SMALL_BODY_BYTES, MAX_MEMBERS = 4 * KIB, MAX_JSON_MEMBERS + 100
# Requests that are answered at a time, each of which may carry a file; and the share of one client.
MAX_REQUESTS, CLIENT_SHARE = 64, 0.25
# Sessions of clients that begin with `initialize`, and the share of one client.
MAX_SESSIONS, SESSIONS_SHARE = 256, 0.125
# A session that has had no request for so long ends.
IDLE_S = 1800.0


@dataclass(eq=False)
class _Session:
    """A session of a client that speaks a version up to 2025-11-25."""

    id: str
    task: asyncio.Task[None] | None = None
    idle: asyncio.TimerHandle | None = None
    place: Holding | None = None
    num_requests: int = 0

    def __post_init__(self) -> None:
        self.transport = StreamableHTTPServerTransport(self.id)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; it makes no room for other sessions meanwhile."""
        self._note(1)
        try:
            await self.transport.handle_request(scope, receive, send)
        finally:
            self._note(-1)

    def _note(self, num_requests: int) -> None:
        """It is used now; so many more requests are answered."""
        self.num_requests += num_requests
        if self.idle is not None:
            self.idle.cancel()
        self.idle = asyncio.get_running_loop().call_later(IDLE_S, self.end)
        if self.place is not None:
            self.place.touch()
            self.place.evict = None if self.num_requests else self.end

    def end(self) -> None:
        """End it."""
        if self.task is not None:
            self.task.cancel()


@dataclass
class Sessions:
    """Sessions by id, each of which has one of the `places`: a further one ends one that was not used for long."""

    server: Server[Any]
    places: Shares
    open: dict[str, _Session] = field(default_factory=dict)

    async def answer(self, session_id: str | None, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a session; a POST without an id begins one. Raises ProblemError 404."""
        if session_id is None and scope["method"] == "POST":
            await self._answer_first(client, scope, receive, send)
            return
        session = self.open.get(session_id or "")
        if session is None:
            raise ProblemError(404, "session_not_found", "there is no session with this id", fix="send initialize")
        await session.answer(scope, receive, send)

    async def close(self) -> None:
        """End all."""
        tasks = [session.task for session in self.open.values() if session.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer_first(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin a session; it ends at once where its first request is none that begins one."""
        session, statuses = await self._begin(client), list[int]()

        async def observe(message: Message) -> None:
            statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])
            await send(message)

        await session.answer(scope, receive, observe)
        if statuses != [200]:
            session.end()

    async def _begin(self, client: str) -> _Session:
        session = _Session(uuid.uuid4().hex)
        session.place = self.places.take(client, evict=session.end)
        self.open[session.id] = session
        started = asyncio.Event()
        session.task = asyncio.create_task(self._serve(session, started))
        # Until the session reads requests.
        await started.wait()
        return session

    async def _serve(self, session: _Session, started: asyncio.Event) -> None:
        """Until the client ends the session, it is idle for too long, or the server stops."""
        try:
            async with session.transport.connect() as (reading, writing):
                started.set()
                await serve_loop(self.server, reading, writing, lifespan_state={}, session_id=session.id)
        finally:
            started.set()
            self.open.pop(session.id, None)
            if session.place is not None:
                session.place.release()
            if session.idle is not None:
                session.idle.cancel()
            if not session.transport.is_terminated:
                await session.transport.terminate()


class Endpoint:
    """Answers POST and DELETE of /mcp. `tools`: what it offers."""

    def __init__(self, service: Service, tools: Tools, version: str) -> None:
        self.tools = tools
        self._settings, self._bodies = service.settings, service.bodies
        server = make_server(tools, version, _caller)
        has_limits = service.client_share > 0
        self._places = Shares("answers assistants", MAX_REQUESTS, CLIENT_SHARE if has_limits else 0)
        self._sessions = Sessions(
            server, Shares("holds sessions of assistants", MAX_SESSIONS, SESSIONS_SHARE if has_limits else 0)
        )
        # Requests of the version 2026-07-28 have no session.
        self._manager = StreamableHTTPSessionManager(server, stateless=True)
        self._stop = asyncio.Event()
        self._started = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        """End all sessions, and what tools have begun."""
        await self._sessions.close()
        self._stop.set()
        await self._running
        await self.tools.close()

    async def _run(self) -> None:
        """The manager's task group ends in the task that has begun it."""
        async with self._manager.run():
            self._started.set()
            await self._stop.wait()

    async def answer(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises ProblemError and RequestError as long as nothing was sent."""
        client = client_of(scope)
        async with receiving(request, self._bodies, self._settings) as arriving:
            body = await read_all(arriving, min(MAX_BODY_BYTES, self._settings.json_bytes))
            body = body.removeprefix(BOM_UTF8)  # which parsers refuse
        if len(body) > SMALL_BODY_BYTES:
            await self._bodies.run(request, len(body), parse_json_object, body, MAX_MEMBERS)
        with self._places.hold(client):
            # Until the manager takes requests.
            await self._started.wait()
            receive = partial(_receive_again, [{"type": "http.request", "body": body, "more_body": False}], receive)
            version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
            if version is None or version in HANDSHAKE_PROTOCOL_VERSIONS:
                session_id = request.headers.get(MCP_SESSION_ID_HEADER)
                await self._sessions.answer(session_id, client, scope, receive, send)
            else:
                await self._manager.handle_request(scope, receive, send)


def open_endpoint(service: Service, version: str) -> Endpoint:
    """The endpoint of a server. Event loop's thread."""
    return Endpoint(service, open_tools(service), version)


async def _receive_again(read: list[Message], receive: Receive) -> Message:
    """The body that was read, then what follows."""
    return read.pop() if read else await receive()


def _caller(request: Request) -> tuple[str, str]:
    """The address that limits go by, and the server's URL."""
    return client_of(request.scope), str(request.base_url)
