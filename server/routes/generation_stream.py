"""One generation from options to bytes: segments through the tick loop, windows through the codec, chunks out, to a
client or into a file.

Ticks run on the tick thread, decoding and encoding in worker threads; the event loop only waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from starlette.concurrency import run_in_threadpool

from runtime.audio.codec import Codec
from runtime.audio.codec_queue import Urgency
from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import latents_bytes
from runtime.audio.metadata import latents_tags
from runtime.audio.windows import Window, WindowCutter
from runtime.base.errors import GenerationCancelledError, StoreError, TickError
from runtime.config.codec import Latents
from runtime.music.midi_file import midi_bytes
from runtime.pipeline.stem_files import StemFiles, zip_bytes
from runtime.requests.request import GenerationRequest
from runtime.tick.loop.events import Event, Failed, Finished, Progress, Started
from server.asgi.connection import first_completed
from server.asgi.problems import ProblemError, draining, retry_after
from server.asgi.turns import run_to_end
from server.routes.generation_job import AHEAD_BYTES, GenerationJob, Tally, outcome_of
from server.service.metrics import Outcome

logger = logging.getLogger("tickrt.server")


async def chunks(job: GenerationJob) -> AsyncGenerator[bytes, None]:
    """The response body in chunks: audio as it is made, or the latents or notes of all as one.

    Closing it cancels its requests in the tick loop. Raises TickError and ProblemError.
    """
    if job.request.body.stems or not job.request.is_audio:
        yield await _whole_file(job)
        return
    codec = job.request.pipeline.codec
    assert codec is not None
    cutter = _window_cutter(job, codec)
    encoder = await run_in_threadpool(_Encoder, job, codec)
    peers: frozenset[str] | None = None
    async with aclosing(_segments(job)) as segments:
        async for latents in segments:
            if peers is None:
                peers = job.request.service.first_audio_tracker.peers(job.request.id)
            for window in cutter.cut(latents):
                await _wait_for_peers(job, peers)
                yield await _encode(job, encoder, window)


async def _wait_for_peers(job: GenerationJob, peers: frozenset[str]) -> None:
    """While ahead of real time, wait for the first audio of the streams that share its ticks."""
    if job.first_sent_s is None or not job.request.is_streamed:
        return
    lead_s = job.lead_s() - job.request.service.settings.lead_s
    if lead_s > 0:
        await job.request.service.first_audio_tracker.wait_for(peers, lead_s)


async def _encode(job: GenerationJob, encoder: _Encoder, window: Window) -> bytes:
    """Decode and encode one window in a worker of the codec; first windows are more urgent."""
    codec = job.request.pipeline.codec
    assert codec is not None
    urgency = Urgency.BACKGROUND if window.index else Urgency.CHANGING
    chunk = await run_to_end(codec.queue.submit(partial(encoder.encode, window), urgency))
    job.sent_audio_s = encoder.seconds
    return chunk


def _window_cutter(job: GenerationJob, codec: Codec) -> WindowCutter:
    settings, rate_hz = job.request.service.settings, job.request.pipeline.bundle.latents.frame_rate_hz
    return codec.window_cutter(
        max(1, round(settings.window_s * rate_hz)),
        first_frames=max(1, round(settings.first_window_s * rate_hz)),
        total_frames=job.generation.total_frames,
    )


class _Encoder:
    """Windows of latents to bytes of the requested format, cut to the requested length. One thread at a time."""

    def __init__(self, job: GenerationJob, codec: Codec) -> None:
        self._decoder, self._codec = job.generation.audio_decoder(is_streamed=job.request.is_streamed), codec
        body = job.request.body
        self._writer = AudioWriter(
            body.response_format,
            codec.sample_rate_hz,
            codec.channels,
            total_samples=job.generation.total_samples,
            metadata=job.read.tag,
            file_rate_hz=body.sample_rate_hz,
            bit_rate_kbps=body.bit_rate_kbps,
        )

    @property
    def seconds(self) -> float:
        """How much is encoded."""
        return self._writer.samples / self._codec.sample_rate_hz

    def encode(self, window: Window) -> bytes:
        """One window as bytes; the last one with the end of the stream."""
        chunk = self._writer.write(self._decoder.decode(window, self._codec))
        return chunk + self._writer.close() if window.is_last else chunk


async def _whole_file(job: GenerationJob) -> bytes:
    """Latents, notes, or an archive of stems."""
    async with aclosing(_segments(job)) as segments:
        latents = np.concatenate([part async for part in segments])
    if (stems := job.request.body.stems) is not None:
        tracks = await _tracks(job, latents)
        files = StemFiles(job.generation, latents, stems, metadata=job.request.body.metadata, tracks=tracks)
        turns, client = job.request.service.file_turns, job.request.client
        while await turns.run(client, files.advance):
            pass
        job.sent_audio_s = (job.generation.total_samples or 0) / job.generation.sample_rate_hz
        return await turns.run(client, lambda: zip_bytes(files.finish()))
    if job.request.body.response_format == "mid":
        score = await run_in_threadpool(partial(job.generation.score, latents, quantize=job.request.body.quantize))
        return await run_in_threadpool(midi_bytes, score, job.read.tag)
    tags = latents_tags(job.request.pipeline.bundle.latents.frame_rate_hz, job.read.tag)
    return await run_in_threadpool(latents_bytes, latents, tags)


async def _tracks(job: GenerationJob, latents: Latents) -> dict[str, Latents]:
    """All latents `[T, C]` of each track: as many are extracted at the same time as the client may have places."""
    generations = await run_in_threadpool(job.generation.extractions, latents)
    waiting, made = list(generations), dict[str, Latents]()

    async def extract() -> None:
        while waiting:
            name = waiting.pop(0)
            generation, parts = generations[name], list[Latents]()
            while (request := await run_in_threadpool(generation.next_request)) is not None:
                parts.append(generation.append(await run_request(job, request)))
            made[name] = np.concatenate(parts)

    num_more = job.permit.take_places(len(waiting) - 1)
    workers = [asyncio.create_task(extract()) for _ in range(1 + num_more)]
    try:
        await asyncio.gather(*workers)
        job.permit.finish_ticks()
    finally:
        for worker in workers:
            await _cancel(worker)
    return {name: made[name] for name in generations}


async def _segments(job: GenerationJob) -> AsyncGenerator[Latents, None]:
    """The new frames of each segment in order. Segments are generated ahead of the client, AHEAD_BYTES at most.

    So the place in the tick loop does not wait for a client that reads slowly.
    """
    segment_bytes = 4 * job.request.pipeline.bundle.latents.channels * job.request.pipeline.lengths.canvas_frames
    room = asyncio.Semaphore(max(1, AHEAD_BYTES // segment_bytes))
    made: asyncio.Queue[Latents | None] = asyncio.Queue()
    producer = asyncio.create_task(_generate(job, made, room))
    try:
        while (latents := await made.get()) is not None:
            yield latents
            room.release()
        await producer
    finally:
        job.generation.close()
        await _cancel(producer)


async def _generate(job: GenerationJob, made: asyncio.Queue[Latents | None], room: asyncio.Semaphore) -> None:
    """Generate the segments as long as there is room; None follows the last one, also where an error ends them."""
    try:
        while job.generation.segment is not None:
            await room.acquire()
            request = await run_in_threadpool(job.generation.next_request)
            assert request is not None
            made.put_nowait(job.generation.append(await run_request(job, request)))
        if not job.tracks:
            job.permit.finish_ticks()
    finally:
        made.put_nowait(None)


async def run_request(job: GenerationJob, request: GenerationRequest) -> Latents:
    """Run one request in the tick loop; cancellation cancels the request. Raises TickError, ProblemError 504."""
    loop, events = job.request.pipeline.loop, _EventQueue(job, request.steps)
    loop.submit(request, events.publish)
    job.permit.add_request()
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


class _EventQueue(asyncio.Queue[Event]):
    """Events of one request, published on the tick thread and read on the event loop.

    Progress events are not among them: the job's `on_step` gets them, if it has one.
    """

    def __init__(self, job: GenerationJob, num_steps: int) -> None:
        super().__init__()
        self._permit, self._on_step, self._num_steps = job.permit, job.on_step, num_steps
        self._event_loop = asyncio.get_running_loop()

    def publish(self, event: Event) -> None:
        """Called on the tick thread."""
        if not isinstance(event, Progress) or self._on_step is not None:
            with suppress(RuntimeError):  # the event loop is closed: there is no reader
                self._event_loop.call_soon_threadsafe(self._on_event, event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Progress):
            if self._on_step is not None:
                self._on_step(event.step)
            return
        if not isinstance(event, Started):
            self._permit.end_request(self._num_steps)
        self.put_nowait(event)


async def _first_event(job: GenerationJob, events: _EventQueue) -> Event:
    timeout_s, submitted_s = job.request.service.settings.queue_timeout_s, time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            event = await events.get()
    except TimeoutError:
        raise ProblemError(
            504,
            "queue_timeout",
            f"no slot became free within {timeout_s:g} s",
            headers={"Retry-After": retry_after(job.request.service.admission.projected_wait_s())},
        ) from None
    job.request.service.metrics.queue_wait.observe(time.monotonic() - submitted_s)
    return event


def _latents_of(event: Event) -> Latents:
    if isinstance(event, Finished):
        return event.latents
    if isinstance(event, Failed):
        raise event.error
    raise GenerationCancelledError(f"generation {event.request_id} was cancelled")


async def _cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end; its exception, if any, is dropped: the caller has it or was cancelled."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def write_generation(job: GenerationJob, path: Path) -> None:
    """Write what a job makes to a file, and release its permit. Cancellation ends its ticks.

    Raises TickError, ProblemError; then a part of the file may be there.
    """
    with Tally(job.request.service.metrics) as tally:
        writing, aborted = asyncio.create_task(_write(job, path)), asyncio.create_task(job.permit.abort.wait())
        tally.outcome = Outcome.DRAINED
        try:
            await first_completed({writing, aborted})
            if writing.cancelled():
                raise draining()
            tally.outcome = Outcome.INTERNAL_ERROR
            writing.result()
            tally.outcome = Outcome.OK
        except (TickError, ProblemError) as error:
            if tally.outcome is not Outcome.DRAINED:
                tally.outcome = outcome_of(error)
            logger.warning("generation %s ended as %s: %s", job.request.id, tally.outcome, error.what)
            raise
        except asyncio.CancelledError:
            if not job.request.service.admission.is_draining:
                tally.outcome = Outcome.CANCELLED
            raise
        finally:
            job.permit.release()
            job.record_end(tally.outcome)


async def _write(job: GenerationJob, path: Path) -> None:
    async with aclosing(chunks(job)) as stream:
        async for chunk in stream:
            await run_in_threadpool(append_bytes, path, chunk)


def append_bytes(path: Path, chunk: bytes) -> None:
    """Append to a file, whose folder is made. Raises StoreError."""
    try:
        path.parent.mkdir(exist_ok=True, parents=True)
        with path.open("ab") as file:
            file.write(chunk)
    except OSError as error:
        raise StoreError(f"the audio cannot be stored: {error.strerror}", fix="free disk space") from None
