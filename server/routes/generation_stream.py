"""One generation from its options to bytes: segments through the tick loop, windows through the codec, chunks out.

Ticks run on the tick thread, everything else that takes time in worker threads; the event loop only waits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool

from runtime.audio.codec import Codec, Latents
from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import FORMATS, latents_bytes
from runtime.audio.timeline import Timeline, Window
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.request import GenerationRequest
from runtime.tick.events import Event, Failed, Finished, Progress, Started
from server.admission import Ticket
from server.asgi.openapi import GenerationBody
from server.asgi.problems import ProblemError, retry_after
from server.codec_workers import finish_in
from server.service import Service

OPUS_RATE_HZ = 48_000
FIRST, LATER = 0, 1


@dataclass
class Job:
    """One generation on its way: what was asked, its place, how far its audio is. `prepare` sets `generation`."""

    service: Service
    pipeline: Pipeline
    body: GenerationBody
    source: bytes | None
    client: str
    ticket: Ticket
    id: str
    started_s: float = field(default_factory=time.monotonic)
    sent_audio_s: float = 0.0
    first_sent_s: float | None = None
    last_sent_s: float | None = None
    generation: LongGeneration = field(init=False)

    @property
    def is_latents(self) -> bool:
        """Whether latents are asked for, not audio."""
        return self.body.response_format == "latents"

    @property
    def is_streamed(self) -> bool:
        """Whether audio leaves while it is made."""
        return self.body.stream and not self.is_latents

    async def prepare(self) -> None:
        """Read the source and draw the seed. Raises RequestError and ProblemError."""
        if not self.is_latents and self.pipeline.codec is None:
            raise ProblemError(
                422, "no_codec", "this model gives latents, not audio", fix='say "response_format": "latents"'
            )
        self.generation = await run_in_threadpool(self._open)

    def headers(self) -> dict[str, str]:
        """What the client should know about the body."""
        suffix = FORMATS[self.body.response_format].suffix
        headers = {
            "X-Generation-Id": self.id,
            "X-Seed": str(self.generation.seed),
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "Content-Disposition": f'inline; filename="{self.id}{suffix}"',
        }
        codec = self.pipeline.codec
        if self.is_latents or codec is None:
            return headers
        is_opus = self.body.response_format == "ogg"
        headers["X-Sample-Rate"] = str(OPUS_RATE_HZ if is_opus else codec.sample_rate_hz)
        headers["X-Channels"] = str(codec.channels)
        return headers if is_opus else headers | {"X-Bit-Depth": "16"}

    def note_sent(self) -> None:
        """A chunk has left."""
        now_s, metrics = time.monotonic(), self.service.metrics
        if self.first_sent_s is None:
            self.first_sent_s = now_s
            metrics.first_audio.observe(now_s - self.started_s)
            self.service.audience.leave(self.id)
        elif self.last_sent_s is not None:
            metrics.chunk_interval.observe(now_s - self.last_sent_s)
        self.last_sent_s = now_s

    def lead_s(self) -> float:
        """Seconds of audio that are out and that a listener has not come to yet."""
        if self.first_sent_s is None:
            return 0.0
        return self.sent_audio_s - (time.monotonic() - self.first_sent_s)

    def _open(self) -> LongGeneration:
        max_seconds = self.service.settings.max_seconds
        source = None if self.source is None else self.pipeline.read_source(self.source, max_seconds=max_seconds)
        return LongGeneration(self.pipeline, self.body, GenerationInputs(source=source, client=self.client))


async def chunks(job: Job) -> AsyncGenerator[bytes, None]:
    """The body, piece by piece: audio as it is made, or all latents at once.

    Raises TickError and ProblemError. Close it, and what it has in the tick loop is cancelled.
    """
    if job.is_latents:
        yield await _all_latents(job)
        return
    timeline = _timeline(job, job.service.codecs[0])
    encoder = _Encoder(job, job.service.codecs[0])
    neighbours: frozenset[str] | None = None
    async with aclosing(_segments(job)) as segments:
        async for latents in segments:
            timeline.append(latents)
            if neighbours is None:
                neighbours = job.service.audience.neighbours(job.id)
            while (window := timeline.take()) is not None:
                await _let_others_hear(job, neighbours)
                async with job.service.turns.turn(FIRST if window.index == 0 else LATER) as lane:
                    codec = job.service.codecs[lane]
                    is_last = timeline.is_finished
                    chunk = await finish_in(job.service.codec_threads, encoder.encode, window, codec, is_last)
                job.sent_audio_s = encoder.samples / codec.sample_rate_hz
                yield chunk


async def _let_others_hear(job: Job, neighbours: frozenset[str]) -> None:
    """Ahead of its own listener, a stream waits for the first audio of those who share its ticks."""
    if job.first_sent_s is None or not job.is_streamed:
        return
    lead_s = job.lead_s() - job.service.settings.lead_s
    if lead_s > 0:
        await job.service.audience.wait_for(neighbours, lead_s)


def _timeline(job: Job, codec: Codec) -> Timeline:
    settings, rate_hz = job.service.settings, job.pipeline.bundle.latents.frame_rate_hz
    assert job.generation.total_frames is not None
    return Timeline(
        total_frames=job.generation.total_frames,
        margin_frames=codec.margin_frames,
        first_frames=max(1, round(settings.first_window_s * rate_hz)),
        window_frames=max(1, round(settings.window_s * rate_hz)),
    )


class _Encoder:
    """Windows of latents to bytes of the asked format, cut to the asked number of samples. One thread at a time.

    The length is known from the start and stands in the header, but for a streamed wav, whose sizes are left open.
    """

    def __init__(self, job: Job, codec: Codec) -> None:
        self._total = job.generation.total_samples or 0
        name = job.body.response_format
        known = None if job.body.stream and name == "wav" else self._total
        self._writer = AudioWriter(name, codec.sample_rate_hz, codec.channels, total_samples=known)

    @property
    def samples(self) -> int:
        """Samples encoded so far."""
        return self._writer.samples

    def encode(self, window: Window, codec: Codec, is_last: bool) -> bytes:
        """One window; with the last one, whatever ends the stream."""
        pcm = window.decode(codec)[: self._total - self._writer.samples]
        chunk = self._writer.write(pcm)
        return chunk + self._writer.close() if is_last else chunk


async def _all_latents(job: Job) -> bytes:
    async with aclosing(_segments(job)) as segments:
        latents = np.concatenate([part async for part in segments])
    bundle = job.pipeline.bundle
    metadata = {
        "model": bundle.name,
        "model_version": bundle.version,
        "frame_rate_hz": f"{bundle.latents.frame_rate_hz:g}",
        "seed": str(job.generation.seed),
    }
    return await run_in_threadpool(latents_bytes, latents, metadata)


async def _segments(job: Job) -> AsyncGenerator[Latents, None]:
    """The new frames of one segment after the other; the next one is generated while this one is decoded."""
    ahead = asyncio.create_task(_stretch(job))
    try:
        while True:
            latents = await ahead
            if job.generation.segment is None:
                job.ticket.needs_no_more_ticks()
                yield latents
                return
            ahead = asyncio.create_task(_stretch(job))
            yield latents
    finally:
        await _end(ahead)


async def _stretch(job: Job) -> Latents:
    request = await run_in_threadpool(job.generation.next_request)
    assert request is not None
    return job.generation.append(await ask(job, request))


async def ask(job: Job, request: GenerationRequest) -> Latents:
    """One request through the tick loop. Cancelled, it cancels the request. Raises TickError, ProblemError 504."""
    events: asyncio.Queue[Event] = asyncio.Queue()
    aio, loop = asyncio.get_running_loop(), job.pipeline.loop

    def hear(event: Event) -> None:
        if not isinstance(event, Started):
            job.ticket.left_loop()
        events.put_nowait(event)

    def listen(event: Event) -> None:
        if not isinstance(event, Progress):
            with suppress(RuntimeError):  # the event loop has closed; nobody waits any more
                aio.call_soon_threadsafe(hear, event)

    loop.submit(request, listen)
    job.ticket.entered_loop()
    is_over = False
    try:
        event = await _first_event(job, events)
        while isinstance(event, Started):
            event = await events.get()
        is_over = True
    finally:
        if not is_over:
            loop.cancel(request.id)
    return _latents_of(event)


async def _first_event(job: Job, events: asyncio.Queue[Event]) -> Event:
    timeout_s, submitted_s = job.service.settings.queue_timeout_s, time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            event = await events.get()
    except TimeoutError:
        raise ProblemError(
            504,
            "queue_timeout",
            f"no slot became free within {timeout_s:g} s",
            headers={"Retry-After": retry_after(timeout_s)},
        ) from None
    job.service.metrics.queue_wait.observe(time.monotonic() - submitted_s)
    return event


def _latents_of(event: Event) -> Latents:
    if isinstance(event, Finished):
        return event.latents
    if isinstance(event, Failed):
        raise event.error
    raise ProblemError(409, "cancelled", f"generation {event.request_id} was cancelled")


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; what it raised has been seen, or nobody wants it any more."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
