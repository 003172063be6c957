"""Whether a server is live, and whether it is ready."""

from __future__ import annotations

from runtime.base.threads import ServingThread, Watched
from server.asgi.problems import ProblemError, draining
from server.service.service import Service

# Ends the codes of threads that may go on yet.
OVERDUE = "_overdue"
# A large model on a CPU takes seconds for a row; more rows at once take as many times as long.
SLOWER = 16.0


def not_live(service: Service) -> ProblemError | None:
    """Why the server is not live; None if it is."""
    if service.failure:
        return ProblemError(503, "failed", service.failure.what, fix=service.failure.fix)
    threads = list(service.threads)
    if dead := next((thread.name for thread in threads if thread.has_died), None):
        what = f"the thread {dead!r} has ended"
        return ProblemError(503, "engine_dead", what, fix="restart the server; its log says why")
    return next((problem for thread in threads if (problem := _silence(service, thread))), None)


def _silence(service: Service, thread: Watched) -> ProblemError | None:
    """That a thread has had work for too long, also for a machine as slow as this one was so far."""
    settings, silent_s, usual_s = service.settings, thread.silent_s, 0.0
    limit_s = settings.thread_timeout_s
    if isinstance(thread, ServingThread):
        usual_s = thread.heartbeat.usual_s
        if thread.is_prompt and usual_s:  # the first tick compiles and loads: its time is not known
            limit_s = settings.tick_timeout_s
    if silent_s <= max(limit_s, SLOWER * usual_s):
        return None
    what = f"the thread {thread.name!r} has work and has done none of it for {silent_s:.1f} s"
    return ProblemError(503, thread.name.replace("-", "_") + OVERDUE, what)


def check_ready(service: Service) -> None:
    """Raises ProblemError 503 where new work is refused."""
    if (problem := not_ready(service)) is not None:
        raise problem


def not_ready(service: Service) -> ProblemError | None:
    """Why new work is refused; None if it is accepted."""
    if service.admission.is_draining:
        return draining()
    problem = not_live(service)
    if problem is None and service.pipeline is None:
        return service.loading()
    return problem
