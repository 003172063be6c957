"""The tools: what each of them takes, does and answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from starlette.concurrency import run_in_threadpool

from runtime.audio.metadata import without_longest
from runtime.base.errors import FileError, did_you_mean
from runtime.base.files import read_file
from runtime.base.untrusted import check_members
from runtime.live.protocol.messages import Open, SetControls, SetPlan, SetPrompts
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options
from runtime.requests.tasks import known_tasks
from server.asgi.openapi import SOURCE_ID, GenerationBody
from server.asgi.problems import Finding, ProblemError, first_findings, invalid_request
from server.asgi.request_body import Upload, validate
from server.protocols.mcp.files import FILE_URI, FileStore, MadeFile
from server.protocols.mcp.live import AssistantSession, AssistantSessions
from server.protocols.mcp.schemas import (
    FILE_OPTIONS,
    Nothing,
    VocabularyArguments,
    generation_schema,
    message_schema,
    model_schema,
    record_model,
    session_schema,
    source_schema,
)
from server.protocols.mcp.work import ToolClient, ToolProgress, ToolTasks
from server.routes.generation_job import MAX_TOLD_WORDS, CheckedRequest, GenerationJob
from server.routes.generation_stream import write_generation
from server.routes.generations import check_model
from server.routes.models import adapter_list, model_card
from server.routes.sources import store_source
from server.service.service import Service

# Of the options and the plan, as an answer repeats them.
OPTIONS_BYTES, PLAN_BYTES = 4096, 2048
# How long a tool, and a list of tools, waits for engines that are being opened.
OPENING_S, LISTING_S = 60.0, 20.0
FIX = "see the tool's input schema"


class Maker:
    """Makes files of generations. reads_paths: sources may be paths of this machine, which the client shares."""

    def __init__(self, service: Service, files: FileStore, *, reads_paths: bool) -> None:
        self._service, self._files, self._reads_paths = service, files, reads_paths

    async def make(self, values: Mapping[str, Any], client: ToolClient, progress: ToolProgress) -> MadeFile:
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


def _steps_of(job: GenerationJob, progress: ToolProgress) -> Callable[[int], None]:
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


@dataclass(frozen=True)
class Answer:
    """What a tool answers: facts, and a file; has_audio: the file itself is wanted, too."""

    facts: dict[str, Any]
    file: MadeFile | None = None
    has_audio: bool = False


Call = Callable[[Mapping[str, Any], ToolClient], Awaitable[Answer]]


@dataclass(frozen=True)
class ToolEntry:
    """One tool (its texts: texts.json). is_reading: it changes nothing. taken: what it takes; None: as its schema."""

    name: str
    schema: dict[str, Any]
    call: Call
    is_reading: bool = False
    taken: Collection[str] | None = None

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that it does not know, and what is missing. Raises ProblemError 422, MalformedJsonError."""
        check_members(arguments)
        if findings := first_findings(self._findings(arguments)):
            raise invalid_request(findings, FIX)

    def _findings(self, arguments: Mapping[str, Any]) -> Iterator[Finding]:
        known = self.schema["properties"] if self.taken is None else self.taken
        for name in arguments:
            if name not in known:
                yield Finding(
                    pointer=f"/{name}", detail="is not known: " + (did_you_mean(name, known) or "leave it out")
                )
        for name in self.schema.get("required", ()):
            if name not in arguments:
                yield Finding(pointer=f"/{name}", detail="is missing")


