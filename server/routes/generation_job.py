"""A generation on its way to a client: its headers, its memory, what was sent of it, and how it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool

from runtime.audio.encoding import encoded_rate_hz
from runtime.audio.formats import FORMATS
from runtime.audio.metadata import GenerationMetadata, ascii_json, without_longest
from runtime.errors import DrainingError, EngineError, GenerationCancelledError, NonFiniteError, TickError
from runtime.pipeline.sequences import Caller
from runtime.pipeline.stem_files import STEM_BITS, stems_bytes
from runtime.requests.prompt_words import PromptMeaning, PromptWords
from server.asgi.problems import ProblemError
from server.config import MIB
from server.metrics.metrics import Metrics, Outcome
from server.routes.checked_request import CheckedRequest, ReadRequest
from server.service.admission import Permit

if TYPE_CHECKING:
    from runtime.pipeline.generation import LongGeneration

# Latents of a generation that are kept for a client that reads slower than they are made.
AHEAD_BYTES = 8 * MIB
# Proxies limit the headers of a response, often to 8 KiB in all.
PARAMETERS_BYTES, PLAN_BYTES, MEANINGS_BYTES = 4096, 2048, 1024
MAX_HEADER_WORDS, MAX_HEADER_WORD = 10, 20


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
        run = request.service.source_worker.run if request.has_files else run_in_threadpool
        job = cls(request, permit, await _read(asyncio.create_task(run(partial(request.read, caller))), caller))
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

    @property
    def tag(self) -> str:
        """The metadata as the file has it; "" where the client wants none."""
        body = self.request.body
        return self.read.metadata.to_tag(body.response_format) if body.metadata else ""

    async def finish_plan(self) -> None:
        """Wait for all codes: what is sent whole says them. Cancellation ends them. Raises TickError."""
        if (plan := self.generation.plan) is None:
            return
        try:
            await asyncio.to_thread(plan.finish)
        finally:
            plan.close()
        self.read = self.read._replace(metadata=self.generation.metadata())

    def headers(self) -> dict[str, str]:
        """Response headers that describe the body."""
        body, codec = self.request.body, self.request.pipeline.codec
        name = body.response_format
        headers = {
            "X-Generation-Id": self.request.id,
            "X-Seed": str(self.generation.seed),
            **parameter_headers(self.read.metadata),
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "Content-Disposition": f'inline; filename="{self.request.id}{self.request.file_format.suffix}"',
        }
        headers |= prompt_headers(self.read.words, self.read.meanings)
        if self.generation.is_estimated and (body.stems or name == "mid"):
            headers["X-Estimated"] = "true"
        if not self.request.is_audio or codec is None:
            return headers
        if body.stems:
            return headers | {"X-Sample-Rate": str(codec.sample_rate_hz), "X-Bit-Depth": str(STEM_BITS)}
        headers["X-Sample-Rate"] = str(body.sample_rate_hz or encoded_rate_hz(name, codec.sample_rate_hz))
        headers["X-Channels"] = str(min(codec.channels, FORMATS[name].max_channels))
        return headers | {"X-Bit-Depth": "16"} if name in ("wav", "pcm", "flac") else headers

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
    """Wait for what is read and thought of; cancellation ends the thinking, and waits for the rest."""
    try:
        return await asyncio.shield(reading)
    except asyncio.CancelledError:
        caller.leave()
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.exception()
        raise


def parameter_headers(metadata: GenerationMetadata) -> dict[str, str]:
    """What made a response, as headers: JSON in ASCII, without the longest options where it is too long."""
    bounded = metadata.bounded(PARAMETERS_BYTES)
    headers = {
        "X-Model": metadata.model,
        "X-Model-Version": quote(metadata.model_version, safe=" "),
        "X-Parameters": ascii_json(bounded.options),
    }
    if plan := without_longest(metadata.plan, PLAN_BYTES):
        headers["X-Plan"] = ascii_json(plan)
    return headers | {"X-Parameters-Omitted": ", ".join(bounded.omitted)} if bounded.omitted else headers


def prompt_headers(words: PromptWords, meanings: Sequence[PromptMeaning]) -> dict[str, str]:
    """What of the prompts is not known, and what is played of them; nothing where that is nothing, or not told."""
    headers, items = dict[str, str](), [meaning.values for meaning in meanings]
    if words.unknown:
        headers["X-Prompt-Unknown"] = words_header(words.unknown)
    if words.near:
        headers["X-Prompt-Near"] = ascii_json(words.near)
    while len(text := ascii_json(items)) > MEANINGS_BYTES:
        items.pop()
    return headers | {"X-Prompt-Meaning": text} if items else headers


def words_header(words: Sequence[str]) -> str:
    """The first words as a header's value: percent-encoded UTF-8, separated by `, `; long ones are cut."""
    return ", ".join(quote(word[:MAX_HEADER_WORD], safe=" ") for word in words[:MAX_HEADER_WORDS])
