"""POST /v1/audio/generations: options in, audio out while it is made."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Receive, Scope, Send

from runtime.audio.formats import FORMATS
from runtime.errors import DrainingError, EngineError, NonFiniteError, TickError
from runtime.pipeline.pipeline import Pipeline
from server.asgi.connection import cut_connection
from server.asgi.openapi import GenerationBody, audio_response, problem_responses, request_body
from server.asgi.problems import ProblemError, request_id_of, unavailable
from server.asgi.request_body import Upload, read_upload, validate
from server.metrics import Outcome
from server.routes.generation_stream import Job, chunks
from server.service import Service, service_of

SLICE_BYTES = 64 * 1024
router = APIRouter(prefix="/v1", tags=["generations"])
logger = logging.getLogger("tickrt.server")


class ReaderStalledError(Exception):
    """The client has not read for too long."""


@router.post(
    "/audio/generations",
    response_class=Response,
    responses={**audio_response(), **problem_responses(400, 401, 403, 408, 413, 415, 422, 429, 500, 503, 504)},
    openapi_extra={"requestBody": request_body()},
)
async def generate(request: Request) -> Response:
    """Generate audio from a text, a source, or both. The first piece is made before the status is sent."""
    service = service_of(request)
    pipeline = service.ready_pipeline()
    upload = await read_upload(request, service.settings, service.budget)
    body = await run_in_threadpool(validate, service.body_model, upload.values)
    check_source(upload)
    client = request.client.host if request.client else ""
    return GenerationResponse(service, pipeline, body, upload.source, client, request_id_of(request))


MAGIC = (b"RIFF", b"RF64", b"riff", b"fLaC", b"OggS", b"ID3", b"FORM", b".snd", b"caff", b"\x1a\x45\xdf\xa3")


def check_source(upload: Upload) -> None:
    """Refuse at once what is no audio at all. Raises ProblemError 415."""
    head = None if upload.source is None else upload.source[:12]
    if head is None or head.startswith(MAGIC):
        return
    is_mpeg = len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0
    if not (is_mpeg or head[4:8] == b"ftyp" or head[8:9] == b"{"):
        raise ProblemError(
            415, "unsupported_media_type", "the source is not audio", fix="give wav, flac, ogg, mp3 or safetensors"
        )


def outcome_of(error: TickError | ProblemError) -> Outcome:
    """How a generation that raised this ended."""
    if isinstance(error, ProblemError):
        return Outcome.EXPIRED if error.status == 504 else Outcome.REJECTED
    if isinstance(error, NonFiniteError):
        return Outcome.NONFINITE
    if isinstance(error, DrainingError):
        return Outcome.DRAINED
    return Outcome.ENGINE_ERROR if isinstance(error, EngineError) else Outcome.REJECTED


class GenerationResponse(Response):
    """Makes one generation and sends it; whoever goes away, its work ends within a tick.

    Every one is counted as started once, and once under the outcome that it had.
    """

    def __init__(
        self,
        service: Service,
        pipeline: Pipeline,
        body: GenerationBody,
        source: bytes | None,
        client: str,
        request_id: str,
    ) -> None:
        super().__init__()
        self._service, self._pipeline, self._body, self._source = service, pipeline, body, source
        self._client, self._request_id = client, request_id
        self._outcome = Outcome.INTERNAL_ERROR

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises TickError and ProblemError as long as nothing has been sent."""
        with self._counted():
            self._outcome = Outcome.REJECTED
            ticket = self._service.gate.enter(self._client)
            self._outcome = Outcome.INTERNAL_ERROR
            job = Job(self._service, self._pipeline, self._body, self._source, self._client, ticket, uuid.uuid4().hex)
            if job.is_streamed:
                self._service.audience.join(job.id)
            try:
                await self._watch(_Delivery(job, scope, send), receive)
            finally:
                self._service.audience.leave(job.id)
                ticket.leave()
                self._note_speed(job)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        metrics = self._service.metrics
        metrics.started.inc()
        metrics.in_flight.inc()
        try:
            yield
        finally:
            metrics.in_flight.dec()
            metrics.outcomes.labels(self._outcome).inc()

    async def _watch(self, delivery: _Delivery, receive: Receive) -> None:
        """Deliver until it is done, the client is gone, or the server wants to go."""
        pump = asyncio.create_task(delivery.run())
        gone = asyncio.create_task(_disconnected(receive))
        cut = asyncio.create_task(delivery.job.ticket.cut.wait())
        tasks = {pump, gone, cut}
        self._outcome = Outcome.DRAINED
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        self._outcome = Outcome.INTERNAL_ERROR
        if not pump.cancelled():
            await self._conclude(delivery, pump)
        elif cut.done() and not cut.cancelled():
            self._outcome = Outcome.DRAINED
            await delivery.end_early(unavailable("draining", "the server is shutting down", retry_after_s=10))
        else:
            self._outcome = Outcome.CANCELLED

    async def _conclude(self, delivery: _Delivery, pump: asyncio.Task[None]) -> None:
        """What the pump ended with, once it has ended by itself."""
        try:
            pump.result()
            self._outcome = Outcome.OK
        except ReaderStalledError:
            self._outcome = Outcome.EXPIRED
            self._service.metrics.evictions.labels("send_timeout").inc()
            logger.warning("request %s: nobody read for too long, cut", self._request_id)
            await delivery.cut(flush=False)
        except (TickError, ProblemError) as error:
            self._outcome = outcome_of(error)
            level = logging.INFO if self._outcome is Outcome.REJECTED else logging.WARNING
            logger.log(level, "request %s ended as %s: %s", self._request_id, self._outcome, error.what)
            await delivery.end_early(error)

    def _note_speed(self, job: Job) -> None:
        elapsed_s = time.monotonic() - job.started_s
        self._service.metrics.audio_seconds.inc(job.sent_audio_s)
        if self._outcome is Outcome.OK:
            self._service.gate.note_duration(elapsed_s)
            if not job.is_latents:
                self._service.metrics.realtime.observe(job.sent_audio_s / max(elapsed_s, 1e-9))


