"""A generation on its way to a client: what is told of it, its memory, what was sent of it, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from starlette.concurrency import run_in_threadpool

from runtime.audio.encoding import encoded_rate_hz
from runtime.base.errors import DrainingError, EngineError, GenerationCancelledError, NonFiniteError, TickError
from runtime.pipeline.songs.planner import Caller
from runtime.pipeline.stem_files import STEM_BITS, stems_bytes
from server.asgi.problems import ProblemError
from server.asgi.request_body import SMALL_BYTES
from server.config import MIB
from server.routes.checked_request import CheckedRequest, ReadRequest
from server.service.admission import Permit
from server.service.generation_cards import GenerationCard
from server.service.metrics import Metrics, Outcome

if TYPE_CHECKING:
    from runtime.pipeline.generation import LongGeneration

# Latents of a generation that are kept for a client that reads slower than they are made.
AHEAD_BYTES = 8 * MIB
# Words that a model does not know, of those that other people's clients are told.
MAX_TOLD_WORDS = 10


@dataclass
class Tally:
    """Counts one generation as started and in flight, and at its end under its `outcome`."""

    metrics: Metrics
    outcome: Outcome = Outcome.INTERNAL_ERROR

    def __enter__(self) -> Tally:
        self.metrics.started.inc()
        self.metrics.in_flight.inc()
        return self

    def __exit__(self, *exception: object) -> None:
        self.metrics.in_flight.dec()
        self.metrics.outcomes.labels(self.outcome).inc()


def outcome_of(error: TickError | ProblemError) -> Outcome:
    """The outcome of a generation that raised `error`."""
    if error.status == 504:
        return Outcome.EXPIRED
    if isinstance(error, GenerationCancelledError):
        return Outcome.CANCELLED
    if isinstance(error, NonFiniteError):
        return Outcome.NONFINITE
    if isinstance(error, DrainingError):
        return Outcome.DRAINED
    return Outcome.ENGINE_ERROR if isinstance(error, EngineError) else Outcome.REJECTED


@dataclass
class GenerationJob:
    """A generation of one request: what it makes, how its response describes it, and how much was sent of it.

    on_step: gets how many steps of the request in flight are done, on the event loop's thread.
    """

    request: CheckedRequest
    permit: Permit
    read: ReadRequest
    sent_audio_s: float = 0.0
    first_sent_s: float | None = None
    last_sent_s: float | None = None
    on_step: Callable[[int], None] | None = None

    @classmethod
    async def prepare(cls, request: CheckedRequest, permit: Permit) -> Self:
        """Read the inputs, and reserve the response's memory. Raises RequestError and ProblemError."""
        caller = Caller(request.client, request.service.settings.queue_timeout_s)
        read: Callable[[], ReadRequest] = partial(request.read, caller)
        if request.has_files:
            reading = request.service.file_turns.run(request.client, read)
        elif (cost_bytes := request.cost_bytes) > SMALL_BYTES:
            reading = request.service.bodies.turns(cost_bytes).run(request.client, read)
        else:
            reading = run_in_threadpool(read)
        job = cls(request, permit, await _read(asyncio.create_task(reading), caller))
        if not request.is_streamed:
            await job.finish_plan()
        permit.remaining_steps = job.generation.num_steps * (1 + len(job.tracks))
        permit.reserve(job.response_bytes())
        return job

    @property
    def generation(self) -> LongGeneration:
        """What it makes."""
        return self.read.generation

    @property
    def tracks(self) -> tuple[str, ...]:
        """What is extracted from it once it is made."""
        return self.generation.tracks if self.request.body.stems else ()

    async def finish_plan(self) -> None:
        """Wait for all codes: what is sent whole says them. Cancellation ends them. Raises TickError."""
        if (plan := self.generation.plan) is None:
            return
        try:
            await asyncio.to_thread(plan.finish)
        finally:
            plan.close()
        self.read = await asyncio.to_thread(self.request.described, self.read)

    def card(self) -> GenerationCard:
        """What is told of it, its plan as far as it is made."""
        body, generation, words = self.request.body, self.generation, self.read.words
        rate_hz, num_samples = generation.sample_rate_hz, generation.total_samples
        file_rate_hz, channels, bits = self._audio()
        return GenerationCard(
            **dict(self.read.metadata),
            id=self.request.id,
            created=round(time.time()),
            seed=generation.seed,
            understood=words.understood,
            unknown=words.unknown,
            near=words.near,
            meanings=tuple(meaning.values for meaning in self.read.meanings),
            losses=self.read.losses,
            estimated=generation.is_estimated and (body.stems is not None or body.response_format == "mid"),
            response_format=body.response_format,
            stems=body.stems,
            seconds=num_samples / rate_hz if rate_hz and num_samples is not None else None,
            sample_rate_hz=file_rate_hz,
            channels=channels,
            bit_depth=bits,
        )

    def _audio(self) -> tuple[int | None, int | None, int | None]:
        """Samples per second, channels and bits of what is sent; None where it has none, or its files differ."""
        body, codec = self.request.body, self.request.pipeline.codec
        name = body.response_format
        if not self.request.is_audio or codec is None:
            return None, None, None
        if body.stems:
            return codec.sample_rate_hz, None, STEM_BITS
        rate_hz = body.sample_rate_hz or encoded_rate_hz(name, codec.sample_rate_hz)
        return rate_hz, codec.channels, 16 if name in ("wav", "pcm", "flac") else None

    def record_sent(self) -> None:
        """Record that a chunk was sent."""
        now_s, metrics = time.monotonic(), self.request.service.metrics
        if self.first_sent_s is None:
            self.first_sent_s = now_s
            metrics.time_to_first_audio.observe(now_s - self.request.started_s)
            self.request.service.first_audio_tracker.discard(self.request.id)
        elif self.last_sent_s is not None:
            metrics.chunk_interval.observe(now_s - self.last_sent_s)
        self.last_sent_s = now_s

    def record_end(self, outcome: Outcome) -> None:
        """Record how much audio it made, and how fast."""
        elapsed_s, metrics = time.monotonic() - self.request.started_s, self.request.service.metrics
        metrics.audio_seconds.inc(self.sent_audio_s)
        if outcome is Outcome.OK and self.request.is_audio:
            metrics.realtime.observe(self.sent_audio_s / max(elapsed_s, 1e-9))

    def lead_s(self) -> float:
        """Seconds of audio sent ahead of real-time playback."""
        if self.first_sent_s is None:
            return 0.0
        return self.sent_audio_s - (time.monotonic() - self.first_sent_s)

    def response_bytes(self) -> int:
        """Memory for the response: latents ahead of the client, and audio: two windows, or all that is sent whole."""
        request, layout = self.request, self.request.pipeline.bundle.latents
        codec = request.pipeline.codec
        latents_bytes = 4 * layout.channels * (self.generation.total_frames or 0)
        if not request.is_audio or codec is None:
            return self.read.uploaded_bytes + 2 * latents_bytes
        if request.body.stems:
            all_latents_bytes = latents_bytes * (1 + len(self.tracks))
            return self.read.uploaded_bytes + all_latents_bytes + stems_bytes(self.generation, codec.channels)
        # At a higher rate it takes more.
        rate = max(1.0, (request.body.sample_rate_hz or 0) / codec.sample_rate_hz)
        num_samples = round(rate * (self.generation.total_samples or 0))
        if request.is_streamed:
            num_samples = min(num_samples, round(2 * request.service.settings.window_s * rate * codec.sample_rate_hz))
        return self.read.uploaded_bytes + min(latents_bytes, AHEAD_BYTES) + 2 * codec.channels * num_samples


async def _read(reading: asyncio.Task[ReadRequest], caller: Caller) -> ReadRequest:
    """Wait for what is read and thought of; cancellation ends that, and waits for its end where it has begun."""
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        caller.leave()
        reading.cancel()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.exception()
        raise
