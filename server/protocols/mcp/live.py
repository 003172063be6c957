"""Live sessions of assistants: time passes only while a passage is recorded, as fast as it is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from starlette.concurrency import run_in_threadpool

from runtime.audio.encoding import AudioWriter
from runtime.audio.formats import FORMATS
from runtime.base.errors import RequestError, TickError, UnknownSessionError
from runtime.base.threads import Workers
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.session_client import SessionClient
from runtime.live.protocol.messages import Open, client_message
from runtime.live.protocol.server_messages import Plan, Ready
from server.asgi.problems import ProblemError, unavailable
from server.asgi.shares import Shares
from server.asgi.turns import run_to_end
from server.protocols.mcp.files import FileStore, MadeFile
from server.protocols.mcp.work import ToolClient, ToolProgress
from server.routes.generation_stream import append_bytes
from server.service.service import Service
from tickrt.receiver import Receiver

# A session that no tool has used for so long ends.
IDLE_S = 600.0
# Until a session answers; until what follows an answer, such as a plan, is there.
ANSWER_S, FOLLOWING_S, POLL_S = 10.0, 5.0, 0.02
# How far the start of a section may be from what was asked.
PLAN_S = 0.1
CHUNK_S = 0.5
# Passages that are recorded at a time, each in a thread.
MAX_RECORDING = 4
HEADER_BYTES = 64 * 1024


class AssistantSession(SessionClient[Receiver]):
    """One session. Its time is that of the audio which was read. Event loop's thread, but for `open` and `read`."""

    def __init__(self, host: SessionHost, client: str) -> None:
        super().__init__(host, Receiver(host.model.sample_rate_hz, host.model.channels), client)
        self.is_recording = False

    @property
    def plan(self) -> Plan | None:
        """Its plan; None where it has none, or none yet."""
        return self.listener.plan

    def check_plan(self) -> None:
        """Raises RequestError where it has none."""
        if self.listener.ready.result().plan is None:
            fix = "open one with mode extend, of a model that plans"
            raise RequestError("the session has no plan", field="session", fix=fix)

    def texts(self) -> set[str]:
        """The texts of which it is known what is played."""
        return {words.text for words in self.listener.words}

    def words(self) -> list[dict[str, Any]]:
        """What of its prompts is played, and which of their words are not known."""
        named = ("text", "plays", "unknown", "near")
        told = (words.model_dump(include=set(named)) for words in self.listener.words)
        return [{name: words[name] for name in named if words[name] or name == "text"} for words in told]

    async def handled(self, kind: str, members: Mapping[str, Any]) -> None:
        """Send a change, and wait until it is handled. Raises RequestError and other TickErrors, ProblemError."""
        change = self.change(kind, members)
        try:
            # Until the host's thread has handled the message.
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(change)), ANSWER_S)
        except TimeoutError:
            raise unavailable("busy", "the session does not answer now") from None
        except TickError as error:
            raise _as_told(error) from None

    async def following(self, is_there: Callable[[], bool]) -> None:
        """Wait a little for what follows a message."""
        for _ in range(round(FOLLOWING_S / POLL_S)):
            if is_there():
                return
            await asyncio.sleep(POLL_S)

    def has_planned(self, start_s: float, kind: str) -> bool:
        """Whether a section of this kind begins there."""
        sections = () if self.plan is None else self.plan.sections
        return any(abs(item.start_s - start_s) < PLAN_S and item.kind == kind for item in sections)

    def read(self, samples: int) -> Any:
        """The next samples `[n, channels]`, at most so many; blocks. Raises the session's error instead."""
        pcm = self.listener.read(samples)
        self.acknowledge()
        return pcm


def _as_told(error: TickError) -> TickError:
    """An error with its fix in the words of tools."""
    if error.fix == "wait for the message plan":
        error.fix = "ask for the plan again with live_plan"
    return error


