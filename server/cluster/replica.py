"""A server in a thread of its own, for a process that something else runs, as Ray Serve's replica.

It is the server of tickrt-serve: its own socket and event loop, a lease in Redis, sessions handed over when it drains.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from runtime.base.errors import TickError
from runtime.config.deployment import load_deployment
from runtime.pipeline.building import open_tried_pipeline
from runtime.pipeline.pipeline import Pipeline
from server.app import create_app
from server.cluster.autoscaling import Load
from server.config import load_settings
from server.process import TickServer, open_socket, url_of
from server.service.service import SWITCH_INTERVAL_S, not_live

# Behind an edge all clients have its address.
NO_CLIENT_LIMITS = {"client_sessions": 0, "client_in_flight": 0}
Result = TypeVar("Result")


class ReplicaServer:
    """A deployment that is served on a free port of `host`, with a lease called `name` in the Redis at `redis`.

    config: a deployment whose engines are built. has_edge: clients reach it through an edge; else the lease has its own
    URL. Further settings come from the deployment's [server] table and TICKRT_* variables. Raises ConfigError.
    """

    def __init__(self, config: Path, name: str, redis: str | None, host: str, has_edge: bool = True) -> None:
        deployment = load_deployment(config)

        def open_and_start() -> Pipeline:
            pipeline = open_tried_pipeline(deployment)
            pipeline.start()
            return pipeline

        settings = load_settings(
            deployment.tables.get("server", {}),
            deployment.path.parent,
            host=host,
            port=0,
            replica=name,
            redis=redis,
            **(NO_CLIENT_LIMITS if has_edge else {}),
        )
        self._listener = open_socket(host, 0, settings.send_buffer_bytes)
        own = {"replica_url": settings.replica_url if has_edge else url_of(self._listener, settings.scheme)}
        settings = settings.model_copy(update={"port": self._listener.getsockname()[1], **own})
        app = create_app(open_and_start, settings)
        self._service = app.state.service
        self._is_ready = threading.Event()
        self._server = TickServer(app, settings, on_ready=self._is_ready.set)
        self._loop, self._has_ended = asyncio.new_event_loop(), False
        self._thread = threading.Thread(target=self._serve, name="server", daemon=True)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self._loop.run_until_complete(self._server.serve(sockets=[self._listener]))
        finally:
            self._has_ended = True
            self._listener.close()
            self._loop.close()
            self._is_ready.set()

    def wait_ready(self) -> None:
        """Wait until the engines are open and warm. Raises TickError where they cannot be opened."""
        self._is_ready.wait()
        self._check_end()

    async def check(self) -> None:
        """Raises TickError where the server or its tick loop has ended or hangs."""
        problem = await self._call(lambda: not_live(self._service))
        if problem is not None:
            raise TickError(problem.what, fix=problem.fix)

    async def load(self) -> Load:
        """Its sessions, its places for them, and how long generations wait. Raises TickError."""
        lease = await self._call(self._service.lease)
        return Load(lease.sessions, lease.capacity, lease.queue_wait_s)

    async def reload(self) -> None:
        """Replace the engines by the current builds, under the sessions. Raises TickError; the old ones stay then."""
        self._check_end()
        replacing = asyncio.run_coroutine_threadsafe(self._service.replace_engines(), self._loop)
        await asyncio.wrap_future(replacing)

    async def drain(self) -> None:
        """Hand the sessions over, finish what is in flight within `drain_s`, and end."""
        if not self._has_ended:
            self._loop.call_soon_threadsafe(self._server.drain)
        await asyncio.to_thread(self._thread.join)

    async def _call(self, function: Callable[[], Result]) -> Result:
        """What a function returns on the server's event loop."""
        self._check_end()

        async def call() -> Result:
            return function()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), self._loop))

    def _check_end(self) -> None:
        if self._has_ended:
            failure: Any = self._service.failure
            raise failure or TickError(f"the server has ended with status {self._server.exit_code}")
