"""One request for a generation: its format fits the model, and its inputs are read."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from runtime.audio.encoding import check_format, check_rates
from runtime.audio.formats import ARCHIVE, AUDIO_FORMATS, FORMATS, Format
from runtime.audio.metadata import GenerationMetadata
from runtime.base.errors import RequestError
from runtime.base.files import losses
from runtime.config.codec import Pcm
from runtime.pipeline.compose import GenerationInputs
from runtime.pipeline.generation import LongGeneration
from runtime.pipeline.inputs import Given
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.songs.planner import Caller
from runtime.pipeline.text_encoder import parse_condition
from runtime.requests.prompt_words import PromptMeaning, PromptWords
from server.asgi.openapi import GenerationBody
from server.asgi.problems import ProblemError
from server.asgi.request_body import Upload

if TYPE_CHECKING:
    from server.service.service import Service


NO_WORDS = PromptWords()


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
