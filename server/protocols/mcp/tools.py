"""The tools: what each of them takes, does and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from runtime.base.errors import did_you_mean
from runtime.base.untrusted import check_members
from runtime.live.protocol.messages import Open, SetControls, SetPlan, SetPrompts
from runtime.pipeline.pipeline import Pipeline
from runtime.requests.options import parse_options
from runtime.requests.tasks import known_tasks
from server.asgi.problems import Finding, ProblemError, first_findings, invalid_request
from server.asgi.request_body import validate
from server.protocols.mcp.files import FileStore, MadeFile
from server.protocols.mcp.live import AssistantSession, AssistantSessions
from server.protocols.mcp.making import Maker
from server.protocols.mcp.schemas import (
    Nothing,
    VocabularyArguments,
    generation_schema,
    message_schema,
    model_schema,
    record_model,
    session_schema,
    source_schema,
)
from server.protocols.mcp.work import Progress, ToolClient, Work
from server.routes.adapters import adapter_list
from server.routes.models import model_card
from server.service.service import Service

# How long a tool, and a list of tools, waits for engines that are being opened.
OPENING_S, LISTING_S = 60.0, 20.0
FIX = "see the tool's input schema"


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
    work: Work = field(default_factory=Work)
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
        values, progress = {**arguments, **fixed}, Progress()
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
        session, ready = await self.work.run(opening, Progress(), client.report)
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
        session, progress = self.live.get(asked.session), Progress()
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
