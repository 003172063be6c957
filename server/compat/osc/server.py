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

from runtime.errors import ConfigError, QueueFullError, RequestError, TickError, UnknownSessionError
from runtime.sessions.control.controls import controls_schema
from runtime.sessions.hosting.controllers import Values
from runtime.sessions.hosting.host import SessionHost
from runtime.sessions.protocol.frames import AudioChunk
from runtime.sessions.protocol.messages import MAX_MESSAGES_PER_S, Changed, Problem, ServerMessage, State
from server.asgi.rate_limit import RateLimit
from server.compat.osc.addresses import AddressTable
from server.compat.osc.packets import BUNDLE, Argument, build_packet, parse_packet
from server.live.connection import MAX_PROBLEMS, PROBLEM_PERIOD_S

PREFIX = "/tickrt"
QUERY = "?"
MAX_SURFACES = 32
SURFACE_KEEP_S = 600.0
# What a packet counts against the limit of messages, before it is parsed.
BYTES_PER_MESSAGE = 64
FOLLOW_PERIOD_S = 0.5
Peer = tuple[Any, ...]
Clock = Callable[[], float]
logger = logging.getLogger("tickrt.server")


@dataclass(eq=False)
class Surface:
    """A sender and the session that it turns. `follows`: the newest one. A listener of the session's host.

    values: that the session has sent.
    """

    server: OscServer
    peer: Peer
    session: str
    follows: bool
    values: dict[str, Any] = field(default_factory=dict)

    def on_message(self, message: ServerMessage) -> None:
        """On the host's thread."""
        self.server.call(partial(self.receive, message))

    def on_audio(self, chunk: AudioChunk) -> None:
        """A surface plays nothing."""

    def receive(self, message: ServerMessage) -> None:
        """Show what has changed."""
        if isinstance(message, Problem):
            self.server.refuse(self.peer, message.detail, message.fix)
        elif isinstance(message, Changed):
            self._show(message.values)
        elif isinstance(message, State) and message.beat is not None:
            beat = message.beat
            self.send("beat", [beat.bpm, beat.beats, beat.bar, beat.phase, beat.sample])

    def query(self, name: str, values: Values) -> None:
        """On the host's thread: describe an address, or all of them for ""."""
        self.server.call(partial(self._describe, name, values))

    def _describe(self, name: str, values: Values) -> None:
        table = self.server.table
        found = [table.find(name)] if name else table.all(values)
        for address in found:
            self.send(f"{name}/{QUERY}".lstrip("/"), [self._path(address.name), *address.description(values)])
        if not name:
            self.send(f"{QUERY}/end", [len(found)])

    def _show(self, changed: dict[str, Any]) -> None:
        if not self.values:
            self.server.send(self.peer, f"{PREFIX}/session", [self.session])
        before, self.values = self.values or changed, {**self.values, **changed}
        for name, arguments in self.server.table.shown(before, changed):
            self.send(name, arguments)

    def _path(self, name: str) -> str:
        return f"{PREFIX}/{name}" if self.follows else f"{PREFIX}/session/{self.session}/{name}"

    def send(self, name: str, arguments: Sequence[Argument]) -> None:
        """Send a message to the surface."""
        self.server.send(self.peer, self._path(name), arguments)


@dataclass(eq=False)
class Sender:
    """What is known of the sender of packets. surfaces: by the id of their session, "" where it follows the newest."""

    heard_s: float
    messages: RateLimit
    problems: RateLimit
    surfaces: dict[str, Surface] = field(default_factory=dict)


