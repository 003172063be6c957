"""The OSC server: surfaces send UDP packets, and get the values that they and others have set.

A surface turns the newest live session that plays; an address that begins with /tickrt/session/ID is for that session.
There are no keys: every program that reaches the port can change every session.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runtime.base.errors import ConfigError, QueueFullError, RequestError, TickError, UnknownSessionError
from runtime.live.hosting.clients import Change, Values
from runtime.live.hosting.host import SessionHost
from runtime.live.parts.controls import controls_schema
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import MAX_MESSAGES_PER_S
from runtime.live.protocol.server_messages import Applied, Changed, Problem, ServerMessage, State
from server.asgi.shares import Clock, Holding, Shares, network_of
from server.protocols.osc.addresses import AddressTable
from server.protocols.osc.packets import BUNDLE, MAX_PACKET_BYTES, Argument, build_packet, parse_packet
from server.protocols.osc.turns import ClientTurns, Work, size_count

PREFIX = "/tickrt"
QUERY = "?"
BEAT = "beat"
# Surfaces with the sessions that they turn.
MAX_SURFACES = 128
SURFACE_KEEP_S = 600.0
# So many messages of a packet are parsed at once.
PARSED_AT_ONCE = 16
FOLLOW_PERIOD_S = 0.5
Peer = tuple[Any, ...]
logger = logging.getLogger("tickrt.server")


@dataclass(eq=False)
class Surface:
    """A sender and the session that it turns. `follows`: the newest one. A listener of the session's host.

    client: its address, as limits go by it. values: that the session has sent; changed: those that are not shown yet,
    with its beat.
    """

    server: OscServer
    peer: Peer
    session: str
    follows: bool
    client: str
    heard_s: float
    values: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, Any] = field(default_factory=dict)
    holding: Holding = field(init=False)

    @property
    def key(self) -> tuple[Peer, str]:
        """Which one it is: of a sender those of several sessions, "" for the newest one."""
        return self.peer, "" if self.follows else self.session

    def on_message(self, message: ServerMessage) -> None:
        """On the host's thread."""
        if not isinstance(message, State) or message.beat is not None:
            self.server.call(partial(self.receive, message))

    def on_audio(self, chunk: AudioChunk) -> None:
        """A surface plays nothing."""

    def receive(self, message: ServerMessage) -> None:
        """Show what has changed."""
        if isinstance(message, Problem):
            self.server.refuse(self.peer, RequestError(message.detail, fix=message.fix or ""))
        elif isinstance(message, Applied):
            for text in message.losses:
                self.server.refuse(self.peer, RequestError(text))
        elif isinstance(message, Changed):
            self._change(message.values)
        elif isinstance(message, State) and message.beat is not None:
            beat = message.beat
            self._change({BEAT: [beat.bpm, beat.beats, beat.bar, beat.phase, beat.sample]})

    def query(self, name: str, values: Values) -> None:
        """On the host's thread: describe an address, or all of them for ""."""
        self.server.call(lambda: self.server.turns.add_answers(self.client, self._describe(name, values)))

    def _change(self, values: dict[str, Any]) -> None:
        """Show values in the next turn; of several that come until then, the last."""
        if not self.changed:
            self.server.turns.add_shown(self.client, self._show())
        self.changed |= values

    def _describe(self, name: str, values: Values) -> Work:
        """Answers that were counted with the query, but for their size."""
        table = self.server.table
        yield 0
        found = [table.find(name)] if name else table.all(values)
        for address in found:
            assert address is not None, "a query of nothing is refused"
            answer = [self._path(address.name), *address.description(values)]
            yield size_count(self.send(f"{name}/{QUERY}".lstrip("/"), answer))
        if not name:
            self.send(f"{QUERY}/end", [len(found)])

    def _show(self) -> Work:
        yield 1
        changed, self.changed = self.changed, {}
        if (beat := changed.pop(BEAT, None)) is not None:
            self.send(BEAT, beat)
        if not changed:
            return
        if not self.values:
            self.server.send(self.peer, f"{PREFIX}/session", [self.session])
        before, self.values = self.values or changed, {**self.values, **changed}
        for name, arguments in self.server.table.shown(before, changed):
            if not self.server.has(self):
                return
            yield 1 + size_count(self.send(name, arguments))

    def _path(self, name: str) -> str:
        return f"{PREFIX}/{name}" if self.follows else f"{PREFIX}/session/{self.session}/{name}"

    def send(self, name: str, arguments: Sequence[Argument]) -> int:
        """Send a message to the surface; its bytes."""
        return self.server.send(self.peer, self._path(name), arguments)


