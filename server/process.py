"""The server process: one socket, one event loop, signals, and shutdown.

First SIGTERM or SIGINT, and POST /admin/drain: not ready, new work is refused, live sessions are handed over, work in
flight may finish within `drain_s`. Second signal: exit at once. SIGHUP: replace the engines by the current builds. A
thread that serves many and has died or hangs ends the process with the exit status of a failed engine, so that a
supervisor restarts it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

try:
    import resource
except ImportError:  # Windows has no limit of open files that could be raised
    resource = None  # type: ignore[assignment]

import uvicorn
from fastapi import FastAPI

from runtime.base.errors import ConfigError
from runtime.commands.terminal import EXIT_ENGINE
from server.asgi.connection import make_protocol
from server.asgi.tls import tls_context
from server.asgi.websocket import WebSocketProtocol
from server.config import MIB, ServerSettings
from server.service.service import OVERDUE, SWITCH_INTERVAL_S, Service, not_live

ABORT_TIMEOUT_S = 2.0
HANG_TIMEOUT_S = 60.0
# Of a server whose thread has died, for all that it has open.
CLOSE_TIMEOUT_S = 10.0
PING_S = 10.0
# 10 s of float32 stereo at 48 kHz, the longest piece of audio that a client may write at once.
MAX_WEBSOCKET_MESSAGE_BYTES = 4 * MIB
# Connections that wait to be accepted; the event loop accepts as many at once before it counts any of them.
BACKLOG = 64
# Files that are not connections: engines, stores, uploads, connections that are being accepted or closed.
RESERVED_FILES = 256
OUT_OF_FILES_LOG_PERIOD_S = 60.0
logger = logging.getLogger("tickrt.server")


def open_socket(host: str, port: int, send_buffer_bytes: int) -> socket.socket:
    """A listening TCP socket. Raises ConfigError for an address that is in use, unknown or forbidden.

    It listens at once: two processes may bind the same port, of which one fails only when both listen.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"host {host!r} cannot be resolved: {error.strerror}", fix="--host 127.0.0.1") from None
    listener = socket.socket(family, kind, protocol)
    if os.name == "posix":  # elsewhere it lets two servers have one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        fix = "stop the process that listens there, or set another --port (0: any free one; make demo PORT=8001)"
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port} on {host} is in use", fix=fix) from None
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}", fix=fix) from None
    return listener


