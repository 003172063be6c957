"""What one server holds: the studio it opens, its gate, its metrics, and whose turn it is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from runtime.batch import Event, Failed, Finished
from runtime.errors import TickError
from runtime.studio import Studio
from server.body import BodyBudget
from server.config import ServerSettings
from server.gate import Gate
from server.metrics import Metrics
from server.problems import ProblemError, unavailable
from server.schema import body_model
from server.turns import Audience, Turns

WARM_TIMEOUT_S = 300.0
logger = logging.getLogger("tickrt.server")


class Service:
    """The state of an app. `studio` is None until it is open and warm; `failure` says why it will never be.

    Everything but the studio is used on the event loop's thread only.
    """

    def __init__(self, open_studio: Callable[[], Studio], settings: ServerSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.gate = Gate(capacity=0, client_limit=settings.client_in_flight)
        self.budget = BodyBudget(settings.body_budget_bytes)
        self.turns = Turns()
        self.audience = Audience(size=1)
        self.body_model = body_model(settings.max_seconds)
        self.studio: Studio | None = None
        self.failure = ""
        self._open_studio = open_studio
        self._opening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open and warm the studio in the background."""
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(self._note_failure)

    async def opened(self) -> None:
        """Wait until the studio is open or has failed."""
        if self._opening is not None:
            await asyncio.wait([self._opening])

    async def close(self) -> None:
        """Close what was opened; generations still inside end as drained."""
        self.gate.drain()
        await self.opened()
        studio, self.studio = self.studio, None
        if studio is not None:
            await run_in_threadpool(studio.close)

    def ready_studio(self) -> Studio:
        """The studio. Raises ProblemError 503 while it is loading or where it could not be opened."""
        if self.studio is not None:
            return self.studio
        if self.failure:
            raise ProblemError(503, "failed", self.failure)
        raise unavailable("loading", "the engines are being opened and warmed", retry_after_s=2)

    async def _open(self) -> None:
        started_s = time.monotonic()
        studio = await run_in_threadpool(self._open_studio)
        try:
            await run_in_threadpool(warm, studio)
        except TickError:
            await run_in_threadpool(studio.close)
            raise
        runtime = studio.deployment.runtime
        self.gate.capacity = runtime.depth + runtime.queue
        self.audience.size = runtime.depth
        self.metrics.watch(studio.loop.stats, studio.all_engines(), time.monotonic() - started_s)
        studio.loop.observers.append(self.metrics.observe_tick)
        self.studio = studio

    def _note_failure(self, opening: asyncio.Task[None]) -> None:
        error = None if opening.cancelled() else opening.exception()
        if error is not None:
            self.failure = str(error) or type(error).__name__
            logger.error("the engines could not be opened: %s", self.failure)


def warm(studio: Studio) -> None:
    """Run one step and decode it, so that the first client does not pay for first times. Raises TickError."""
    done: Future[Finished] = Future()

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            done.set_result(event)
        elif isinstance(event, Failed):
            done.set_exception(event.error)

    studio.loop.submit(studio.request("", steps=1, seed=0), listen)
    finished = done.result(WARM_TIMEOUT_S)
    if studio.codec is not None:
        studio.codec.decode(finished.latents)


def service_of(request: Request) -> Service:
    """The service of the app that got this request."""
    service: Service = request.app.state.service
    return service
