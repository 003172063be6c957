"""One WebSocket of a live session, from its `open` message to its close."""

from __future__ import annotations

import asyncio

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect

from runtime.base.errors import NonFiniteError, RequestError, SessionsFullError, TickError
from runtime.live.hosting.host import SessionHost
from runtime.live.protocol.frames import AudioChunk, ChunkEncoder
from runtime.live.protocol.messages import MAX_MESSAGES_PER_S, Open, seq_of
from runtime.live.protocol.server_messages import Closed, Problem, Ready, ServerMessage, message_text, problem_of
from server.asgi.connection import abort_of, charged_to, first_completed, in_charged_thread
from server.asgi.problems import ProblemError
from server.asgi.shares import RateLimit, client_of
from server.config import ServerSettings
from server.live.incoming import Incoming, ViolationError, WriteError, num_counted, parse_text
from server.live.outbox import Outbox
from server.service.metrics import LiveMetrics
from server.service.replicas import Membership

OPEN_TIMEOUT_S = 10.0
MAX_PROBLEMS = 15
PROBLEM_PERIOD_S = 5.0
# Every other reason closes with 1000.
CLOSE_CODES = {
    "expired": 1001,
    "shutdown": 1001,
    "refused": 1008,
    "violation": 1008,
    "too_large": 1009,
    "engine": 1011,
    "internal": 1011,
    "unavailable": 1013,
    "moved": 4307,
    "taken": 4409,
}


