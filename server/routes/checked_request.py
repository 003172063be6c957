"""One request for a generation: its format fits the model, and `prepare` reads its inputs and makes it a job."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from starlette.concurrency import run_in_threadpool

from runtime.audio.encoding import check_format, check_rates
from runtime.audio.formats import Latents, Pcm
from runtime.errors import source_as
from runtime.pipeline.compose import GenerationInputs, SourceAudio
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.sequences import Caller
from runtime.pipeline.text_encoder import parse_condition
from server.asgi.openapi import GenerationBody
from server.asgi.problems import ProblemError
from server.asgi.request_body import Upload
from server.routes.generation_job import GenerationJob
from server.service.admission import Permit
from server.service.service import Service


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
        if self.is_latents:
            return
        if codec is None:
            what = "this model makes latents, not audio"
            raise ProblemError(422, "no_codec", what, fix='set "response_format": "latents"')
        check_format(name, codec.channels, "response_format")

    @property
    def is_latents(self) -> bool:
        """Whether the client asked for latents instead of audio."""
        return self.body.response_format == "latents"

    @property
    def is_streamed(self) -> bool:
        """Whether audio is sent while later audio is generated."""
        return self.body.stream and not self.is_latents

    async def prepare(self, permit: Permit) -> GenerationJob:
        """Read the source, draw the seed, reserve the response's memory. Raises RequestError and ProblemError."""
        sources, body, upload = self.service.sources, self.body, self.upload
        caller = Caller(self.client, self.service.settings.queue_timeout_s)
        files = (upload.source, upload.timbre, upload.structure, body.timbre_id)
        is_read = files == (None,) * 4 and sources.are_cached(body.source_id, body.target_id, body.structure_id)
        run = run_in_threadpool if is_read else self.service.source_worker.run
        job = await _opened(asyncio.create_task(run(partial(self._open, permit, caller))), caller)
        if not self.is_streamed:
            await job.finish_plan()
        permit.remaining_steps = job.generation.num_steps
        permit.reserve(job.response_bytes())
        return job

    def _open(self, permit: Permit, caller: Caller) -> GenerationJob:
        body, sources = self.body, self.service.sources
        words = self.pipeline.prompt_words(body)
        names = ("source_id", "target_id", "structure_id")
        ids = ((name, getattr(body, name)) for name in names)
        source, target, structure = (None if id_ is None else sources.latents(id_, name) for name, id_ in ids)
        upload, self.upload = self.upload, Upload({})
        uploaded_bytes = 0
        if upload.source is not None:
            source = sources.read(upload.source)
            uploaded_bytes = source.nbytes + len(upload.source)
        if upload.structure is not None:
            with source_as("structure"):
                structure = sources.read(upload.structure)
            uploaded_bytes += structure.nbytes
        inputs = GenerationInputs(
            None if upload.condition is None else parse_condition(upload.condition),
            source,
            target,
            client=self.client,
            source_audio=self._source_audio(upload.source),
            timbre=self._timbre(upload.timbre),
            structure=structure,
        )
        generation = LongGeneration(self.pipeline, body, inputs, caller=caller)
        unknown_words = words.unknown if words else ()
        return GenerationJob(self, permit, generation, generation.metadata(), unknown_words, uploaded_bytes)

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


async def _opened(opening: asyncio.Task[GenerationJob], caller: Caller) -> GenerationJob:
    """Wait for what is read and thought of; cancellation ends the thinking, and waits for the rest."""
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        caller.leave()
        await asyncio.wait([opening])
        if not opening.cancelled():
            opening.exception()
        raise
