"""Generations of assistants: from a tool's arguments to a file, and what is told of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from starlette.concurrency import run_in_threadpool

from runtime.audio.metadata import without_longest
from runtime.base.errors import FileError
from runtime.base.files import read_file
from server.asgi.openapi import SOURCE_ID, GenerationBody
from server.asgi.problems import Finding, ProblemError
from server.asgi.request_body import Upload, validate
from server.protocols.mcp.files import FileStore, MadeFile
from server.protocols.mcp.work import Progress, ToolClient
from server.routes.checked_request import CheckedRequest
from server.routes.generation_file import write_generation
from server.routes.generation_job import MAX_TOLD_WORDS, GenerationJob
from server.routes.generations import check_model
from server.routes.sources import store_source
from server.service.service import Service

FILE_URI = "tickrt://files/"
# Of the options and the plan, as an answer repeats them.
OPTIONS_BYTES, PLAN_BYTES = 4096, 2048
# Options that name audio.
FILE_OPTIONS = tuple(name for name in GenerationBody.model_fields if name.endswith("_id"))


class Maker:
    """Makes files of generations. reads_paths: sources may be paths of this machine, which the client shares."""

    def __init__(self, service: Service, files: FileStore, *, reads_paths: bool) -> None:
        self._service, self._files, self._reads_paths = service, files, reads_paths

    async def make(self, values: Mapping[str, Any], client: ToolClient, progress: Progress) -> MadeFile:
        """The file of one generation. Raises ProblemError, TickError; nothing of the file stays then."""
        service = self._service
        pipeline = service.ready_pipeline()
        values = {**values, **await self.sources(values, client.address), "stream": False}
        body = await run_in_threadpool(validate, service.body_model, values, "see the tool's input schema")
        check_model(pipeline, body)
        with ExitStack() as stack:
            permit = service.admission.admit(client.address)
            stack.callback(permit.release)
            progress.text = "reading the inputs"
            request = CheckedRequest(service, pipeline, body, Upload({}), client.address)
            job = await GenerationJob.prepare(request, permit)
            job.on_step = _steps_of(job, progress)
            name = self._files.new_name(_title(body), request.file_format.suffix)
            stack.callback(self._files.discard, name)
            with self._files.room(client.address, job.response_bytes()) as room:
                await write_generation(job, self._files.path_of(name))
                media_type, plan = request.file_format.media_type, job.read.metadata.plan
                return self._files.add(name, media_type, room, facts_of(job), plan)

    async def sources(self, values: Mapping[str, Any], client: str) -> dict[str, str]:
        """The ids of the audio that arguments name, which is read. Raises ProblemError, RequestError, StoreError."""
        self._service.ready_pipeline()
        named = {name: values[name] for name in FILE_OPTIONS if isinstance(values.get(name), str)}
        return {name: await self.source(text, name, client) for name, text in named.items()}

    async def source(self, text: str, field: str, client: str) -> str:
        """The id of the source that an argument names. Raises ProblemError, RequestError, StoreError."""
        if re.fullmatch(SOURCE_ID, text):
            return text
        data = await run_in_threadpool(self._read, text, field)
        return (await store_source(self._service, client, data, field)).id

    def _read(self, text: str, field: str) -> bytes:
        made, limit = self._files.find(text.removeprefix(FILE_URI)), self._service.settings.upload_bytes
        if made is None and not self._reads_paths:
            what = "names neither a file that was made here nor a source"
            fix = (
                f"give the uri of a file that a tool made ({FILE_URI}...), or upload one to /v1/sources and give its id"
            )
            raise ProblemError(
                422, "source_not_found", f"{field} {what}", fix=fix, errors=[Finding(pointer=f"/{field}", detail=what)]
            )
        try:
            return read_file(_path_of(text) if made is None else made.path, limit)
        except FileError as error:
            raise FileError(f"{field}: {error.what}", fix="give the path of a file") from None


def _path_of(text: str) -> Path:
    """The path that a text or a file: URL names."""
    is_url = text.startswith("file:")
    return Path(url2pathname(urlsplit(text).path) if is_url else text.replace("\0", ""))


def _steps_of(job: GenerationJob, progress: Progress) -> Callable[[int], None]:
    """What sets the progress to the steps that are done of all that the generation takes."""
    progress.total, progress.text = job.permit.remaining_steps, "waiting for a place"

    def note(step: int) -> None:
        progress.done = max(progress.done, progress.total - job.permit.remaining_steps + step)
        progress.text = f"step {progress.done:g} of {progress.total:g}"

    return note


def _title(body: GenerationBody) -> str:
    return body.prompt if isinstance(body.prompt, str) else body.prompt[0].text


def facts_of(job: GenerationJob) -> dict[str, Any]:
    """What is told of a generation: length, seed, options, plan, and how its prompts were understood."""
    metadata, words = job.read.metadata, job.read.words
    codec, samples = job.request.pipeline.codec, job.generation.total_samples
    plan, plays = without_longest(metadata.plan, PLAN_BYTES), [str(meaning) for meaning in job.read.meanings]
    found: dict[str, Any] = {
        "seconds": None if codec is None or samples is None else round(samples / codec.sample_rate_hz, 3),
        "seed": job.generation.seed,
        "model": metadata.model,
        "options": metadata.bounded(OPTIONS_BYTES).options,
        "plan": plan,
        "plays": [text for text in plays if text],
        "unknown_words": list(words.unknown[:MAX_TOLD_WORDS]),
        "losses": list(job.read.losses),
        "near": {word: list(near) for word, near in list(words.near.items())[:MAX_TOLD_WORDS]},
    }
    return {name: value for name, value in found.items() if value not in (None, [], {})}