def ignore_reload_signal() -> None:
    """Ignore SIGHUP until a server handles it: its default would end the process while the engines are opened."""
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """scheme://host:port of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def connection_limit(max_connections: int) -> int:
    """How many connections the server holds: two per concurrent request, if so many files may be open.

    Raises the process's soft limit of open files towards the hard one for that.
    """
    wanted = 2 * max_connections
    files = _raise_file_limit(wanted + RESERVED_FILES)
    allowed = max(files - RESERVED_FILES, files // 2)
    if allowed < wanted:
        logger.warning("%d open files allow %d connections, not %d; see ulimit -n", files, allowed, wanted)
    return min(wanted, allowed)


def _raise_file_limit(wanted: int) -> int:
    """The soft limit of open files, raised to `wanted` where it is lower and the system allows it."""
    if resource is None:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):  # macOS has a further limit
        return soft
    return target


class TickServer(uvicorn.Server):
    """uvicorn's server with draining, reload and `exit_code`. `on_ready` is called once the pipeline is ready.

    close_limit: started when it closes because a thread has died; None where more than the server runs in the process.
    """

    def __init__(self, app: FastAPI, settings: ServerSettings, on_ready: Callable[[], None] | None = None) -> None:
        super().__init__(uvicorn_config(app, settings))
        self.exit_code = 0
        self.close_limit: threading.Timer | None = None
        self._service: Service = app.state.service
        self._settings = settings
        self._on_ready = on_ready
        self._signals = 0
        self._drain_until_s: float | None = None
        self._broken_since_s: float | None = None
        self._reloading: asyncio.Task[None] | None = None
        self._out_of_files_s: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections."""
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error of the event loop: one line a minute for connections that find no file left, not one each."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
        elif self._out_of_files_s is None or loop.time() - self._out_of_files_s > OUT_OF_FILES_LOG_PERIOD_S:
            self._out_of_files_s = loop.time()
            logger.error("connections wait: %s; see ulimit -n", error.strerror)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first signal, exit on the second."""
        self._signals += 1
        if self._signals > 1:
            sys.stdout.flush()
            os._exit(128 + sig)
        self.drain()

    def drain(self) -> None:
        """Refuse new work; stop when all work in flight has ended, or after `drain_s`."""
        self._service.admission.drain()
        self._drain_until_s = time.monotonic() + self._settings.drain_s

    def reload(self) -> None:
        """Replace the engines by the current builds; ignored while a reload is running."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._service.reload())

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True stops the server, after generations still in flight were aborted."""
        if self._on_ready is not None and self._service.pipeline is not None:
            gc.freeze()  # a full collection would stop every thread for as long as all modules' objects take
            self._on_ready()
            self._on_ready = None
        if self._service.admission.is_draining and self._drain_until_s is None:
            self.drain()
        if self._drain_until_s is not None:
            self._service.draining.set()
        is_broken = self._is_broken()  # sets the exit code, also where the server ends for another reason
        if not (self._is_drained() or is_broken or await super().on_tick(counter)):
            return False
        await self._abort_all()
        return True

    def _is_drained(self) -> bool:
        """Whether nothing is in flight any more, or `drain_s` is over.

        WebSockets have ABORT_TIMEOUT_S to send their last messages.
        """
        if self._drain_until_s is None:
            return False
        now_s = time.monotonic()
        may_close = now_s < self._drain_until_s - self._settings.drain_s + ABORT_TIMEOUT_S
        has_websockets = any(isinstance(item, WebSocketProtocol) for item in self.server_state.connections)
        is_busy = self._service.admission.permits or (has_websockets and may_close)
        return not is_busy or now_s >= self._drain_until_s

    def _is_broken(self) -> bool:
        """Whether a thread has died; one that hangs for HANG_TIMEOUT_S ends the process."""
        problem = not_live(self._service)
        if problem is None:
            self._broken_since_s, self.exit_code = None, 0
            return False
        now_s = time.monotonic()
        if self._broken_since_s is None:
            self._broken_since_s = now_s
            logger.error("the server is not live: %s", problem.what)
        self.exit_code = EXIT_ENGINE
        if not problem.code.endswith(OVERDUE):
            return not self._service.admission.permits or now_s - self._broken_since_s > ABORT_TIMEOUT_S
        if now_s - self._broken_since_s > HANG_TIMEOUT_S:
            os._exit(EXIT_ENGINE)
        return False

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections. What is closed after that may wait for the thread that has died, but not for ever."""
        if self.exit_code and self.close_limit is not None:
            self.close_limit.start()
        await super().shutdown(sockets)

    async def _abort_all(self) -> None:
        self._service.admission.drain()
        self._service.draining.set()
        for permit in list(self._service.admission.permits):
            permit.abort.set()
        await self._service.admission.wait_empty(ABORT_TIMEOUT_S)


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    """The uvicorn configuration. Raises ConfigError for a certificate that cannot be used."""
    context = None if settings.certificate is None else tls_context(settings.certificate, settings.private_key)
    connections = connection_limit(settings.max_connections)
    app.state.service.places.limit = connections // 2
    protocol = make_protocol(settings.header_timeout_s, 2 * settings.send_timeout_s, connections, context)
    return uvicorn.Config(
        app,
        http=protocol,
        ws=WebSocketProtocol,
        ws_max_size=MAX_WEBSOCKET_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=round(ABORT_TIMEOUT_S),
        backlog=BACKLOG,
    )


def serve(
    app: FastAPI, settings: ServerSettings, listener: socket.socket, on_ready: Callable[[], None] | None = None
) -> int:
    """Serve until a signal or a failure; returns the exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    server = TickServer(app, settings, on_ready)
    server.close_limit = threading.Timer(CLOSE_TIMEOUT_S, os._exit, (EXIT_ENGINE,))
    server.close_limit.daemon = True

    async def run() -> None:
        if hasattr(signal, "SIGHUP"):
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
        await server.serve(sockets=[listener])

    try:
        asyncio.run(run())
    finally:
        server.close_limit.cancel()
    return server.exit_code
