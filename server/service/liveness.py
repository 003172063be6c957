"""Whether a server is live, and whether it is ready."""

from __future__ import annotations

import time

from runtime.tick.record import LoopStats
from server.asgi.problems import ProblemError, draining
from server.service.service import Service


def tick_age_s(stats: LoopStats) -> float | None:
    """Seconds since the last tick; None while the loop is idle."""
    return None if stats.is_idle else max(0.0, time.monotonic() - stats.last_tick_s)


def not_live(service: Service) -> ProblemError | None:
    """Why the server is not live; None if it is."""
    if service.failure:
        return ProblemError(503, "failed", service.failure.what, fix=service.failure.fix)
    if service.pipeline is None:
        return None
    stats = service.pipeline.loop.stats()
    if not stats.is_alive:
        return ProblemError(503, "engine_dead", "the tick loop has stopped", fix="restart the server; its log says why")
    if service.host is not None and service.host.has_died:
        what = "the thread of live sessions has ended"
        return ProblemError(503, "engine_dead", what, fix="restart the server; its log says why")
    age_s = tick_age_s(stats)
    if age_s is not None and age_s > service.settings.tick_timeout_s:
        return ProblemError(503, "tick_overdue", f"work is in flight and the last tick was {age_s:.1f} s ago")
    return None


def not_ready(service: Service) -> ProblemError | None:
    """Why new work is refused; None if it is accepted."""
    if service.admission.is_draining:
        return draining()
    problem = not_live(service)
    if problem is None and service.pipeline is None:
        return service.loading()
    return problem
