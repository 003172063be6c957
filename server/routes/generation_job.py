"""A generation on its way to a client: its request, checked and read, what is told of it, its memory, what was sent of
it, and how it ended.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from starlette.concurrency import run_in_threadpool

from runtime.audio.encoding import check_format, check_rates, encoded_rate_hz
from runtime.audio.formats import ARCHIVE, AUDIO_FORMATS, FORMATS, Format
from runtime.audio.metadata import GenerationMetadata
from runtime.base.errors import (
    DrainingError,
    EngineError,
    GenerationCancelledError,
    NonFiniteError,
    RequestError,
    TickError,
)
from runtime.base.files import losses
from runtime.config.codec import Pcm
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.inputs import Given
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.songs.planner import Caller
from runtime.pipeline.stem_files import STEM_BITS, stems_bytes
from runtime.pipeline.text_encoder import parse_condition
from runtime.requests.prompt_words import PromptMeaning, PromptWords
from server.asgi.openapi import GenerationBody
from server.asgi.problems import ProblemError
from server.asgi.request_body import SMALL_BYTES, Upload
from server.config import MIB
from server.service.admission import Permit
from server.service.generation_cards import GenerationCard
from server.service.metrics import Metrics, Outcome

if TYPE_CHECKING:
    from runtime.pipeline.generation import LongGeneration
    from server.service.service import Service
NO_WORDS = PromptWords()
# Latents of a generation that are kept for a client that reads slower than they are made.
AHEAD_BYTES = 8 * MIB
# Words that a model does not know, of those that other people's clients are told.
MAX_TOLD_WORDS = 10


class ReadRequest(NamedTuple):
    """A request whose inputs are read.

    metadata, tag: of the file, the tag as text, "" where the client wants none. words, meanings: of its prompts.
    uploaded_bytes: memory of the sources in it. losses: what of them, and of notes, could not be read.
    """

    generation: LongGeneration
    metadata: GenerationMetadata
    tag: str = ""
    words: PromptWords = NO_WORDS
    meanings: tuple[PromptMeaning, ...] = ()
    uploaded_bytes: int = 0
    losses: tuple[str, ...] = ()


@dataclass
class CheckedRequest:
    """A request whose format and rates the model can make. Raises RequestError and ProblemError where it cannot.

    client: the address whose generation it is. upload: the form's other parts, until they are read.
    """

    service: Service
    pipeline: Pipeline
    body: GenerationBody
    upload: Upload
    client: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        name, codec = self.body.response_format, self.pipeline.codec
        check_rates(name, self.body.sample_rate_hz, self.body.bit_rate_kbps)
        self._check_notes()
        if self.body.quantize and name != "mid":
            raise RequestError(f"has no effect on {name}", field="quantize", fix="leave it out, or ask for mid")
        for other in ("response_format", "sample_rate_hz", "bit_rate_kbps") if self.body.stems else ():
            if other in self.body.model_fields_set:
                raise RequestError("has no effect on an archive of stems", field=other, fix="leave it out")
        if not self.is_audio:
            return
        if codec is None:
            what = "this model makes latents, not audio"
            raise ProblemError(422, "no_codec", what, fix='set "response_format": "latents"')
        check_format(name, codec.channels, "response_format")

    def _check_notes(self) -> None:
        """A generation without `seconds` is as long as its notes. Raises RequestError."""
        last_s = max((note.end_s for note in self.body.notes or ()), default=0.0)
        if last_s and last_s > (most_s := self.service.settings.max_seconds):
            what = f"the last one ends at {last_s:g} s, this server makes at most {most_s:g} s"
            raise RequestError(what, field="notes")

    @property
    def file_format(self) -> Format:
        """That of the response."""
        return ARCHIVE if self.body.stems else FORMATS[self.body.response_format]

    @property
    def is_audio(self) -> bool:
        """Whether the client asked for audio, not for latents or notes."""
        return self.body.response_format in AUDIO_FORMATS

    @property
    def is_streamed(self) -> bool:
        """Whether audio is sent while later audio is generated."""
        return self.body.stream and self.is_audio and not self.body.stems

    @property
    def cost_bytes(self) -> int:
        """What it costs to read, as bytes of JSON."""
        return len(self.body.model_dump_json(exclude_defaults=True))

    @property
    def has_files(self) -> bool:
        """Whether audio has to be read, or a source that is not in memory."""
        upload, body = self.upload, self.body
        files = (upload.source, upload.timbre, upload.structure, body.timbre_id)
        ids = (body.source_id, body.target_id, body.structure_id)
        return files != (None,) * 4 or not self.service.sources.are_cached(*ids)

    def read(self, caller: Caller) -> ReadRequest:
        """Read the sources and draw the seed, in a worker thread. Raises RequestError and ProblemError."""
        of_notes = self.upload.losses
        with losses() as lost:
            return self._read(caller)._replace(losses=(*of_notes, *lost))

    def _read(self, caller: Caller) -> ReadRequest:
        body, sources, reader = self.body, self.service.sources, self.pipeline.inputs
        words = self.pipeline.prompts.words(body) or NO_WORDS
        ids = {name: getattr(body, f"{name}_id") for name in ("source", "target", "structure")}
        given = {name: self._stored(id_, f"{name}_id") for name, id_ in ids.items() if id_ is not None}
        upload, self.upload = self.upload, Upload({})
        if upload.source is not None:
            given["source"] = replace(reader.file(upload.source), latents=partial(sources.read, upload.source))
        if upload.structure is not None:
            of_structure = reader.file(upload.structure, "structure")
            given["structure"] = replace(of_structure, latents=partial(sources.read, upload.structure))
        timbre = upload.timbre
        if timbre is None and body.timbre_id is not None:
            timbre = sources.data(body.timbre_id, "timbre_id")
        if timbre is not None:
            given["timbre"] = reader.file(timbre, "timbre")
        condition = None if upload.condition is None else parse_condition(upload.condition)
        inputs = reader.read(given, GenerationInputs(condition, client=self.client))
        uploaded_bytes = 0
        if upload.source is not None and inputs.source is not None:
            uploaded_bytes = len(upload.source) + inputs.source.nbytes
        if upload.structure is not None and inputs.structure is not None:
            uploaded_bytes += inputs.structure.nbytes
        generation = LongGeneration(self.pipeline, body, inputs, caller=caller)
        if body.stems:
            generation.check_stems()
        if body.response_format == "mid":
            generation.check_score(quantize=body.quantize)
        read = ReadRequest(generation, generation.metadata(), "", words, generation.meanings, uploaded_bytes)
        return self.described(read)

    def described(self, read: ReadRequest) -> ReadRequest:
        """With the metadata as they are now."""
        metadata = read.generation.metadata()
        tag = metadata.to_tag(self.body.response_format) if self.body.metadata else ""
        return read._replace(metadata=metadata, tag=tag)

    def _stored(self, source_id: str, field: str) -> Given:
        """An uploaded source; its samples are read again where they are needed."""
        latents = self.service.sources.latents(source_id, field)
        is_audio = self.service.sources.get(source_id).kind != "latents"
        return Given(lambda: latents, partial(self._stored_audio, source_id) if is_audio else None, is_audio)

    def _stored_audio(self, source_id: str) -> Iterator[Pcm]:
        opened = self.pipeline.inputs.open_audio(self.service.sources.data(source_id, "source_id"))
        return opened() if opened is not None else iter(())


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
            sampling=generation.sampling.told(),
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
