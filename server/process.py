"""The server process: one socket, one event loop, and an end in good order.

First SIGTERM or SIGINT: not ready at once, new work is refused, what is in flight may finish within `drain_s`. Second
one: out. SIGHUP: go on with the engines as they are built now. A tick loop that has died or hangs ends the process, so
that a supervisor starts a new one.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from runtime.errors import ConfigError
from server.asgi.connection import make_protocol
from server.config import ServerSettings
from server.routes.health import not_live
from server.service import Service

CUT_S = 2.0
HANG_EXITS_AFTER_S = 60.0
EXIT_FAILED = 1
logger = logging.getLogger("tickrt.server")


def open_socket(host: str, port: int, send_buffer_bytes: int) -> socket.socket:
    """A bound TCP socket. Raises ConfigError where the address is taken, unknown or forbidden."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} is not known: {error.strerror}", fix="--host 127.0.0.1") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        fix = "stop what listens there, or choose another --port (0: any free one)"
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is in use", fix=fix) from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}", fix=fix) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """http://host:port of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class TickServer(uvicorn.Server):
    """uvicorn's server, with our end: `exit_code` says how it went. `on_ready` is called once work is taken."""

    def __init__(self, app: FastAPI, settings: ServerSettings, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(uvicorn_config(app, settings))
        self.exit_code = 0
        self._service: Service = app.state.service
        self._settings = settings
        self._on_ready = on_ready
        self._signals = 0
        self._drain_until_s: float | None = None
        self._broken_since_s: float | None = None
        self._reloading: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal: drain at the first, leave at the second."""
        self._signals += 1
        if self._signals > 1:
            sys.stdout.flush()
            os._exit(128 + sig)
        self.drain()

    def drain(self) -> None:
        """Take no new work; end when everything in flight has ended, or after `drain_s`."""
        self._service.gate.drain()
        self._drain_until_s = time.monotonic() + self._settings.drain_s

    def reload(self) -> None:
        """Go on with the engines as they are built now. One reload at a time; a request during one is part of it."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._service.reload())

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second: is it time to go? Then whoever is still inside is cut."""
        if self._on_ready is not None and self._service.pipeline is not None:
            self._on_ready()
            self._on_ready = None
        if not (self._is_drained() or self._is_beyond_help() or await super().on_tick(counter)):
            return False
        await self._cut_everybody()
        return True

    def _is_drained(self) -> bool:
        if self._drain_until_s is None:
            return False
        return not self._service.gate.tickets or time.monotonic() >= self._drain_until_s

    def _is_beyond_help(self) -> bool:
        """Not live, and for longer than anybody should wait: at once where the loop has died."""
        problem = not_live(self._service)
        if problem is None:
            self._broken_since_s = None
            return False
        now_s = time.monotonic()
        self._broken_since_s = self._broken_since_s or now_s
        self.exit_code = EXIT_FAILED
        if problem.code != "tick_overdue":
            return not self._service.gate.tickets or now_s - self._broken_since_s > CUT_S
        if now_s - self._broken_since_s > HANG_EXITS_AFTER_S:
            logger.error("the tick loop hangs: %s", problem.what)
            os._exit(EXIT_FAILED)
        return False

    async def _cut_everybody(self) -> None:
        self._service.gate.drain()
        for ticket in list(self._service.gate.tickets):
            ticket.cut.set()
        await self._service.gate.wait_empty(CUT_S)


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """How uvicorn serves an app of ours."""
    return uvicorn.Config(
        app,
        http=make_protocol(settings.header_timeout_s, 2 * settings.max_connections),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=round(CUT_S),
        backlog=min(settings.max_connections, 2048),
    )


def serve(
    app: FastAPI, settings: ServerSettings, listener: socket.socket, on_ready: Callable[[], None] | None = None
) -> int:
    """Serve until told to stop; returns the exit code."""
    server = TickServer(app, settings, on_ready)

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
        await server.serve(sockets=[listener])

    with listener:
        asyncio.run(run())
    return server.exit_code
