"""One request for a generation: its inputs, read and checked, its memory, its headers, and what was sent of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool

from runtime.audio.encoding import check_format, check_rates, encoded_rate_hz
from runtime.audio.formats import FORMATS, Latents, Pcm
from runtime.audio.metadata import GenerationMetadata, ascii_json, without_longest
from runtime.errors import DrainingError, EngineError, GenerationCancelledError, NonFiniteError, TickError, source_as
from runtime.pipeline.compose import GenerationInputs, SourceAudio
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.planning import AnyPlan
from runtime.pipeline.sequences import Caller
from runtime.pipeline.text_encoder import parse_condition
from server.asgi.openapi import GenerationBody
from server.asgi.problems import ProblemError
from server.asgi.request_body import Upload
from server.config import MIB
from server.metrics.metrics import Metrics, Outcome
from server.service.admission import Permit
from server.service.service import Service

# Latents of a generation that are kept for a client that reads slower than they are made.
AHEAD_BYTES = 8 * MIB
# Proxies limit the headers of a response, often to 8 KiB in all.
PARAMETERS_BYTES, PLAN_BYTES = 4096, 2048
MAX_HEADER_WORDS, MAX_HEADER_WORD = 10, 20


Opened = tuple[LongGeneration, GenerationMetadata]


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
    """One request for a generation: options, permit, and how much audio was sent.

    `prepare` sets `generation`, its `metadata` and the `unknown_words` of its prompts.
    """

    service: Service
    pipeline: Pipeline
    body: GenerationBody
    upload: Upload
    client: str
    permit: Permit
    id: str
    started_s: float = field(default_factory=time.monotonic)
    sent_audio_s: float = 0.0
    first_sent_s: float | None = None
    last_sent_s: float | None = None
    caller: Caller = field(init=False)
    generation: LongGeneration = field(init=False)
    metadata: GenerationMetadata = field(init=False)
    unknown_words: tuple[str, ...] = ()
    _uploaded_bytes: int = 0

    @property
    def is_latents(self) -> bool:
        """Whether the client asked for latents instead of audio."""
        return self.body.response_format == "latents"

    @property
    def is_streamed(self) -> bool:
        """Whether audio is sent while later audio is generated."""
        return self.body.stream and not self.is_latents

    @property
    def tag(self) -> str:
        """The metadata as the file has it; "" where the client wants none."""
        return self.metadata.to_tag(self.body.response_format) if self.body.metadata else ""

    async def prepare(self) -> None:
        """Read the source, draw the seed, reserve the response's memory. Raises RequestError and ProblemError."""
        codec = self.pipeline.codec
        check_rates(self.body.response_format, self.body.sample_rate_hz, self.body.bit_rate_kbps)
        if not self.is_latents and codec is None:
            raise ProblemError(
                422, "no_codec", "this model makes latents, not audio", fix='set "response_format": "latents"'
            )
        if not self.is_latents and codec is not None:
            check_format(self.body.response_format, codec.channels, "response_format")
        sources, body = self.service.sources, self.body
        self.caller = Caller(self.client, self.service.settings.queue_timeout_s)
        files = (self.upload.source, self.upload.timbre, self.upload.structure, body.timbre_id)
        is_read = files == (None,) * 4 and sources.are_cached(body.source_id, body.target_id, body.structure_id)
        run = run_in_threadpool if is_read else self.service.source_worker.run
        self.generation, self.metadata = await self._opened(asyncio.create_task(run(self._open)))
        if self.generation.plan is not None and not self.is_streamed:
            await self._finish_plan(self.generation.plan)
        self.permit.remaining_steps = self.generation.num_steps
        self.permit.reserve(self._response_bytes())

    async def _opened(self, opening: asyncio.Task[Opened]) -> Opened:
        """Wait for what is read and thought of; cancellation ends the thinking, and waits for the rest."""
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            self.caller.leave()
            await asyncio.wait([opening])
            if not opening.cancelled():
                opening.exception()
            raise

    async def _finish_plan(self, plan: AnyPlan) -> None:
        """Wait for all codes: what is sent whole says them. Cancellation ends them. Raises TickError."""
        try:
            await asyncio.to_thread(plan.finish)
        finally:
            plan.close()
        self.metadata = self.generation.metadata()

    def headers(self) -> dict[str, str]:
        """Response headers that describe the body."""
        name = self.body.response_format
        headers = {
            "X-Generation-Id": self.id,
            "X-Seed": str(self.generation.seed),
            **parameter_headers(self.metadata),
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
            "Content-Disposition": f'inline; filename="{self.id}{FORMATS[name].suffix}"',
        }
        if self.unknown_words:
            headers["X-Prompt-Unknown"] = words_header(self.unknown_words)
        codec = self.pipeline.codec
        if self.is_latents or codec is None:
            return headers
        headers["X-Sample-Rate"] = str(self.body.sample_rate_hz or encoded_rate_hz(name, codec.sample_rate_hz))
        headers["X-Channels"] = str(min(codec.channels, FORMATS[name].max_channels))
        return headers | {"X-Bit-Depth": "16"} if name in ("wav", "pcm", "flac") else headers

    def record_sent(self) -> None:
        """Record that a chunk was sent."""
        now_s, metrics = time.monotonic(), self.service.metrics
        if self.first_sent_s is None:
            self.first_sent_s = now_s
            metrics.time_to_first_audio.observe(now_s - self.started_s)
            self.service.first_audio_tracker.discard(self.id)
        elif self.last_sent_s is not None:
            metrics.chunk_interval.observe(now_s - self.last_sent_s)
        self.last_sent_s = now_s

    def record_end(self, outcome: Outcome) -> None:
        """Record how much audio it made, and how fast."""
        elapsed_s, metrics = time.monotonic() - self.started_s, self.service.metrics
        metrics.audio_seconds.inc(self.sent_audio_s)
        if outcome is Outcome.OK and not self.is_latents:
            metrics.realtime.observe(self.sent_audio_s / max(elapsed_s, 1e-9))

    def lead_s(self) -> float:
        """Seconds of audio sent ahead of real-time playback."""
        if self.first_sent_s is None:
            return 0.0
        return self.sent_audio_s - (time.monotonic() - self.first_sent_s)

    def _open(self) -> Opened:
        body, sources = self.body, self.service.sources
        words = self.pipeline.prompt_words(body)
        self.unknown_words = words.unknown if words else ()
        names = ("source_id", "target_id", "structure_id")
        ids = ((name, getattr(body, name)) for name in names)
        source, target, structure = (None if id_ is None else sources.latents(id_, name) for name, id_ in ids)
        upload, self.upload = self.upload, Upload({})
        data, sent = upload.source, upload.condition
        if data is not None:
            source = sources.read(data)
            self._uploaded_bytes = source.nbytes + len(data)
        if upload.structure is not None:
            with source_as("structure"):
                structure = sources.read(upload.structure)
            self._uploaded_bytes += structure.nbytes
        condition = None if sent is None else parse_condition(sent)
        audio = self._source_audio(data)
        timbre = self._timbre(upload.timbre)
        inputs = GenerationInputs(
            condition,
            source,
            target,
            client=self.client,
            source_audio=audio,
            timbre=timbre,
            structure=structure,
        )
        generation = LongGeneration(self.pipeline, body, inputs, caller=self.caller)
        return generation, generation.metadata()

    def _timbre(self, data: bytes | None) -> Latents | None:
        """The latents of the form's part `timbre`, or of an uploaded source."""
        if data is None and self.body.timbre_id is not None:
            data = self.service.sources.data(self.body.timbre_id, "timbre_id")
        with source_as("timbre"):
            return None if data is None else self.pipeline.read_timbre(data)

    def _source_audio(self, data: bytes | None) -> SourceAudio | None:
        """Opens the source's samples; an uploaded source is read again. None for latents."""
        source_id, sources = self.body.source_id, self.service.sources
        if data is not None:
            return self.pipeline.source_audio(data)
        if source_id is None or sources.get(source_id).kind == "latents":
            return None
        return partial(self._stored_audio, source_id)

    def _stored_audio(self, source_id: str) -> Iterator[Pcm]:
        opened = self.pipeline.source_audio(self.service.sources.data(source_id, "source_id"))
        return opened() if opened is not None else iter(())

    def _response_bytes(self) -> int:
        """Memory for the response: latents ahead of the client, and audio: two windows, or all that is sent whole."""
        layout, codec = self.pipeline.bundle.latents, self.pipeline.codec
        latents_bytes = 4 * layout.channels * (self.generation.total_frames or 0)
        if self.is_latents or codec is None:
            return self._uploaded_bytes + 2 * latents_bytes
        # At a higher rate it takes more.
        rate = max(1.0, (self.body.sample_rate_hz or 0) / codec.sample_rate_hz)
        num_samples = round(rate * (self.generation.total_samples or 0))
        if self.is_streamed:
            num_samples = min(num_samples, round(2 * self.service.settings.window_s * rate * codec.sample_rate_hz))
        return self._uploaded_bytes + min(latents_bytes, AHEAD_BYTES) + 2 * codec.channels * num_samples


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


def words_header(words: Sequence[str]) -> str:
    """The first words as a header's value: percent-encoded UTF-8, separated by `, `; long ones are cut."""
    return ", ".join(quote(word[:MAX_HEADER_WORD], safe=" ") for word in words[:MAX_HEADER_WORDS])
