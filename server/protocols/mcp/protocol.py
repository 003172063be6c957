"""Tools, resources and prompts as the SDK's server has them; that server over standard input and output."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mcp.types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from starlette.concurrency import run_in_threadpool

from runtime.base.errors import TickError, did_you_mean
from runtime.commands.terminal import EXIT_INTERRUPTED
from runtime.live.protocol.server_messages import messages_schema
from server.asgi.openapi import SCHEMA_TYPE, body_schema
from server.asgi.problems import Finding, ProblemError, as_problem, first_findings, invalid_request
from server.protocols.errors import problem_text
from server.protocols.mcp.files import FILE_URI, MadeFile
from server.protocols.mcp.schemas import CONTENT_BYTES
from server.protocols.mcp.tools import Answer, ToolEntry, Tools, open_tools
from server.protocols.mcp.work import ToolClient
from server.service.service import Service

# Of tools and prompts, as assistants and people read them.
TEXTS: dict[str, Any] = json.loads(Path(__file__).with_name("texts.json").read_text(encoding="utf-8"))
MAX_ARGUMENT = 2000
PLAN_URI = "tickrt://plans/"
SCHEMA_URI, LIVE_SCHEMA_URI = "tickrt://schema", "tickrt://schema/live"
JSON = "application/json"
# The newest ones are listed.
MAX_LISTED = 100
TEMPLATES = {
    f"{FILE_URI}{{name}}": ("file", "A file that a tool made."),
    f"{PLAN_URI}{{name}}": ("plan", "What was planned of a file, by its name, or of a live session, by its id."),
}
INSTRUCTIONS = """TickRT makes music from text, in seconds. Ask vocabulary which words the model knows, then generate.
A result has the uri of its file, its seed, and what of the prompt was played. cover and repaint take such a uri as
source_id. live_open begins music that live_set and live_prompts change, and live_record records it. An error says what
to do."""
Context = ServerRequestContext[dict[str, Any], Any]


@dataclass(frozen=True)
class PromptEntry:
    """One prompt. arguments: name -> what it is; `optional` have a default. text: with the arguments in braces."""

    title: str
    description: str
    arguments: Mapping[str, str]
    text: str
    optional: Mapping[str, str]

    def filled(self, given: Mapping[str, str]) -> str:
        """The text with arguments. Raises ProblemError 422."""
        findings = (Finding(pointer=f"/arguments/{name}", detail=why) for name, why in self._refused(given))
        if found := first_findings(findings):
            raise invalid_request(found, f"it takes {', '.join(self.arguments)}")
        return self.text.format_map({**self.optional, **given})

    def _refused(self, given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Names of arguments, and why they are refused."""
        yield from ((name, "is not known") for name in given if name not in self.arguments)
        values = {**self.optional, **given}
        yield from ((name, "is missing") for name in self.arguments if name not in values)
        yield from (
            (name, f"has more than {MAX_ARGUMENT} characters") for name in given if len(given[name]) > MAX_ARGUMENT
        )


PROMPTS = {name: PromptEntry(**prompt) for name, prompt in TEXTS["prompts"].items()}


def resources(tools: Tools, client: str) -> Iterator[types.Resource]:
    """What a client may read: schemas, its files, their plans, and those of live sessions."""
    yield _resource(SCHEMA_URI, "schema", "JSON schema of the options of a generation.", SCHEMA_TYPE)
    yield _resource(LIVE_SCHEMA_URI, "live-schema", "JSON schema of the messages of live sessions.", SCHEMA_TYPE)
    for file in tools.files.of(client)[:MAX_LISTED]:
        what = json.dumps(file.facts.get("options", file.facts), ensure_ascii=False)[:200]
        yield _resource(f"{FILE_URI}{file.name}", file.name, what, file.media_type, file.size_bytes)
        if file.plan:
            yield _resource(f"{PLAN_URI}{file.name}", f"plan of {file.name}", "What was planned of it.", JSON)
    for session_id in tools.live.with_plan():
        yield _resource(f"{PLAN_URI}{session_id}", f"plan of {session_id}", "Sections of a live session.", JSON)