class _Delivery:
    """The response of one job on its connection."""

    def __init__(self, job: Job, scope: Scope, send: Send) -> None:
        self.job = job
        self.has_started = False
        self._scope, self._send = scope, send
        self._timeout_s = job.service.settings.send_timeout_s

    async def run(self) -> None:
        """Send the whole response. Raises TickError, ProblemError, ReaderStalledError."""
        await self.job.prepare()
        async with aclosing(chunks(self.job)) as stream:
            if not self.job.is_streamed:
                await self._send_whole(b"".join([chunk async for chunk in stream]))
                return
            async for chunk in stream:
                if not self.has_started:
                    await self._start({})
                await self._put({"type": "http.response.body", "body": chunk, "more_body": True})
                self.job.note_sent()
        await self._put({"type": "http.response.body", "body": b"", "more_body": False})

    async def end_early(self, error: TickError | ProblemError) -> None:
        """Refuse if nothing was sent yet, else cut the body so that the client sees that it is not whole."""
        if not self.has_started:
            raise error
        await self.cut(flush=True)

    async def cut(self, flush: bool) -> None:
        """End the connection, and let the server notice."""
        cut_connection(self._scope)(flush)
        await asyncio.sleep(0)

    async def _send_whole(self, body: bytes) -> None:
        await self._start({"Content-Length": str(len(body))})
        view = memoryview(body)
        for begin in range(0, len(body), SLICE_BYTES):
            end = begin + SLICE_BYTES
            part = bytes(view[begin:end])
            await self._put({"type": "http.response.body", "body": part, "more_body": end < len(body)})
            self.job.note_sent()

    async def _start(self, more: dict[str, str]) -> None:
        media_type = FORMATS[self.job.body.response_format].media_type
        headers = {"Content-Type": media_type, **self.job.headers(), **more}
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._put({"type": "http.response.start", "status": 200, "headers": raw})
        self.has_started = True

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ReaderStalledError from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
