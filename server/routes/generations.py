"""POST /v1/audio/generations: one generation, streamed while it is made or sent whole; GET tells what made it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse
from starlette.types import Message, Receive, Scope, Send

from runtime.base.errors import RequestError, TickError
from runtime.base.files import losses
from runtime.music.midi_file import notes_of_midi
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.validation import note_spec
from server.asgi.connection import abort_of, first_completed, wait_disconnected
from server.asgi.openapi import GenerationBody, audio_response, problem_responses, request_body
from server.asgi.problems import Finding, ProblemError, draining, model_not_found, request_id_of
from server.asgi.request_body import Upload, read_upload, validate
from server.asgi.shares import client_of
from server.routes.generation_job import CheckedRequest, GenerationJob, Tally, outcome_of
from server.routes.generation_stream import chunks
from server.service.admission import Permit
from server.service.generation_cards import GenerationCard
from server.service.metrics import Outcome
from server.service.replicas import ask_owner
from server.service.service import Service, service_of

SLICE_BYTES = 64 * 1024
router = APIRouter(prefix="/v1", tags=["generations"])
logger = logging.getLogger("tickrt.server")


class ReaderStalledError(Exception):
    """The client did not read for `send_timeout_s`."""


@router.post(
    "/audio/generations",
    response_class=Response,
    responses={**audio_response(), **problem_responses(400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503, 504)},
    openapi_extra={"requestBody": request_body()},
)
async def create_generation(request: Request) -> Response:
    """Generate audio from a text, a source, or both. The first chunk is made before the status is sent.

    A replica whose places are all taken redirects to one where the generation waits less.
    """
    service = service_of(request)
    pipeline = service.ready_pipeline()
    if (url := service.generation_elsewhere()) is not None:
        return RedirectResponse(f"{url}{request.url.path}", 307)
    upload = await read_upload(request, service.settings, service.bodies)
    if upload.condition is not None:
        upload.values.setdefault("prompt", "")
    if upload.notes is not None:
        await service.bodies.run(request, upload.cost_bytes, add_notes, pipeline, upload)
    body = await service.bodies.run(request, upload.cost_bytes, validate, service.body_model, upload.values)
    check_model(pipeline, body)
    check_inputs(upload, body)
    client = client_of(request.scope)
    return GenerationResponse(service, pipeline, body, upload, client, request_id_of(request))


@router.get(
    "/audio/generations/{generation_id}",
    response_model=GenerationCard,
    responses=problem_responses(401, 403, 404, 422, 503),
)
async def get_generation(request: Request, generation_id: str) -> Response:
    """What made a generation, by the id in its X-Generation-Id: what its headers have no place for.

    For `result_keep_s` from its begin, and longer from its end where it has a plan; the newest ones of a client.
    """
    service = service_of(request)
    card = service.cards.get(generation_id) or await ask_owner(request, service.membership.others)
    if card is None:
        what = "there is no generation with this id, or not any more"
        fix = f"ask within {service.settings.result_keep_s:g} s; its file has the same in its metadata"
        raise ProblemError(404, "generation_not_found", what, fix=fix)
    return Response(card, media_type="application/json", headers={"Cache-Control": "no-store"})


def check_model(pipeline: Pipeline, body: GenerationBody) -> None:
    """Refuse a model that is not the server's. Raises ProblemError 404."""
    if body.model not in (None, pipeline.bundle.name):
        raise model_not_found(pipeline.bundle.name, str(body.model), pointer="/model")


def add_notes(pipeline: Pipeline, upload: Upload) -> None:
    """Read the form's part `notes` into the body. Raises RequestError."""
    if upload.values.get("notes") is not None:
        raise RequestError("the form has a part `notes`: send one of them", field="notes")
    assert upload.notes is not None
    with losses() as lost:
        upload.values["notes"] = notes_of_midi(upload.notes, note_spec(pipeline.bundle))
    upload.losses.extend(lost)


def check_inputs(upload: Upload, body: GenerationBody) -> None:
    """Refuse two sources, timbres or structures. Raises ProblemError 422."""
    for part in ("source", "timbre", "structure"):
        id_name = f"{part}_id"
        if getattr(upload, part) is not None and getattr(body, id_name) is not None:
            finding = Finding(pointer=f"/{id_name}", detail=f"the form has a part `{part}`: send one of them")
            raise ProblemError(422, "invalid_request", f"{id_name}: {finding.detail}", errors=[finding])