class LiveConnection:
    """An accepted WebSocket. `run` serves it to its end.

    membership: the other servers, for a session that finds no room here.
    """

    def __init__(
        self,
        websocket: WebSocket,
        host: SessionHost,
        settings: ServerSettings,
        metrics: LiveMetrics,
        membership: Membership,
    ) -> None:
        self._membership = membership
        self._websocket = websocket
        self._host = host
        self._send_timeout_s = settings.send_timeout_s
        self._is_persistent, self._is_shared = settings.state is not None, settings.redis is not None
        self._edges = list(settings.edges)
        self._metrics = metrics
        self._outbox = Outbox(metrics.dropped_chunks.inc)
        self._session = ""
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._encoder: ChunkEncoder | None = None
        self._problems = RateLimit(MAX_PROBLEMS, PROBLEM_PERIOD_S)
        self._is_ending = False

    async def run(self, session: str | None, draining: asyncio.Event) -> None:
        """Open a session, or resume `session`, and serve it until one side closes or `draining` is set."""
        ending = asyncio.create_task(self._end_when(draining))
        receiving = asyncio.create_task(charged_to(self._websocket.scope, self._receive_all, session))
        tasks = {asyncio.create_task(self._send_all()), receiving}
        try:
            await first_completed(tasks)  # until one side has ended
        finally:
            ending.cancel()
            self._outbox.close()
            if self._session:
                self._host.detach(self._session, self._outbox)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _end_when(self, draining: asyncio.Event) -> None:
        await draining.wait()  # until the server drains; cancelled where the connection ends first
        if self._is_shared and self._session:
            self._host.hand_over(self._session)
        else:
            self._end("shutdown", is_resumable=self._is_persistent)

    async def _receive_all(self, session: str | None) -> None:
        """Process what the client sends until it disconnects; reads no more once the connection is to end."""
        try:
            await self._process(await self._open(session))
        except WebSocketDisconnect:
            return
        except ViolationError as error:
            self._end(error.reason, error)
        except TickError as error:
            self._metrics.refused.labels(error.code).inc()
            url = self._elsewhere(error) if isinstance(error, SessionsFullError) else None
            reason = "moved" if url else "unavailable" if error.status == 503 else "refused"
            self._end(reason, error, url=url)
        await asyncio.Event().wait()  # until sending has ended: `run` cancels this

    def _elsewhere(self, error: SessionsFullError) -> str | None:
        """The URL of another server that has room; else the error gets the shortest wait of all servers."""
        if error.is_of_client:
            return None
        error.retry_after_s = min(error.retry_after_s, self._membership.session_wait_s())
        return self._membership.room_url()

    async def _open(self, session: str | None) -> Incoming:
        """Take the first message. Raises TickError where no session can be opened or resumed."""
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                data = await receive(self._websocket)
        except TimeoutError:
            raise RequestError(f"no open message within {OPEN_TIMEOUT_S:g} s") from None
        message = parse_text(data) if isinstance(data, str) else None
        if not isinstance(message, Open):
            raise RequestError("the first message is open", field="type", fix='send {"type": "open", ...}')
        await in_charged_thread(self._websocket.scope, self._open_session, message, session)
        ready = await self._ready  # until the host's thread has attached this connection and Ready was sent
        return Incoming(self._host, self._session, ready.sample_rate_hz, ready.channels)

    def _open_session(self, message: Open, session: str | None) -> None:
        """In a worker thread: it sets the session's id, so that a cancelled task detaches it, too."""
        if session is None and message.resume is not None:
            raise RequestError("names no session", field="resume", fix="resume at WS /v1/live/{session}")
        client = client_of(self._websocket.scope)
        if session is None:
            self._session = self._host.open(message, self._outbox, client)
        else:
            self._session = self._host.resume(session, message.resume or "", self._outbox, client)

    async def _process(self, incoming: Incoming) -> None:
        limit = RateLimit(MAX_MESSAGES_PER_S, 1.0)
        while True:
            await has_room(self._host, self._session)  # until the session has handled half of what waits
            data = await receive(self._websocket)
            await asyncio.sleep(limit.wait_s(num_counted(data)))  # at most one period of the limit
            try:
                incoming.take(data)
            except ViolationError:
                raise
            except WriteError as error:
                self._outbox.on_message(problem_of(error, error.seq))
            except TickError as error:
                self._outbox.on_message(problem_of(error, seq_of(data)))

    async def _send_all(self) -> None:
        """Send what the session gives until `closed` was sent or the client has disconnected."""
        try:
            while (item := await self._outbox.take()) is not None:
                async with asyncio.timeout(self._send_timeout_s):
                    await self._send(item)
                if isinstance(item, Closed):
                    return
        except WebSocketDisconnect:
            await asyncio.Event().wait()  # until what the client sent before, such as `close`, was received: see `run`
        except TimeoutError:
            self._metrics.send_timeouts.inc()
        abort_of(self._websocket.scope)(False)

    async def _send(self, item: ServerMessage | AudioChunk) -> None:
        if isinstance(item, AudioChunk):
            await self._send_audio(item)
            return
        self._note(item)
        if isinstance(item, Ready) and self._edges:
            item = item.model_copy(update={"edges": self._edges})
        await self._websocket.send_text(message_text(item))
        if isinstance(item, Closed):
            await self._websocket.close(CLOSE_CODES.get(item.reason, 1000))

    async def _send_audio(self, chunk: AudioChunk) -> None:
        encoder = self._encoder
        assert encoder is not None, "audio comes after ready"
        try:
            data = await run_in_threadpool(encoder.encode, chunk) if encoder.is_slow else encoder.encode(chunk)
        except NonFiniteError as error:
            self._outbox.on_message(problem_of(error))
            return
        await self._websocket.send_bytes(data)

    def _note(self, message: ServerMessage) -> None:
        """What the connection itself learns from the messages that it sends."""
        if isinstance(message, Ready):
            self._encoder = ChunkEncoder(message.format, message.sample_rate_hz, message.channels)
            self._ready.set_result(message)
        elif isinstance(message, Problem) and message.status < 500 and self._problems.wait_s() > 0.0:
            self._end("violation", ViolationError(f"more than {MAX_PROBLEMS} problems in {PROBLEM_PERIOD_S:g} s"))

    def _end(
        self, reason: str, error: TickError | None = None, *, is_resumable: bool = True, url: str | None = None
    ) -> None:
        """End the connection after the messages that wait; the session is kept for a while."""
        if self._is_ending:
            return
        self._is_ending = True
        if error is not None:
            self._outbox.on_message(problem_of(error))
        self._outbox.on_message(Closed(reason=reason, resumable=is_resumable and bool(self._session), url=url))


async def receive(websocket: WebSocket) -> str | bytes:
    """The next message. Raises WebSocketDisconnect."""
    message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    text: str | None = message.get("text")
    return message["bytes"] if text is None else text


async def has_room(host: SessionHost, session: str) -> None:
    """Wait until a session takes messages: one whose messages take long is read slowly."""
    room = host.room(session)
    if room is not None:
        await asyncio.wrap_future(room)  # set on the host's thread


async def refuse(websocket: WebSocket, error: ProblemError, url: str | None = None) -> None:
    """Close an accepted WebSocket with a problem. url: of another server, where the client finds what it wants."""
    document = error.document()
    problem = Problem(
        urn=document.type,
        title=document.title,
        status=document.status,
        detail=document.detail,
        code=document.code,
        fix=document.fix,
        retry_after_s=float(error.headers["Retry-After"]) if "Retry-After" in error.headers else None,
    )
    reason = "moved" if url else "unavailable"
    for message in (problem, Closed(reason=reason, resumable=False, url=url)):
        await websocket.send_text(message_text(message))
    await websocket.close(CLOSE_CODES[reason])
