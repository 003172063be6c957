"""POST /admin/profile: the next ticks of the running server, as a trace. There is none without an admin key."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, Security
from fastapi.security import APIKeyHeader
from starlette.concurrency import run_in_threadpool

from runtime.tick.record import TickRecord
from server.asgi.openapi import ADMIN_HEADER, problem_responses
from server.asgi.problems import ProblemError
from server.routes.tick_trace import tick_trace
from server.service import Service, service_of

MAX_TICKS = 1000
MAX_WAIT_S = 60.0
admin_key = APIKeyHeader(name=ADMIN_HEADER, scheme_name="admin", auto_error=False)


class Recorder:
    """Keeps the next `ticks` records. Called on the tick thread; `full` is set on the event loop."""

    def __init__(self, ticks: int) -> None:
        self.records: list[TickRecord] = []
        self.full = asyncio.Event()
        self._ticks = ticks
        self._aio = asyncio.get_running_loop()

    def __call__(self, record: TickRecord) -> None:
        """Note one tick, unless there are enough."""
        if len(self.records) < self._ticks:
            self.records.append(record)
            if len(self.records) == self._ticks:
                self._aio.call_soon_threadsafe(self.full.set)


def check_admin(request: Request, key: Annotated[str | None, Security(admin_key)]) -> Service:
    """The service, for whoever has the admin key. Raises ProblemError 403."""
    service = service_of(request)
    wanted = service.settings.admin_key
    if wanted is None or not hmac.compare_digest((key or "").encode(), wanted.get_secret_value().encode()):
        raise ProblemError(403, "admin_key_needed", "this needs the admin key", fix=f"send {ADMIN_HEADER}: KEY")
    return service


router = APIRouter(prefix="/admin", tags=["operation"])
TRACE: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Chrome trace", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.post("/profile", response_class=Response, responses={**TRACE, **problem_responses(401, 403, 409, 422, 503)})
async def profile(
    request: Request,
    service: Annotated[Service, Security(check_admin)],
    ticks: Annotated[int, Query(ge=1, le=MAX_TICKS, description="So many ticks, from now on.")] = 64,
    wait_s: Annotated[float, Query(gt=0, le=MAX_WAIT_S, description="No longer than so many seconds.")] = 10.0,
) -> Response:
    """Record the next ticks and answer with them: open the answer in ui.perfetto.dev. Nothing stops for it.

    Where fewer ticks run in `wait_s`, there are fewer in it.
    """
    pipeline = service.ready_pipeline()
    if service.is_profiling:
        raise ProblemError(409, "profile_running", "another profile is being recorded", fix="wait for its end")
    recorder = Recorder(ticks)
    service.is_profiling = True
    pipeline.loop.observers.append(recorder)
    try:
        await _until(recorder.full, request, wait_s)
    finally:
        pipeline.loop.observers.remove(recorder)
        service.is_profiling = False
    body = await run_in_threadpool(_as_json, list(recorder.records))
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _until(full: asyncio.Event, request: Request, wait_s: float) -> None:
    """Wait until it is set, the time is up, or nobody waits for the answer any more."""
    tasks = {asyncio.create_task(full.wait()), asyncio.create_task(_disconnected(request))}
    try:
        await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _as_json(records: list[TickRecord]) -> bytes:
    trace: dict[str, Any] = tick_trace(records)
    return json.dumps(trace).encode()