@dataclass
class Tools:
    """The tools of a server. Its files and live sessions are those of all assistants that use it."""

    service: Service
    files: FileStore
    maker: Maker
    live: AssistantSessions
    work: ToolTasks = field(default_factory=ToolTasks)
    _made: tuple[object, dict[str, ToolEntry]] | None = None

    async def close(self) -> None:
        """End what tools have begun, and remove temporary files."""
        self.live.close()
        await self.work.close()
        self.files.close()

    async def entries(self) -> dict[str, ToolEntry]:
        """The tools by name. While engines are being opened for long, options lack the model's defaults."""
        await self._opened(LISTING_S)
        if self._made is None or self._made[0] is not self.service.body_model:
            self._made = self.service.body_model, {entry.name: entry for entry in self._entries()}
        return self._made[1]

    async def call(self, entry: ToolEntry, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        """What a tool answers. Raises ProblemError, TickError."""
        await self._opened(OPENING_S)
        entry.check(arguments)
        return await entry.call(arguments, client)

    async def _opened(self, timeout_s: float) -> None:
        if self.service.pipeline is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.service.opened(), timeout_s)

    def _entries(self) -> Iterator[ToolEntry]:
        service = self.service
        yield ToolEntry("generate", generation := generation_schema(service), partial(self._generate, {}))
        if service.pipeline is None or service.pipeline.codec is None or service.pipeline.codec.can_encode:
            yield from self._source_tools(generation)
        yield ToolEntry("vocabulary", model_schema(VocabularyArguments), self._vocabulary, is_reading=True)
        yield ToolEntry("models", model_schema(Nothing), self._models, is_reading=True)
        if service.pipeline is None or not service.pipeline.live_refusal:
            yield from self._live_tools()

    def _source_tools(self, generation: dict[str, Any]) -> Iterator[ToolEntry]:
        cover, repaint = ("task", "mask", "repaint"), ("task", "mask")
        yield ToolEntry(
            "cover",
            source_schema(generation, ["source_id"], cover),
            partial(self._generate, {"task": "cover"}),
            taken=generation["properties"].keys() - cover,
        )
        yield ToolEntry(
            "repaint",
            source_schema(generation, ["source_id", "repaint"], repaint),
            partial(self._generate, {"task": "repaint"}),
            taken=generation["properties"].keys() - repaint,
        )

    def _live_tools(self) -> Iterator[ToolEntry]:
        host = self.service.host
        yield ToolEntry("live_open", message_schema(Open), self._live_open)
        yield ToolEntry("live_set", message_schema(SetControls, host=host, controls="values"), self._live_set)
        yield ToolEntry("live_prompts", message_schema(SetPrompts), self._live_prompts)
        yield ToolEntry("live_plan", message_schema(SetPlan, optional=True), self._live_plan)
        yield ToolEntry("live_record", model_schema(record_model(self.service)), self._live_record)
        yield ToolEntry("live_close", session_schema(), self._live_close)

    async def _generate(self, fixed: Mapping[str, Any], arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        values, progress = {**arguments, **fixed}, ToolProgress()
        has_audio = _flag(values, "return_audio")
        file = await self.work.run(self.maker.make(values, client, progress), progress, client.report)
        return Answer(file.facts, file, has_audio)

    async def _vocabulary(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        pipeline, text = self.service.ready_pipeline(), validate(VocabularyArguments, dict(arguments), FIX).text
        if pipeline.text_encoder is None:
            raise ProblemError(501, "no_text", f"bundle {pipeline.bundle.name!r} takes no text")
        if text is None:
            words = pipeline.text_encoder.vocabulary
            return Answer({"is_closed": words is not None, "words": list(words or ())})
        return Answer(await run_in_threadpool(_understood, pipeline, text))

    async def _models(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        pipeline = self.service.ready_pipeline()
        card = model_card(pipeline, self.service.settings.max_seconds).model_dump(exclude={"vocabulary"})
        adapters = [adapter.model_dump(exclude={"modules"}) for adapter in adapter_list(pipeline.engines).data]
        live = not pipeline.live_refusal
        return Answer({"models": [{**card, "tasks": known_tasks(pipeline.bundle), "adapters": adapters, "live": live}]})

    async def _live_open(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        named = await self.maker.sources(arguments, client.address)
        opening = self.live.open({**arguments, **named}, client)
        session, ready = await self.work.run(opening, ToolProgress(), client.report)
        controls = ready.controls.values
        plan = None if ready.plan is None else ready.plan.model_dump()
        facts = {"mode": ready.mode, "canvas_s": ready.canvas.seconds, "seed": ready.controls.seed, "plan": plan}
        losses = {"losses": ready.losses} if ready.losses else {}
        return _about(session, facts, prompts=session.words(), controls=controls, **losses)

    async def _live_set(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        session, members = self._session(arguments)
        await session.handled("set", members)
        return _about(session, {"set": members["values"]})

    async def _live_prompts(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        session, members = self._session(arguments)
        await session.handled("prompts", members)
        texts = {item["text"] for item in members["items"]} - {""}
        await session.following(lambda: texts <= session.texts())
        return _about(session, {}, prompts=session.words())

    async def _live_plan(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        session, members = self._session(arguments)
        session.check_plan()
        before, sections = session.plan, members.get("sections")
        if members:
            await session.handled("set_plan", members)
        if members and sections:
            await session.following(lambda: session.has_planned(members["start_s"], sections[0]["kind"]))
        elif members or before is None:
            await session.following(lambda: session.plan is not before)
        plan = None if session.plan is None else session.plan.model_dump(exclude={"type"})
        return _about(session, {"plan": plan})

    async def _live_record(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        asked = validate(record_model(self.service), dict(arguments), FIX)
        session, progress = self.live.get(asked.session), ToolProgress()
        work = self.live.record(session, asked.seconds, asked.response_format, client, progress)
        file = await self.work.run(work, progress, client.report)
        return Answer(file.facts, file, asked.return_audio)

    async def _live_close(self, arguments: Mapping[str, Any], client: ToolClient) -> Answer:
        session, _ = self._session(arguments)
        self.live.end(session.id, "closed")
        return Answer({"session": session.id, "closed": True})

    def _session(self, arguments: Mapping[str, Any]) -> tuple[AssistantSession, dict[str, Any]]:
        """The session that arguments name, and the others. Raises UnknownSessionError."""
        members = dict(arguments)
        return self.live.get(members.pop("session")), members


def _flag(values: dict[str, Any], name: str) -> bool:
    """Take a flag out of arguments. Raises ProblemError 422."""
    flag = values.pop(name, False)
    if not isinstance(flag, bool):
        raise invalid_request([Finding(pointer=f"/{name}", detail="expected true or false")], FIX)
    return flag


def _about(session: AssistantSession, facts: Mapping[str, Any], **more: Any) -> Answer:
    return Answer({"session": session.id, "position_s": round(session.position_s, 3), **facts, **more})


def _understood(pipeline: Pipeline, text: str) -> dict[str, Any]:
    """What of a prompt is understood and played. Raises RequestError, EngineError."""
    options = parse_options({"prompt": text})
    words, meanings = pipeline.prompts.words(options), pipeline.prompts.meanings(options, 0)
    assert words is not None
    return {
        "understood": list(words.understood),
        "unknown": list(words.unknown),
        "near": {word: list(near) for word, near in words.near.items()},
        "plays": [str(meaning) for meaning in meanings],
        "meaning": [meaning.values["meaning"] for meaning in meanings],
    }


def open_tools(service: Service, folder: Path | None = None) -> Tools:
    """The tools of a service. folder: where files stay; then sources may be paths, too. Raises ConfigError."""
    settings = service.settings
    files = FileStore(folder, settings.results_bytes, settings.result_keep_s, service.client_share)
    maker = Maker(service, files, reads_paths=folder is not None)
    return Tools(service, files, maker, AssistantSessions(service, files))
