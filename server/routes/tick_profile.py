"""POST /admin/profile: a trace of the next ticks of the running server: phases on the host, executes on the device.

It exists only where an admin key is set.
"""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response, Security
from fastapi.security import APIKeyHeader
from starlette.concurrency import run_in_threadpool

from runtime.tick.loop.record import Event, TickRecord, counter_event, slice_event, trace_document
from server.asgi.connection import first_completed, wait_disconnected
from server.asgi.openapi import ADMIN_HEADER, problem_responses
from server.asgi.problems import ProblemError
from server.service.service import Service, service_of

HOST = 1
FIRST_BUCKET = 2
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


def tick_trace(records: Sequence[TickRecord]) -> Event:
    """The trace of `records`, given in order.

    Host and device have separate clocks. Executes keep their distances on the device's clock and are shifted together,
    by the smallest offset with which none begins before its launch.
    """
    lengths = sorted({bucket.frames for record in records for bucket in record.buckets})
    tids = {frames: FIRST_BUCKET + index for index, frames in enumerate(lengths)}
    threads = {HOST: "tick thread", **{tid: f"decoder, {frames} frames" for frames, tid in tids.items()}}
    events: list[Event] = []
    zero_s = min((record.started_s for record in records), default=0.0)
    begins_ms = [(record.started_s - zero_s) * 1e3 for record in records]
    for record, begin_ms, device_ms in zip(records, begins_ms, device_begins(records, begins_ms), strict=True):
        events += _host_events(record, begin_ms)
        for bucket in record.buckets:
            args = {"tick": record.tick, "slots": bucket.slots, "rows": bucket.rows, "executes": bucket.executes}
            tid, begin = tids[bucket.frames], device_ms + bucket.begin_ms
            events.append(slice_event(f"{bucket.rows} rows", tid, begin, bucket.ms, args))
    return trace_document("tickrt", threads, events, {"ticks": len(records)})


def device_begins(records: Sequence[TickRecord], begins_ms: Sequence[float]) -> list[float]:
    """When the device began each tick, on the host's clock, given when the host began it; milliseconds."""
    if not records:
        return []
    gaps_ms = list(accumulate(record.device_gap_ms for record in records[1:]))
    device_ms = [0.0, *gaps_ms]
    launched_ms = [begin_ms + _launched_ms(record) for record, begin_ms in zip(records, begins_ms, strict=True)]
    shift_ms = max(launched - device for launched, device in zip(launched_ms, device_ms, strict=True))
    return [device + shift_ms for device in device_ms]


def _launched_ms(record: TickRecord) -> float:
    """Time from the begin of a tick to its first launch."""
    return next((span.begin_ms for span in record.spans if span.phase == "launch"), 0.0)


def _host_events(record: TickRecord, begin_ms: float) -> Iterator[Event]:
    args = {
        "slots": record.slots,
        "rows": record.rows,
        "executes": record.executes,
        "variants": list(record.variants),
        "allocations": record.allocations,
        "replayed": record.replayed,
        "finished": len(record.finished),
        "frozen": len(record.frozen),
        "resumed": len(record.resumed),
    }
    yield slice_event(f"tick {record.tick}", HOST, begin_ms, record.tick_ms, args)
    for span in record.spans:
        yield slice_event(span.phase, HOST, begin_ms + span.begin_ms, span.ms, {})
    counts = {"slots": record.slots, "waiting": record.queue_depth}
    yield counter_event("generations", begin_ms, counts)