class OscServer(asyncio.DatagramProtocol):
    """An open UDP port, answered from `start` on. Used on the event loop's thread. `port`: that it is bound to.

    reply_port: where surfaces listen; None: the port that they send from. Raises ConfigError where the port cannot be
    opened.
    """

    table: AddressTable

    def __init__(self, host: str, port: int, reply_port: int | None = None, clock: Clock = time.monotonic) -> None:
        self._socket = open_udp_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._reply_port, self._clock = reply_port, clock
        self._senders: dict[Peer, Sender] = {}
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
        sender = self._sender(peer)
        try:
            if not sender.messages.take(1 + len(data) // BYTES_PER_MESSAGE):
                raise RequestError(f"more than {MAX_MESSAGES_PER_S} messages a second")
            messages = parse_packet(data)
        except RequestError as error:
            self.refuse(peer, error.what, error.fix)
            return
        for path, arguments in messages:
            try:
                self._take(sender, peer, path, arguments)
            except TickError as error:
                self.refuse(peer, error.what, error.fix)

    def _sender(self, peer: Peer) -> Sender:
        """The sender, the newest one; beyond MAX_SURFACES the one that has sent nothing for the longest time goes."""
        sender = self._senders.pop(peer, None)
        if sender is None:
            limits = (
                RateLimit(MAX_MESSAGES_PER_S, 1.0, self._clock),
                RateLimit(MAX_PROBLEMS, PROBLEM_PERIOD_S, self._clock),
            )
            sender = Sender(0.0, *limits)
        sender.heard_s = self._clock()
        self._senders[peer] = sender
        while len(self._senders) > MAX_SURFACES:
            self._forget(next(iter(self._senders)))
        return sender

    def _take(self, sender: Sender, peer: Peer, path: str, arguments: Sequence[Argument]) -> None:
        prefix, _, name = path.removeprefix(PREFIX).partition("/")
        if not path.startswith(PREFIX) or prefix or name == "error":
            return  # of another program, or an answer of a server like this one
        session = ""
        if name.startswith("session/"):
            _, session, name = (*name.split("/", 2), "")[:3]
        is_query = name.rpartition("/")[2] == QUERY
        name = name.removesuffix(QUERY).removesuffix("/")
        address = self.table.find(name) if name or not is_query else None
        surface = self._surface(sender, peer, session)
        change = partial(surface.query, name) if is_query or address is None else partial(address.message, arguments)
        self._host.change(surface.session, change, surface)
        self._join(sender, session, surface)  # after its first change: it does not get the value before that

    # Surfaces.

    def _surface(self, sender: Sender, peer: Peer, session: str) -> Surface:
        """The surface of a session, of the newest one for "", perhaps not joined yet. Raises UnknownSessionError."""
        session_id = self._session(session)
        surface = sender.surfaces.get(session)
        if surface is not None and surface.session == session_id:
            return surface
        return Surface(self, peer, session_id, follows=not session)

    def _session(self, session: str) -> str:
        """The id of an open session; for "" the newest one that has a client. Raises UnknownSessionError."""
        found = [info.id for info in self._host.sessions() if info.id == session or (not session and info.is_connected)]
        if not found:
            raise UnknownSessionError("there is no such live session", fix="open the page and play")
        return found[-1]

    def _join(self, sender: Sender, session: str, surface: Surface) -> None:
        """Send a surface what changes, unless it has it already. Raises RequestError."""
        older = sender.surfaces.get(session)
        if older is surface:
            return
        if older is None and len(sender.surfaces) >= MAX_SURFACES:
            raise RequestError(f"one surface turns at most {MAX_SURFACES} sessions")
        self._host.join(surface.session, surface)
        sender.surfaces[session] = surface
        if older is not None:
            self._host.leave(older.session, older)

    def follow(self) -> None:
        """Forget senders that are silent; move surfaces of the newest session to the one that it is now."""
        for peer, sender in list(self._senders.items()):
            if self._clock() - sender.heard_s > SURFACE_KEEP_S:
                self._forget(peer)
                continue
            for session in list(sender.surfaces):
                with suppress(UnknownSessionError, QueueFullError):  # it waits for the next one, or for room
                    self._join(sender, session, self._surface(sender, peer, session))

    def _forget(self, peer: Peer) -> None:
        for surface in self._senders.pop(peer).surfaces.values():
            self._host.leave(surface.session, surface)

    # Answers.

    def call(self, function: Callable[[], None]) -> None:
        """From any thread: call it on the event loop's."""
        self._loop.call_soon_threadsafe(function)

    def refuse(self, peer: Peer, what: str, fix: str | None) -> None:
        """Tell a surface what is wrong, now and then where much is."""
        sender = self._senders.get(peer)
        if sender is not None and sender.problems.take():
            self.send(peer, f"{PREFIX}/error", ["; ".join(filter(None, [what, fix]))])

    def send(self, peer: Peer, path: str, arguments: Sequence[Argument]) -> None:
        """Send a message to where a surface listens."""
        if self._transport is not None and not self._transport.is_closing():
            address = peer if self._reply_port is None else (peer[0], self._reply_port, *peer[2:])
            self._transport.sendto(build_packet(path, arguments), address)


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
