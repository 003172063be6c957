"""State of one server: pipeline, admission control, stores, metrics; whether it is live, and whether it is ready."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection

from runtime.base.errors import ConfigError, TickError
from runtime.base.threads import ServingThread, Watched
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.slots import HostLimits, TickTimes
from runtime.live.storage.sqlite_store import open_sqlite_store
from runtime.live.storage.store import SessionStore
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.events import Event, Failed, Finished
from server.asgi.openapi import body_model
from server.asgi.problems import ProblemError, draining, unavailable
from server.asgi.request_body import HELD_SHARE, Bodies
from server.asgi.shares import Shares
from server.asgi.turns import Turns
from server.config import ServerSettings
from server.service.admission import Admission, FirstAudioTracker
from server.service.generation_cards import GenerationCards
from server.service.lease import Lease, ReplicaState
from server.service.metrics import LiveMetrics, Metrics
from server.service.replicas import Membership
from server.service.sources import SourceFiles, SourceFolder, SourceStore

if TYPE_CHECKING:
    from server.service.leases import Leases
WARM_UP_TIMEOUT_S = 300.0
# To decode and encode one source, of which 600 s take a tenth of it on two cores; and until the turn for that.
FILES_TIMEOUT_S = 60.0
# How long a busy Python thread may hold the interpreter while the tick thread waits for it; Python's default is 0.005.
SWITCH_INTERVAL_S = 0.0005
# Of glibc's heap, from which arrays, encoders and ONNX Runtime have their memory: a parameter of its mallopt.
M_ARENA_MAX = -8
ARENAS = 2
TRIM_S = 10.0
logger = logging.getLogger("tickrt.server")
# Ends the codes of threads that may go on yet.
OVERDUE = "_overdue"
# A large model on a CPU takes seconds for a row; more rows at once take as many times as long.
SLOWER = 16.0


class Service:
    """State of an app. `pipeline` is None until it is open and warm; `failure` is the cause if opening failed.

    `sources` exists once the pipeline does, and so does `host`, which runs the live sessions, unless the model has no
    codec. `store` keeps live sessions for the next start; None where the settings name no place. `draining` is set soon
    after draining began: what is open without an end, a live session, ends then. threads: those that serve many: where
    one has ended or is silent, the server is not live. rendering, describing: make the texts of /metrics and
    /openapi.json. cards: what made generations. All but `pipeline`, `sources` and `host` is used on the event loop's
    thread only. Raises ConfigError where the store cannot be opened.
    """

    def __init__(self, open_pipeline: Callable[[], Pipeline], settings: ServerSettings) -> None:
        self.settings = settings
        self.store = open_session_store(settings)
        self.metrics = Metrics(settings.replica)
        self.live_metrics = LiveMetrics(self.metrics.registry)
        self.admission = Admission(
            capacity=0, client_limit=settings.client_in_flight, memory_bytes=settings.response_budget_bytes
        )
        # Of what the server has, for one client.
        self.client_share = 0.0 if settings.client_in_flight == 0 else 0.5
        self.places = Shares("answers requests", settings.max_connections, self.client_share)
        self.metrics.response_bytes.set_function(lambda: self.admission.memory.used)
        self.draining = asyncio.Event()
        self.bodies = Bodies(settings.body_budget_bytes, self.client_share)
        self.rendering, self.describing = Turns("tells its metrics", HELD_SHARE), Turns("describes itself", HELD_SHARE)
        self.cards = GenerationCards(settings.result_keep_s)
        self.first_audio_tracker = FirstAudioTracker(size=1)
        self.body_model = body_model(settings.max_seconds)
        self.sources: SourceStore
        self.pipeline: Pipeline | None = None
        self.host: SessionHost | None = None
        self.failure: TickError | None = None
        self.is_profiling = False
        self.progress = ""
        self.file_turns = Turns("reads and writes audio files", 1.0, FILES_TIMEOUT_S)
        self.threads: list[Watched] = [*self.store.threads] if self.store else []
        self._open_pipeline = open_pipeline
        self._opening: asyncio.Task[None] | None = None
        self._replacing = asyncio.Lock()
        self.membership = Membership(open_leases(settings), self.lease)
        self._renewing: asyncio.Task[None] | None = None
        self._trimming: asyncio.Task[None] | None = None
        self.admission.wait_elsewhere_s = self.membership.queue_wait_s

    def start(self) -> None:
        """Open and warm up the pipeline in the background."""
        self._trimming = asyncio.create_task(keep_heap_small())
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(self._record_failure)
        self._renewing = asyncio.create_task(self.membership.run())

    async def opened(self) -> None:
        """Wait until the pipeline is open or opening has failed."""
        if self._opening is not None:
            await asyncio.wait([self._opening])

    async def close(self) -> None:
        """Drain, and close the pipeline; generations in flight end as drained."""
        self.admission.drain()
        await self.opened()
        pipeline, self.pipeline = self.pipeline, None
        for task in (self._renewing, self._trimming):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self.host is not None:
            await run_in_threadpool(self.host.close)
        if pipeline is not None:
            await run_in_threadpool(pipeline.close)
            self.sources.close()
        if self.store is not None:
            await run_in_threadpool(self.store.close)

    async def reload(self) -> None:
        """Replace the engines by the current builds; on an error the old ones stay and it is logged."""
        if self.pipeline is None:
            logger.error("engines are not reloaded: the server is not ready")
            return
        started_s = time.monotonic()
        try:
            await self.replace_engines()
        except TickError as error:
            logger.error("engines are not reloaded, the old ones stay in use: %s", error)
            return
        logger.info("engines reloaded in %.1f s", time.monotonic() - started_s)

    async def replace_engines(self, merged: Mapping[str, float] | None = None) -> Pipeline:
        """Replace the engines by the current builds, with these adapters merged (default: those that are).

        Raises ProblemError 503 where the pipeline is not ready, TickError where the old ones stay.
        """
        pipeline = self.ready_pipeline()
        async with self._replacing:
            await run_in_threadpool(pipeline.reload, merged)
            self._show_engines(pipeline)
        return pipeline

    def _show_engines(self, pipeline: Pipeline) -> None:
        self.metrics.show_engines(pipeline.all_engines(), pipeline.engines.merged)

    def ready_pipeline(self) -> Pipeline:
        """The pipeline. Raises ProblemError 503 while it is loading or after opening failed."""
        if self.pipeline is not None:
            return self.pipeline
        if self.failure:
            raise ProblemError(503, "failed", self.failure.what, fix=self.failure.fix)
        raise self.loading()

    def loading(self) -> ProblemError:
        """The answer while engines are opened, warmed up and captured."""
        return unavailable("loading", f"the engines are being opened and warmed up{self.progress}", retry_after_s=2)

    def live_host(self) -> SessionHost:
        """What runs the live sessions. Raises ProblemError: 503 while loading or draining, 501 where there are none."""
        pipeline = self.ready_pipeline()
        if self.admission.is_draining:
            raise draining()
        if self.host is None:
            code = "no_codec" if pipeline.codec is None else "needs_condition"
            raise ProblemError(501, code, pipeline.live_refusal)
        return self.host

    def check_room(self) -> None:
        """Refuse a session that an edge can send on. Raises ProblemError 503 where only other replicas have room."""
        is_full = self.host is not None and self.host.session_wait_s > 0
        if is_full and self.membership.edge_finds_room():
            raise unavailable("sessions_full", "this replica has no room, another one has")

    def check_draining(self) -> None:
        """Refuse a client that an edge can send on. Raises ProblemError 503 while this replica drains."""
        if self.admission.is_draining and self.membership.edge_finds_another():
            raise draining()

    def generation_elsewhere(self) -> str | None:
        """The URL of another replica where a generation waits less than here, if all places here are taken."""
        if self.admission.num_pending < self.admission.capacity:
            return None
        return self.membership.queue_url(self.admission.projected_wait_s())

    def lease(self) -> Lease:
        """What this server says of itself to other replicas and to the edge."""
        settings, host = self.settings, self.host
        session_wait_s = 0.0 if host is None else host.session_wait_s
        state: ReplicaState = "loading" if self.pipeline is None else "full" if session_wait_s else "ready"
        return Lease(
            name=settings.replica or "",
            address=settings.replica_address or f"{settings.host}:{settings.port}",
            url=settings.replica_url,
            state="draining" if self.admission.is_draining else state,
            sessions=0 if host is None else host.stats().connected,
            capacity=settings.max_sessions,
            queue_wait_s=self.admission.projected_wait_s(),
            session_wait_s=session_wait_s,
            model="" if self.pipeline is None else self.pipeline.bundle.name,
            precision="" if self.pipeline is None else self.pipeline.identity.precision,
        )

    async def _open(self) -> None:
        started_s = time.monotonic()
        pipeline = await run_in_threadpool(self._open_pipeline)
        try:
            await run_in_threadpool(warm_up_pipeline, pipeline)
            await run_in_threadpool(self._capture_common_ticks, pipeline)
            if pipeline.codec is not None and self.settings.codec_workers:
                pipeline.codec.queue.size = self.settings.codec_workers
            self.sources = await run_in_threadpool(self._open_sources, pipeline)
        except TickError:
            await run_in_threadpool(pipeline.close)
            raise
        self.metrics.watch_sources(lambda: [source.size_bytes for source in self.sources.all()])
        runtime = pipeline.deployment.runtime
        self.admission.capacity = runtime.depth + runtime.queue
        self._watch_ticks(pipeline)
        self.first_audio_tracker.size = runtime.depth
        self.metrics.watch(pipeline.loop.stats, time.monotonic() - started_s)
        self._show_engines(pipeline)
        pipeline.loop.observers.append(self.metrics.observe_tick)
        if pipeline.planner is not None:
            pipeline.planner.observers.append(self.metrics.planner_tokens.inc)
        if not pipeline.live_refusal:
            host = self._open_host(pipeline)
            await run_in_threadpool(host.has_restored.wait)
        self.body_model = body_model(self.settings.max_seconds, pipeline.bundle)
        self.threads += pipeline.threads
        self.pipeline = pipeline

    def _capture_common_ticks(self, pipeline: Pipeline) -> None:
        """Make the common ticks, so that no client waits for their graphs or their kernels. Raises TickError."""
        started_s, common = time.monotonic(), pipeline.common_ticks()
        for number, ticks in enumerate(common, 1):
            self.progress = f": graphs of ticks are captured, {number} of {len(common)} shapes"
            run_at_once(pipeline, ticks.generations())
            if pipeline.settle_kernels():  # they were launched plainly so far
                run_at_once(pipeline, ticks.generations())
            logger.info("captured ticks of %s (%d of %d)", ticks.text, number, len(common))
        if pipeline.settle_kernels():
            self.progress = ": kernels of the planner are compiled"
            pipeline.loop.rehearse().result(WARM_UP_TIMEOUT_S)
            pipeline.settle_kernels()
        if common:
            pipeline.loop.bound_captures().result(WARM_UP_TIMEOUT_S)
            logger.info("captured the common ticks in %.1f s", time.monotonic() - started_s)

    def _watch_ticks(self, pipeline: Pipeline) -> None:
        """Project waiting times from the times of ticks in which all slots are in use."""
        times, depth = TickTimes(), pipeline.deployment.runtime.depth
        pipeline.loop.observers.append(lambda record: times.note(record.slots, record.tick_ms))
        self.admission.ticks_s = lambda num_steps: num_steps / depth * times.estimate_ms(depth) / 1e3

    def _open_sources(self, pipeline: Pipeline) -> SourceStore:
        settings = self.settings
        return SourceStore(
            open_source_files(settings),
            settings.sources_bytes,
            partial(pipeline.inputs.read_source, max_seconds=settings.max_seconds, timeout_s=FILES_TIMEOUT_S),
            pipeline.bundle.latents.frame_rate_hz,
            on_evict=self.metrics.source_evictions.inc,
        )

    def _open_host(self, pipeline: Pipeline) -> SessionHost:
        settings = self.settings
        limits = HostLimits(
            max_sessions=settings.max_sessions,
            client_sessions=settings.client_sessions,
            keep_s=settings.session_keep_s,
            max_refresh_s=settings.max_refresh_s,
        )
        self.host = host = SessionHost(pipeline, sources=self.sources.latents, store=self.store, limits=limits)
        host.start()
        self.threads += host.threads
        self.live_metrics.watch(host)
        return host

    def _record_failure(self, opening: asyncio.Task[None]) -> None:
        error = None if opening.cancelled() else opening.exception()
        if error is not None:
            self.failure = error if isinstance(error, TickError) else TickError(str(error) or type(error).__name__)
            logger.error("the engines could not be opened: %s", self.failure)


def warm_up_pipeline(pipeline: Pipeline) -> None:
    """Run one step of each decoder and decode it, so that no request has a start-up cost. Raises TickError."""
    for request in pipeline.warm_up_requests():
        (finished,) = run_at_once(pipeline, [request])
    if pipeline.codec is not None:
        pipeline.codec.decode(finished.latents)


def run_at_once(pipeline: Pipeline, requests: Sequence[GenerationRequest]) -> list[Finished]:
    """Generations that are in flight at once. Raises TickError."""
    ends: list[Future[Finished]] = []
    for request in requests:
        end: Future[Finished] = Future()
        ends.append(end)

        def on_event(event: Event, end: Future[Finished] = end) -> None:
            if isinstance(event, Finished):
                end.set_result(event)
            elif isinstance(event, Failed):
                end.set_exception(event.error)

        pipeline.loop.submit(request, on_event)
    return [end.result(WARM_UP_TIMEOUT_S) for end in ends]


def service_of(request: HTTPConnection) -> Service:
    """The service of the app that received this request or WebSocket."""
    service: Service = request.app.state.service
    return service


def open_session_store(settings: ServerSettings) -> SessionStore | None:
    """Where live sessions survive the server; None where the settings name no place. Raises ConfigError."""
    if settings.redis is None:
        return None if settings.state is None else open_sqlite_store(settings.state)
    try:
        from runtime.live.storage.redis_store import open_redis_store
    except ModuleNotFoundError:
        raise ConfigError("[server] redis needs the package redis", fix="pip install 'tickrt[redis]'") from None
    return open_redis_store(settings.redis.get_secret_value(), keep_s=settings.session_keep_s)


def open_source_files(settings: ServerSettings) -> SourceFiles:
    """Where sources are kept: in the Redis that servers share, or in a folder. Raises ConfigError."""
    if settings.redis is None:
        return SourceFolder(None if settings.state is None else settings.state / "sources")
    from server.service.shared_sources import SharedSources

    return SharedSources(settings.redis.get_secret_value())


def open_leases(settings: ServerSettings) -> Leases | None:
    """The leases of replicas; None where this server is none. Raises ConfigError."""
    if settings.replica is None or settings.redis is None:
        return None
    from server.service.leases import Leases

    return Leases(settings.redis.get_secret_value())


async def keep_heap_small() -> None:
    """Give what is freed back to the system, until cancelled. Does nothing where the C library is not glibc.

    By default glibc makes an arena for each thread, up to eight for a core, and each keeps the most that was ever used.
    """
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if library is None or not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(M_ARENA_MAX, ARENAS)
    while True:
        await asyncio.sleep(TRIM_S)
        await run_in_threadpool(library.malloc_trim, 0)  # milliseconds, in which Python's threads run


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
