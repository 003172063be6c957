"""A client of a live session over a WebSocket: plays by the clock, reports its playhead, logs what it receives."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from profiling.bench.live.sound_log import AudioRange, SoundLog
from runtime.base.errors import TickError
from runtime.live.protocol.frames import HEADER
from runtime.live.protocol.messages import SUBPROTOCOL, Ack, ClientMessage, Open
from runtime.live.protocol.server_messages import (
    Applied,
    Closed,
    Problem,
    Ready,
    ServerMessage,
    State,
    message_text,
    parse_server_message,
)

ACK_S = 0.05
# Audio that a client buffers before it begins to play.
BUFFER_S = 0.15
MAX_CHUNK_BYTES = 2**24


class SessionRefusedError(TickError):
    """The server did not open a session. retry_after_s: when it says to ask again; None where it does not."""

    code = "session_refused"
    status = 503

    def __init__(self, what: str, *, fix: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class LiveClient:
    """One open session: its audio log, and the messages that arrived. Times are seconds of time.monotonic()."""

    def __init__(self, socket: ClientConnection, ready: Ready, opened_s: float) -> None:
        self.ready = ready
        self.opened_s = opened_s
        self.log = SoundLog(ready.sample_rate_hz, ready.next_sample)
        self.applied: dict[int, list[Applied]] = defaultdict(list)
        self.states: list[State] = []
        self.problems: list[Problem] = []
        self.worst_leads_s: list[float] = []
        self.closed: Closed | None = None
        self.received_bytes = 0
        self._socket = socket

    async def send(self, message: ClientMessage) -> None:
        """Send a message. Raises TickError where the connection is closed."""
        try:
            await self._socket.send(message_text(message))
        except ConnectionClosed as error:
            reason = self.closed.reason if self.closed is not None else str(error)
            raise TickError(f"the server closed session {self.ready.session}: {reason}") from None

    async def ping(self) -> float:
        """Seconds until the answer to a ping. Raises TickError where the connection is closed."""
        try:
            return await (await self._socket.ping())
        except ConnectionClosed as error:
            raise TickError(f"session {self.ready.session} has no connection: {error}") from None

    async def wait_closed(self) -> None:
        """Wait until the connection is closed."""
        await self._socket.wait_closed()

    def disconnect(self) -> None:
        """Drop the connection without a closing handshake."""
        self._socket.transport.abort()

    async def receive(self) -> None:
        """Log all that arrives until the connection is closed."""
        with suppress(ConnectionClosed):
            async for data in self._socket:
                if isinstance(data, bytes):
                    self._take_audio(data)
                else:
                    self._take_message(parse_server_message(data))

    async def report(self) -> None:
        """Report the playhead 20 times a second until the connection is closed."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(ACK_S)
                if self.log.is_playing:
                    await self._socket.send(message_text(self._ack()))

    def _ack(self) -> Ack:
        now_s = time.monotonic()
        self.log.advance(now_s)
        worst_lead_s = self.log.take_worst_lead_s()
        self.worst_leads_s.append(worst_lead_s)
        return Ack(
            playhead_sample=self.log.playhead(now_s),
            worst_lead_s=worst_lead_s,
            received_bytes=self.received_bytes,
            client_time_s=now_s,
        )

    def _take_audio(self, data: bytes) -> None:
        now_s = time.monotonic()
        self.received_bytes += len(data)
        _, start, samples, first_seq, full_seq, _, _ = HEADER.unpack_from(data)
        self.log.write(AudioRange(start, start + samples, first_seq, full_seq, now_s), now_s)
        if self.log.lead_s() >= BUFFER_S:
            self.log.start(now_s)

    def _take_message(self, message: ServerMessage) -> None:
        match message:
            case Applied():
                self.applied[message.seq].append(message)
            case State():
                self.states.append(message)
            case Problem():
                self.problems.append(message)
            case Closed():
                self.closed = message


@asynccontextmanager
async def live_client(
    url: str, opening: Open, session: str = "", headers: Mapping[str, str] | None = None
) -> AsyncIterator[LiveClient]:
    """Open a session on the server at `url`, or resume `session`; the connection is closed at the end of the block.

    headers: of the handshake. Raises SessionRefusedError where the server does not open it.
    """
    address = f"ws{url.removeprefix('http')}/v1/live" + (f"/{session}" if session else "")
    opened_s = time.monotonic()
    async with connect(
        address,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        additional_headers=headers,
        compression=None,
        max_size=MAX_CHUNK_BYTES,
        max_queue=None,
    ) as socket:
        await socket.send(message_text(opening))
        client = LiveClient(socket, await _ready(socket), opened_s)
        tasks = [asyncio.create_task(client.receive()), asyncio.create_task(client.report())]
        try:
            yield client
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            client.log.advance(time.monotonic())


async def _ready(socket: ClientConnection) -> Ready:
    """The server's answer to `open`."""
    try:
        async for data in socket:
            message = parse_server_message(data)
            if isinstance(message, Ready):
                return message
            if isinstance(message, Problem):
                raise SessionRefusedError(message.detail, fix=message.fix or "", retry_after_s=message.retry_after_s)
    except ConnectionClosed as error:
        raise SessionRefusedError(f"the server closed the connection: {error}") from None
    raise SessionRefusedError("the server closed the connection")