class AssistantSessions:
    """The live sessions that assistants have opened, by id, each until it ends or was not used for IDLE_S."""

    def __init__(self, service: Service, files: FileStore) -> None:
        self._service, self._files = service, files
        self._sessions: dict[str, AssistantSession] = {}
        self._idle: dict[str, asyncio.TimerHandle] = {}
        self._recording = Shares("records passages", MAX_RECORDING, service.client_share)
        self._threads = Workers(MAX_RECORDING, "mcp-live", waits=True)
        service.threads.append(self._threads)

    def close(self) -> None:
        """End them."""
        for session_id in list(self._sessions):
            self.end(session_id, "shutdown")
        self._threads.shutdown(wait=False)

    async def open(self, members: Mapping[str, Any], client: ToolClient) -> tuple[AssistantSession, Ready]:
        """Open a session; cancelled, it leaves none. Raises ProblemError, RequestError, SessionsFullError."""
        host = self._service.live_host()
        message = client_message({"type": "open", **members, "format": "f32"})
        assert isinstance(message, Open)
        session = AssistantSession(host, client.address)
        try:
            await run_to_end(self._threads.submit(session.open, message))
            session.acknowledge()
            # Until the host's thread has opened it.
            ready = await asyncio.wait_for(asyncio.wrap_future(session.listener.ready), ANSWER_S)
        except TimeoutError:
            session.end("no answer")
            raise unavailable("busy", "the session does not answer now") from None
        except asyncio.CancelledError:
            session.end("cancelled")
            raise
        self._sessions[session.id] = session
        self._touch(session)
        return session, ready

    def get(self, session_id: object) -> AssistantSession:
        """A session that is open. Raises UnknownSessionError."""
        session = self._sessions.get(session_id) if isinstance(session_id, str) else None
        if session is None or session.listener.ended:
            if session is not None:
                self.end(session.id, "ended")
            why = f"it has ended: {session.listener.ended}" if session is not None else "no tool has opened it"
            raise UnknownSessionError(f"there is no session {session_id!r:.40}: {why}", fix="open one with live_open")
        self._touch(session)
        return session

    def with_plan(self) -> list[str]:
        """The ids of those that have a plan."""
        return [session.id for session in self._sessions.values() if session.plan is not None]

    def end(self, session_id: str, reason: str) -> None:
        """End a session."""
        session, idle = self._sessions.pop(session_id, None), self._idle.pop(session_id, None)
        if idle is not None:
            idle.cancel()
        if session is not None:
            session.end(reason)

    def _touch(self, session: AssistantSession) -> None:
        if (before := self._idle.pop(session.id, None)) is not None:
            before.cancel()
        self._idle[session.id] = asyncio.get_running_loop().call_later(IDLE_S, self.end, session.id, "not used")

    async def record(
        self, session: AssistantSession, seconds: float, file_format: str, client: ToolClient, progress: ToolProgress
    ) -> MadeFile:
        """The next `seconds` of a session as a file. Raises ProblemError, TickError; nothing of the file stays then."""
        if session.is_recording:
            raise ProblemError(
                409, "already_recording", "a passage of this session is being recorded", fix="wait for it"
            )
        service, host = self._service, self._service.live_host()
        rate_hz, channels = host.model.sample_rate_hz, host.model.channels
        samples = round(seconds * rate_hz)
        writer = AudioWriter(file_format, rate_hz, channels, total_samples=samples)
        name, from_s = self._files.new_name("passage", FORMATS[file_format].suffix), round(session.position_s, 3)
        progress.total = seconds
        with ExitStack() as stack:
            stack.enter_context(service.admission.limit_client(client.address))
            stack.enter_context(self._recording.hold(client.address))
            room = stack.enter_context(self._files.room(client.address, HEADER_BYTES + 2 * channels * samples))
            stack.callback(self._files.discard, name)
            session.is_recording = True
            stack.callback(setattr, session, "is_recording", False)
            while writer.samples < samples:
                await self._record_part(session, min(samples - writer.samples, round(CHUNK_S * rate_hz)), writer, name)
                progress.done = writer.samples / rate_hz
                progress.text = f"recorded {progress.done:.1f} s of {seconds:g} s"
                self._touch(session)
            await run_in_threadpool(append_bytes, self._files.path_of(name), writer.close())
            facts = {"session": session.id, "from_s": from_s, "to_s": round(session.position_s, 3), "seconds": seconds}
            return self._files.add(name, FORMATS[file_format].media_type, room, facts, {})

    async def _record_part(self, session: AssistantSession, samples: int, writer: AudioWriter, name: str) -> None:
        """Read and write what follows, in a thread. A session that makes no audio for too long ends."""
        path, timeout_s = self._files.path_of(name), self._service.settings.queue_timeout_s

        def record() -> None:
            append_bytes(path, writer.write(session.read(samples)))

        end = asyncio.get_running_loop().call_later(timeout_s, session.end, "it made no audio in time")
        try:
            await run_to_end(self._threads.submit(record))
        finally:
            end.cancel()