def _resource(uri: str, name: str, description: str, media_type: str, size_bytes: int | None = None) -> types.Resource:
    """size_bytes: None where it is made when it is read."""
    return types.Resource(uri=uri, name=name, description=description, mime_type=media_type, size=size_bytes)


async def read_resource(tools: Tools, uri: str) -> types.TextResourceContents | types.BlobResourceContents:
    """The content of a resource. Raises ProblemError, UnknownSessionError, FileError."""
    texts: dict[str, Callable[[], object]] = {
        SCHEMA_URI: lambda: body_schema(tools.service.body_model),
        LIVE_SCHEMA_URI: messages_schema,
    }
    if (make := texts.get(uri)) is not None:
        text = json.dumps(await run_in_threadpool(make))
        return types.TextResourceContents(uri=uri, mime_type=SCHEMA_TYPE, text=text)
    if uri.startswith(FILE_URI):
        file = tools.files.get(uri.removeprefix(FILE_URI))
        if file.size_bytes > CONTENT_BYTES:
            what = f"the file has {file.size_bytes} bytes, a message takes at most {CONTENT_BYTES}"
            fix = f"open {file.path}" if tools.files.keeps else f"GET /mcp/files/{file.name}, or ask for mp3"
            raise ProblemError(413, "content_too_large", what, fix=fix)
        blob = base64.b64encode(await run_in_threadpool(file.read)).decode("ascii")
        return types.BlobResourceContents(uri=uri, mime_type=file.media_type, blob=blob)
    if uri.startswith(PLAN_URI):
        text = json.dumps(_plan(tools, uri.removeprefix(PLAN_URI)))
        return types.TextResourceContents(uri=uri, mime_type=JSON, text=text)
    raise ProblemError(404, "resource_not_found", f"there is no resource {uri!r:.200}", fix="list the resources")


def _plan(tools: Tools, name: str) -> object:
    file = tools.files.find(name)
    if file is not None and file.plan:
        return file.plan
    plan = None if file is not None else tools.live.get(name).plan
    if plan is None:
        raise ProblemError(404, "no_plan", "nothing is planned of it", fix="use a model that plans")
    return plan.model_dump(exclude={"type"})


