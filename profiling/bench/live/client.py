"""A client of a live session over a WebSocket: plays by the clock, reports its playhead, logs what it receives."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from runtime.base.errors import TickError
from runtime.live.protocol.frames import HEADER, IS_REPLACING
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
Clock = Callable[[], float]


class SessionRefusedError(TickError):
    """The server did not open a session. retry_after_s: when it says to ask again; None where it does not."""

    code = "session_refused"
    status = 503

    def __init__(self, what: str, *, fix: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(what, fix=fix)
        self.retry_after_s = retry_after_s


class LiveClient:
    """One open session: its audio log, and the messages that arrived. Times are seconds of the clock."""

    def __init__(self, socket: ClientConnection, ready: Ready, clock: Clock = time.monotonic) -> None:
        self.ready = ready
        self.log = SoundLog(ready.sample_rate_hz, ready.next_sample)
        self.applied: dict[int, list[Applied]] = defaultdict(list)
        self.states: list[State] = []
        self.problems: list[Problem] = []
        self.worst_leads_s: list[float] = []
        self.closed: Closed | None = None
        self.received_bytes = 0
        self._socket, self._clock = socket, clock

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
        now_s = self._clock()
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
        now_s = self._clock()
        self.received_bytes += len(data)
        _, start, samples, first_seq, full_seq, _, flags = HEADER.unpack_from(data)
        audio = AudioRange(start, start + samples, first_seq, full_seq, now_s)
        self.log.write(audio, now_s, is_replacing=bool(flags & IS_REPLACING))
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
    url: str,
    opening: Open,
    session: str = "",
    headers: Mapping[str, str] | None = None,
    clock: Clock = time.monotonic,
) -> AsyncIterator[LiveClient]:
    """Open a session on the server at `url`, or resume `session`; the connection is closed at the end of the block.

    headers: of the handshake. Raises SessionRefusedError where the server does not open it.
    """
    address = f"ws{url.removeprefix('http')}/v1/live" + (f"/{session}" if session else "")
    async with connect(
        address,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        additional_headers=headers,
        compression=None,
        max_size=MAX_CHUNK_BYTES,
        max_queue=None,
    ) as socket:
        await socket.send(message_text(opening))
        client = LiveClient(socket, await _ready(socket), clock)
        tasks = [asyncio.create_task(client.receive()), asyncio.create_task(client.report())]
        try:
            yield client
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            client.log.advance(clock())


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


@dataclass(frozen=True, slots=True)
class AudioRange:
    """Samples `begin..end` of the play axis; first_seq and full_seq as in the chunk's header.

    received_s: when the chunk arrived, on the client's clock.
    """

    begin: int
    end: int
    first_seq: int
    full_seq: int
    received_s: float

    def cut(self, begin: int, end: int) -> AudioRange:
        """The part of it inside `begin..end`; empty (begin >= end) where there is none."""
        return replace(self, begin=max(begin, self.begin), end=min(end, self.end))


class SoundLog:
    """A client that plays by the clock: from `start()` on the playhead moves in real time, also over missing audio.

    Audio that arrives before it is played replaces what was there, audio that arrives later is dropped. `played` lists
    what was played, `gaps` the silence (begin, end) in place of audio that had not arrived; `late_samples`: dropped,
    but for what replaces audio.
    """

    def __init__(self, sample_rate_hz: int, next_sample: int) -> None:
        self.played: list[AudioRange] = []
        self.gaps: list[tuple[int, int]] = []
        self.late_samples = 0
        self.sample_rate_hz = sample_rate_hz
        self._next_sample = self._played_to = next_sample
        self._started_s: float | None = None
        self._buffered: list[AudioRange] = []
        self._is_silent = False
        self._worst_lead_s: float | None = None

    @property
    def underruns(self) -> int:
        """How often the audio broke off."""
        return len(self.gaps)

    @property
    def missing_samples(self) -> int:
        """All of the silence."""
        return sum(end - begin for begin, end in self.gaps)

    def start(self, now_s: float) -> None:
        """Begin to play; nothing where it plays already."""
        if self._started_s is None:
            self._started_s = now_s

    @property
    def is_playing(self) -> bool:
        """Whether the playhead moves."""
        return self._started_s is not None

    def playhead(self, now_s: float) -> int:
        """The next sample to play."""
        return self._next_sample + (
            0 if self._started_s is None else round((now_s - self._started_s) * self.sample_rate_hz)
        )

    def time_of(self, sample: int) -> float:
        """When the playhead reaches a sample; it must play."""
        assert self._started_s is not None
        return self._started_s + (sample - self._next_sample) / self.sample_rate_hz

    def lead_s(self) -> float:
        """Length of the audio without a gap that follows what was played."""
        end = self._played_to
        for audio in self._buffered:
            if audio.begin > end:
                break
            end = max(end, audio.end)
        return (end - self._played_to) / self.sample_rate_hz

    def take_worst_lead_s(self) -> float:
        """The smallest lead since the last call; the present one where nothing was played."""
        worst, self._worst_lead_s = self._worst_lead_s, None
        return self.lead_s() if worst is None else worst

    def write(self, audio: AudioRange, now_s: float, *, is_replacing: bool = False) -> None:
        """Take a chunk that arrived at `now_s`. is_replacing: where it is late, the audio before it goes on."""
        self.advance(now_s)
        new = audio.cut(self._played_to, audio.end)
        self.late_samples += 0 if is_replacing else min(new.begin, audio.end) - audio.begin
        if new.begin >= new.end:
            return
        around = [part for old in self._buffered for part in (old.cut(0, new.begin), old.cut(new.end, old.end))]
        self._buffered = sorted([*(part for part in around if part.begin < part.end), new], key=lambda part: part.begin)

    def advance(self, now_s: float) -> None:
        """Play up to the playhead."""
        playhead = self.playhead(now_s)
        while self._played_to < playhead:
            if self._buffered and self._buffered[0].begin <= self._played_to:
                self._play(playhead)
            else:
                self._skip(min([playhead, *(audio.begin for audio in self._buffered[:1])]))
        if self.is_playing:
            lead_s = self.lead_s()
            self._worst_lead_s = lead_s if self._worst_lead_s is None else min(lead_s, self._worst_lead_s)

    def _play(self, playhead: int) -> None:
        audio = self._buffered[0]
        part = audio.cut(self._played_to, playhead)
        if audio.end <= playhead:
            del self._buffered[0]
        if self.played and self.played[-1] == replace(part, begin=self.played[-1].begin, end=part.begin):
            part = replace(part, begin=self.played.pop().begin)
        self.played.append(part)
        self._played_to, self._is_silent = part.end, False

    def _skip(self, end: int) -> None:
        begin = self.gaps.pop()[0] if self._is_silent else self._played_to
        self.gaps.append((begin, end))
        self._played_to, self._is_silent = end, True

    def first(self, seq: int) -> AudioRange | None:
        """The first audio played that control `seq` has a part in; its begin is where it is played."""
        return next((audio for audio in self.played if audio.first_seq >= seq), None)

    def full(self, seq: int) -> AudioRange | None:
        """The audio played from which on all is made with control `seq`; its begin is where it is played in full."""
        found = None
        for audio in reversed(self.played):
            if audio.full_seq < seq:
                break
            found = audio
        return found