@dataclass(frozen=True)
class AskedAddress:
    """What a message is for. session: "" for the newest one. name: of an address, "" for all."""

    session: str
    name: str
    is_query: bool

    @classmethod
    def of(cls, path: str) -> AskedAddress | None:
        """None for messages of other programs, and for answers."""
        prefix, _, name = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or prefix or name == "error":
            return None
        session = ""
        if name.startswith("session/"):
            _, session, name = (*name.split("/", 2), "")[:3]
        is_query = name.rpartition("/")[2] == QUERY
        return cls(session, name.removesuffix(QUERY).removesuffix("/"), is_query)

    def num_answers(self, table: AddressTable) -> int:
        """How many messages answer it."""
        return 0 if not self.is_query else 1 if self.name else len(table)


class OscServer(asyncio.DatagramProtocol):
    """An open UDP port, answered from `start` on. Used on the event loop's thread. `port`: that it is bound to. turns:
    of what its clients want.

    reply_port: where surfaces listen; None: the port that they send from. Raises ConfigError where the port cannot be
    opened.
    """

    table: AddressTable

    def __init__(self, host: str, port: int, reply_port: int | None = None, clock: Clock = time.monotonic) -> None:
        self._socket = open_udp_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._reply_port, self._clock = reply_port, clock
        self.turns = ClientTurns(clock)
        self._surfaces: dict[tuple[Peer, str], Surface] = {}
        self._places = Shares("knows OSC surfaces", MAX_SURFACES, clock=clock)
        self._transport: asyncio.DatagramTransport | None = None
        self._serving: asyncio.Task[None] | None = None
        self._host: SessionHost
        self._loop: asyncio.AbstractEventLoop

    def start(self, host: SessionHost) -> None:
        """Turn the sessions of `host`."""
        self._host, self._loop = host, asyncio.get_running_loop()
        self.table = AddressTable(controls_schema(host.model))
        self._serving = self._loop.create_task(self._serve())

    def close(self) -> None:
        """Close the port."""
        if self._serving is not None:
            self._serving.cancel()
            self.turns.close()
        if self._transport is not None:
            self._transport.close()
        self._socket.close()

    async def _serve(self) -> None:
        self._transport, _ = await self._loop.create_datagram_endpoint(lambda: self, sock=self._socket)
        logger.info("OSC on UDP port %d", self.port)
        while True:
            await asyncio.sleep(FOLLOW_PERIOD_S)
            self.follow()

    # Packets.

    def datagram_received(self, data: bytes, peer: Peer) -> None:
        """Take one packet; one that has nothing to do with TickRT gets no answer."""
        if not data.startswith((PREFIX.encode(), BUNDLE)):
            return
        client = self.turns.client(network_of(peer[0]))
        if not self.turns.has_room(client):
            what = f"more than {MAX_MESSAGES_PER_S} messages a second, with their answers, or than there is time for"
            self.refuse(peer, RequestError(what))
            return
        self.turns.add_packet(client, self._packet(data, peer), len(data))

    def _packet(self, data: bytes, peer: Peer) -> Work:
        """Do what a packet asks for. It counts by its size before it is parsed, then by its messages and answers."""
        yield 1 + size_count(min(len(data), MAX_PACKET_BYTES))
        messages: list[tuple[str, list[Argument]]] = []
        try:
            for message in parse_packet(data):
                messages.append(message)
                if len(messages) % PARSED_AT_ONCE == 0:
                    yield 0
        except RequestError as error:
            self.refuse(peer, error)
            return
        for number, (path, arguments) in enumerate(messages):
            asked = AskedAddress.of(path)
            yield (number > 0) + (asked.num_answers(self.table) if asked else 0)
            if asked is None:
                continue  # of another program, or an answer of a server like this one
            try:
                self._take(peer, asked, arguments)
            except TickError as error:
                self.refuse(peer, error)

    def _take(self, peer: Peer, asked: AskedAddress, arguments: Sequence[Argument]) -> None:
        address = self.table.find(asked.name)
        if address is None and (asked.name or not asked.is_query):
            self.refuse(peer, partial(self.table.unknown, asked.name))
            return
        surface = self._surface(peer, asked.session)
        surface.heard_s = self._clock()
        change: Change = partial(surface.query, asked.name)
        if address is not None and not asked.is_query:
            change = partial(address.message, arguments)
        self._host.change(surface.session, change, surface)
        self._join(surface)  # after its first change: it does not get the value before that

    # Surfaces.

    def has(self, surface: Surface) -> bool:
        """Whether it is told what changes."""
        return self._surfaces.get(surface.key) is surface

    def _surface(self, peer: Peer, session: str) -> Surface:
        """The surface of a session, of the newest one for "", perhaps not joined yet. Raises UnknownSessionError."""
        session_id = self._session(session)
        surface = self._surfaces.get((peer, session))
        if surface is None or surface.session != session_id:
            heard_s = surface.heard_s if surface is not None else 0.0
            surface = Surface(self, peer, session_id, not session, network_of(peer[0]), heard_s)
        return surface

    def _session(self, session: str) -> str:
        """The id of an open session; for "" the newest one that has a client. Raises UnknownSessionError."""
        found = [info.id for info in self._host.sessions() if info.id == session or (not session and info.is_connected)]
        if not found:
            raise UnknownSessionError("there is no such live session", fix="open the page and play")
        return found[-1]

    def _join(self, surface: Surface) -> None:
        """Send a surface what changes, unless it has it already. Raises QueueFullError."""
        if self.has(surface):
            surface.holding.touch()
            return
        self._host.join(surface.session, surface)
        if surface.key in self._surfaces:
            self._forget(surface.key)
        surface.holding = self._places.take(surface.client, evict=partial(self._forget, surface.key))
        self._surfaces[surface.key] = surface

    def follow(self) -> None:
        """Forget surfaces that are silent; move those of the newest session to the one that it is now."""
        for (peer, session), surface in list(self._surfaces.items()):
            if self._clock() - surface.heard_s > SURFACE_KEEP_S:
                self._forget(surface.key)
                continue
            with suppress(UnknownSessionError, QueueFullError):  # it waits for the next one, or for room
                self._join(self._surface(peer, session))

    def _forget(self, key: tuple[Peer, str]) -> None:
        surface = self._surfaces.pop(key)
        surface.holding.release()
        self._host.leave(surface.session, surface)

    # Answers.

    def call(self, function: Callable[[], None]) -> None:
        """From any thread: call it on the event loop's."""
        self._loop.call_soon_threadsafe(function)

    def refuse(self, peer: Peer, problem: TickError | Callable[[], TickError]) -> None:
        """Tell a surface what is wrong, now and then where much is."""
        if self.turns.client(network_of(peer[0])).problems.take():
            error = problem() if callable(problem) else problem
            self.send(peer, f"{PREFIX}/error", ["; ".join(filter(None, [error.what, error.fix]))])

    def send(self, peer: Peer, path: str, arguments: Sequence[Argument]) -> int:
        """Send a message to where a surface listens; its bytes."""
        packet = build_packet(path, arguments)
        if self._transport is not None and not self._transport.is_closing():
            address = peer if self._reply_port is None else (peer[0], self._reply_port, *peer[2:])
            self._transport.sendto(packet, address)
        return len(packet)


def open_udp_socket(host: str, port: int) -> socket.socket:
    """A bound UDP socket. Raises ConfigError."""
    fix = "set another osc_port (0: any free one)"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"osc_host {host!r} cannot be used: {error.strerror}", fix="osc_host 127.0.0.1") from None
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened: {error.strerror}"
        raise ConfigError(f"UDP port {port} on {host} {what}", fix=fix) from None
    return opened