class GenerationResponse(Response):
    """Runs one generation and sends it; a disconnect or an abort ends its work within a tick.

    Each one counts once in generations_started_total and once in generations_total, under its outcome.
    """

    _job: GenerationJob | None = None  # from when its inputs are read
    _has_started = False
    _scope: Scope
    _send: Send

    def __init__(
        self,
        service: Service,
        pipeline: Pipeline,
        body: GenerationBody,
        upload: Upload,
        client: str,
        request_id: str,
    ) -> None:
        super().__init__()
        self._service, self._pipeline, self._body, self._upload = service, pipeline, body, upload
        self._client, self._request_id = client, request_id
        self._tally = Tally(service.metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. Raises TickError and ProblemError as long as nothing has been sent."""
        service, self._scope, self._send = self._service, scope, send
        with self._tally:
            self._tally.outcome = Outcome.REJECTED
            upload, self._upload = self._upload, Upload({})
            request = CheckedRequest(service, self._pipeline, self._body, upload, self._client)
            permit = service.admission.admit(self._client)
            self._tally.outcome = Outcome.INTERNAL_ERROR
            if request.is_streamed:
                service.first_audio_tracker.add(request.id)
            try:
                await self._run(request, permit, receive)
            finally:
                service.first_audio_tracker.discard(request.id)
                permit.release()
                if self._job is not None:
                    self._job.record_end(self._tally.outcome)

    async def _run(self, request: CheckedRequest, permit: Permit, receive: Receive) -> None:
        """Send until the end, the client's disconnect or the server's abort."""
        sending = asyncio.create_task(self._send_all(request, permit))
        disconnected = asyncio.create_task(wait_disconnected(receive))
        aborted = asyncio.create_task(permit.abort.wait())
        self._tally.outcome = Outcome.DRAINED
        await first_completed({sending, disconnected, aborted})
        self._tally.outcome = Outcome.INTERNAL_ERROR
        if not sending.cancelled():
            await self._conclude(sending)
        elif aborted.done() and not aborted.cancelled():
            self._tally.outcome = Outcome.DRAINED
            await self._end_early(draining())
        else:
            self._tally.outcome = Outcome.CANCELLED

    async def _conclude(self, sending: asyncio.Task[None]) -> None:
        """Set the outcome of what ended by itself, and abort the response where it failed."""
        try:
            sending.result()
            self._tally.outcome = Outcome.OK
        except ReaderStalledError:
            self._tally.outcome = Outcome.EXPIRED
            self._service.metrics.stream_aborts.labels("send_timeout").inc()
            logger.warning("request %s: the client did not read in time, connection aborted", self._request_id)
            await self._abort(flush=False)
        except (TickError, ProblemError) as error:
            self._tally.outcome = outcome_of(error)
            level = logging.INFO if self._tally.outcome is Outcome.REJECTED else logging.WARNING
            logger.log(level, "request %s ended as %s: %s", self._request_id, self._tally.outcome, error.what)
            await self._end_early(error)

    async def _send_all(self, request: CheckedRequest, permit: Permit) -> None:
        """Raises TickError, ProblemError, ReaderStalledError."""
        job = self._job = await GenerationJob.prepare(request, permit)
        async with aclosing(chunks(job)) as stream:
            if not request.is_streamed:
                parts = [chunk async for chunk in stream]
                await self._start(job, {"Content-Length": str(sum(len(part) for part in parts))})
                while parts:
                    await self._put_body(parts.pop(0), is_last=not parts)
                    job.record_sent()
                return
            async for chunk in stream:
                if not self._has_started:
                    await self._start(job, {})
                await self._put_body(chunk, is_last=False)
                job.record_sent()
        if job.generation.plan is not None:
            job.read = await asyncio.to_thread(request.described, job.read)
            self._service.cards.put(job.card(), self._client)
        await self._put_body(b"", is_last=True)

    async def _end_early(self, error: TickError | ProblemError) -> None:
        """Raise `error` if nothing was sent yet, else abort the body so that the client sees it is incomplete."""
        if not self._has_started:
            raise error
        await self._abort(flush=True)

    async def _abort(self, flush: bool) -> None:
        abort_of(self._scope)(flush)
        await asyncio.sleep(0)  # the server processes it

    async def _start(self, job: GenerationJob, more: dict[str, str]) -> None:
        file_format, card = job.request.file_format, job.card()
        self._service.cards.put(card, self._client)
        headers = {
            "Content-Type": file_format.media_type,
            "Content-Disposition": f'inline; filename="{card.id}{file_format.suffix}"',
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            **card.headers(),
            **more,
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self._put({"type": "http.response.start", "status": 200, "headers": raw})
        self._has_started = True

    async def _put_body(self, data: bytes, *, is_last: bool) -> None:
        """Send a part of the body; the client has the time limit for each SLICE_BYTES of it."""
        view = memoryview(data)
        while len(view) > SLICE_BYTES:
            await self._put({"type": "http.response.body", "body": view[:SLICE_BYTES], "more_body": True})
            view = view[SLICE_BYTES:]
        await self._put({"type": "http.response.body", "body": view, "more_body": not is_last})

    async def _put(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._service.settings.send_timeout_s):
                await self._send(message)
        except TimeoutError:
            raise ReaderStalledError from None
