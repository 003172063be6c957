"""POST /admin/profile: a trace of the next ticks of the running server. Exists only where an admin key is set."""

from __future__ import annotations

import asyncio
import hmac
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, Security
from fastapi.security import APIKeyHeader
from starlette.concurrency import run_in_threadpool

from runtime.tick.record import TickRecord
from server.asgi.connection import first_completed, wait_disconnected
from server.asgi.openapi import ADMIN_HEADER, problem_responses
from server.asgi.problems import ProblemError
from server.routes.tick_trace import tick_trace
from server.service.service import Service, service_of

MAX_TICKS = 1000
MAX_WAIT_S = 60.0
admin_key = APIKeyHeader(name=ADMIN_HEADER, scheme_name="admin", auto_error=False)


class Recorder:
    """A tick observer that keeps the next `ticks` records; `full` is set on the event loop."""

    def __init__(self, ticks: int) -> None:
        self.records: list[TickRecord] = []
        self.full = asyncio.Event()
        self._ticks = ticks
        self._aio = asyncio.get_running_loop()

    def __call__(self, record: TickRecord) -> None:
        """Called on the tick thread: keep one record."""
        if len(self.records) < self._ticks:
            self.records.append(record)
            if len(self.records) == self._ticks:
                self._aio.call_soon_threadsafe(self.full.set)


def check_admin(request: Request, key: Annotated[str | None, Security(admin_key)]) -> Service:
    """The service. Raises ProblemError 403 without the admin key."""
    service = service_of(request)
    wanted = service.settings.admin_key
    if wanted is None or not hmac.compare_digest((key or "").encode(), wanted.get_secret_value().encode()):
        raise ProblemError(403, "admin_key_needed", "this route needs the admin key", fix=f"send {ADMIN_HEADER}: KEY")
    return service


router = APIRouter(prefix="/admin", tags=["operation"])
TRACE: dict[int | str, dict[str, Any]] = {
    200: {"description": "A Chrome trace", "content": {"application/json": {"schema": {"type": "object"}}}}
}


@router.post("/profile", response_class=Response, responses={**TRACE, **problem_responses(401, 403, 409, 422, 503)})
async def record_profile(
    request: Request,
    service: Annotated[Service, Security(check_admin)],
    ticks: Annotated[int, Query(ge=1, le=MAX_TICKS, description="Number of ticks to record.")] = 64,
    wait_s: Annotated[float, Query(gt=0, le=MAX_WAIT_S, description="Longest time to record, in seconds.")] = 10.0,
) -> Response:
    """Record the next ticks as a Chrome trace for ui.perfetto.dev, without pausing the loop.

    It holds fewer than `ticks` where fewer run within `wait_s`.
    """
    pipeline = service.ready_pipeline()
    if service.is_profiling:
        raise ProblemError(409, "profile_running", "another profile is being recorded", fix="retry when it has ended")
    recorder = Recorder(ticks)
    service.is_profiling = True
    pipeline.loop.observers.append(recorder)
    try:
        waiting = (recorder.full.wait(), wait_disconnected(request.receive))
        await first_completed({asyncio.create_task(wait) for wait in waiting}, wait_s)
    finally:
        pipeline.loop.observers.remove(recorder)
        service.is_profiling = False
    body = await run_in_threadpool(_as_json, list(recorder.records))
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})


def _as_json(records: list[TickRecord]) -> bytes:
    return json.dumps(tick_trace(records)).encode()