def make_server(tools: Tools, version: str, client_of: Callable[[Any], tuple[str, str]]) -> Server[dict[str, Any]]:
    """The SDK's server. client_of: a client's address and the URL that it calls, from its HTTP request; None: stdio."""
    logging.getLogger("mcp").setLevel(logging.WARNING)  # below, it logs the ids of sessions

    async def list_tools(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(entry) for entry in (await tools.entries()).values()])

    async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        entries = await tools.entries()
        entry = entries.get(params.name)
        if entry is None:
            what = f"there is no tool {params.name!r:.100}"
            fix = did_you_mean(params.name, entries) or f"the tools are {', '.join(entries)}"
            raise _protocol_error(ProblemError(404, "tool_not_found", what, fix=fix))
        client = ToolClient(*client_of(ctx.request), _report_of(ctx))
        try:
            answer = await tools.call(entry, params.arguments or {}, client)
            return await _result(answer, client, keeps=tools.files.keeps)
        except (ProblemError, TickError) as error:
            return _failure(error)

    async def list_resources(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=list(resources(tools, client_of(ctx.request)[0])))

    async def list_templates(
        ctx: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        templates = [
            types.ResourceTemplate(uri_template=uri, name=name, description=description)
            for uri, (name, description) in TEMPLATES.items()
        ]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def read(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        try:
            return types.ReadResourceResult(contents=[await read_resource(tools, str(params.uri))])
        except (ProblemError, TickError) as error:
            raise _protocol_error(error) from None

    async def list_prompts(ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        return types.ListPromptsResult(prompts=[_prompt(name) for name in PROMPTS])

    async def get_prompt(ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        entry = PROMPTS.get(params.name)
        try:
            if entry is None:
                fix = did_you_mean(params.name, PROMPTS) or f"the prompts are {', '.join(PROMPTS)}"
                raise ProblemError(404, "prompt_not_found", f"there is no prompt {params.name!r:.100}", fix=fix)
            text = entry.filled(params.arguments or {})
        except ProblemError as error:
            raise _protocol_error(error) from None
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=entry.description, messages=[message])

    return Server(
        "tickrt",
        version=version,
        title="TickRT",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )


def _report_of(ctx: Context) -> Callable[[float, float, str], Any]:
    async def report(done: float, total: float, text: str) -> None:
        """A client that has gone gets none."""
        await ctx.session.report_progress(done, total, text)

    return report


def _tool(entry: ToolEntry) -> types.Tool:
    texts = TEXTS["tools"][entry.name]
    hints = types.ToolAnnotations(
        title=texts["title"], read_only_hint=entry.is_reading, destructive_hint=False, open_world_hint=False
    )
    return types.Tool(name=entry.name, **texts, input_schema=entry.schema, annotations=hints)


async def _result(answer: Answer, client: ToolClient, *, keeps: bool) -> types.CallToolResult:
    """Facts as JSON, a link to the file, and the file itself where it is wanted and small enough."""
    file, facts, more = answer.file, dict(answer.facts), list[types.ContentBlock]()
    if file is not None:
        facts = {**_place(file, client, keeps=keeps), **facts}
        uri = f"{FILE_URI}{file.name}"
        more.append(types.ResourceLink(uri=uri, name=file.name, mime_type=file.media_type, size=file.size_bytes))
        if answer.has_audio and file.size_bytes > CONTENT_BYTES:
            facts["notice"] = f"the audio has more than {CONTENT_BYTES} bytes: only its link is sent; mp3 takes less"
        elif answer.has_audio:
            data = base64.b64encode(await run_in_threadpool(file.read)).decode("ascii")
            more.append(types.AudioContent(data=data, mime_type=file.media_type))
    text = json.dumps(facts, ensure_ascii=False)
    return types.CallToolResult(content=[types.TextContent(text=text), *more], structured_content=facts)


def _place(file: MadeFile, client: ToolClient, *, keeps: bool) -> dict[str, Any]:
    place = {"path": str(file.path)} if keeps else {"url": f"{client.url}mcp/files/{file.name}"}
    return {"uri": f"{FILE_URI}{file.name}", **place, "media_type": file.media_type, "bytes": file.size_bytes}


def _prompt(name: str) -> types.Prompt:
    entry = PROMPTS[name]
    arguments = [
        types.PromptArgument(name=argument, description=text, required=argument not in entry.optional)
        for argument, text in entry.arguments.items()
    ]
    return types.Prompt(name=name, title=entry.title, description=entry.description, arguments=arguments)


def _failure(error: ProblemError | TickError) -> types.CallToolResult:
    """A problem that the assistant reads."""
    text, document = _told(error)
    return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=document, is_error=True)


def _protocol_error(error: ProblemError | TickError) -> MCPError:
    """A problem of a request that is no tool's: its document is the error's data."""
    text, document = _told(error)
    return MCPError(types.INVALID_PARAMS, text, document)


def _told(error: ProblemError | TickError) -> tuple[str, dict[str, Any]]:
    problem = as_problem(error)
    document = problem.document().model_dump(exclude_none=True)
    return problem_text(document, problem.headers.get("Retry-After", "")), document


async def serve_stdio(service: Service, folder: Path, version: str) -> None:
    """Serve until standard input ends; files are made in `folder`. SIGINT and SIGTERM end the process."""
    tools = open_tools(service, folder)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stopping.set))
    service.start()

    async def serve() -> None:
        server = make_server(tools, version, lambda _: ("", ""))
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    serving, stopped = asyncio.create_task(serve()), asyncio.create_task(stopping.wait())
    # Until the assistant has closed standard input, or a signal.
    await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    await tools.close()
    await service.close()
    if not serving.done():
        os._exit(EXIT_INTERRUPTED)  # a thread waits for standard input, which nothing else ends
    stopped.cancel()
    serving.result()
