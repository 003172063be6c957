"""Liveness, readiness and metrics: /health/live, /health/ready, /metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response, Security
from pydantic import BaseModel

from server.asgi.openapi import problem_responses
from server.routes.tick_profile import check_admin
from server.service.metrics import CONTENT_TYPE
from server.service.service import Service, check_ready, not_live, not_ready, service_of

router = APIRouter(tags=["operation"])
admin_router = APIRouter(prefix="/admin", tags=["operation"])


class Liveness(BaseModel):
    """The server answers and its threads serve. `tick_age_s`: since the last tick; None while the loop is idle."""

    status: Literal["live"] = "live"
    tick_age_s: float | None = None


class Readiness(BaseModel):
    """New work is accepted."""

    status: Literal["ready"] = "ready"
    model: str
    slots_active: int
    slots_capacity: int
    queue_depth: int
    live_sessions: int


@router.get("/health/live", response_model=Liveness, responses=problem_responses(503))
async def get_live(request: Request) -> Liveness:
    """200 while all threads that serve many do; 503 with the name of one that has died or hangs."""
    service = service_of(request)
    problem = not_live(service)
    if problem is not None:
        raise problem
    heartbeat = None if service.pipeline is None else service.pipeline.loop.thread.heartbeat
    return Liveness(tick_age_s=None if heartbeat is None or heartbeat.is_resting else heartbeat.silent_s)


@router.get("/health/ready", response_model=Readiness, responses=problem_responses(401, 403, 503))
async def get_ready(request: Request) -> Readiness:
    """200 once the engines are open and warm, until shutdown begins; 503 with the cause otherwise."""
    service = service_of(request)
    check_ready(service)
    pipeline = service.ready_pipeline()
    stats = pipeline.loop.stats()
    return Readiness(
        model=pipeline.bundle.name,
        slots_active=stats.slots_active,
        slots_capacity=stats.slots_capacity,
        queue_depth=stats.queue_depth,
        live_sessions=_live_sessions(service),
    )


def _live_sessions(service: Service) -> int:
    return 0 if service.host is None else service.host.stats().open


class Draining(BaseModel):
    """The server ends once nothing is in flight any more. `live_sessions`: those that are handed over now."""

    status: Literal["draining"] = "draining"
    live_sessions: int


@admin_router.post("/drain", status_code=202, response_model=Draining, responses=problem_responses(401, 403))
async def drain(service: Annotated[Service, Security(check_admin)]) -> Draining:
    """End the server as SIGTERM does: no new work, live sessions go to another server where they share a Redis."""
    service.admission.drain()
    return Draining(live_sessions=_live_sessions(service))


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problem_responses(401, 403)},
)
async def get_metrics(request: Request) -> Response:
    """All metrics in the Prometheus text format."""
    service = service_of(request)
    service.metrics.is_ready.set(not_ready(service) is None)
    # In a thread: what several servers share is asked over the network.
    return Response(await service.rendering.run_shared(service.metrics.render), media_type=CONTENT_TYPE)
