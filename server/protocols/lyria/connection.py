"""One WebSocket of a Lyria client: its messages steer a live session, whose audio is sent at a steady pace."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache, partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.websockets import WebSocket, WebSocketDisconnect

from runtime.base.errors import NonFiniteError, RequestError, TickError
from runtime.config.option_ranges import found_outside
from runtime.live.hosting.host import SessionHost
from runtime.live.hosting.inbox import SHARE, timed
from runtime.live.hosting.session_client import SessionClient
from runtime.live.protocol.messages import MAX_MESSAGES_PER_S, Open, Pause, Play
from runtime.live.protocol.server_messages import Closed, Problem, ServerMessage
from runtime.requests.option_types import MAX_PROMPTS
from server.asgi.connection import abort_of, charged_to, first_completed
from server.asgi.shares import RateLimit, client_of
from server.config import KIB
from server.live.connection import CLOSE_CODES as LIVE_CLOSE_CODES
from server.live.connection import MAX_PROBLEMS, OPEN_TIMEOUT_S, PROBLEM_PERIOD_S, has_room, receive
from server.live.incoming import ViolationError
from server.protocols.lyria.audio import AHEAD_S, LEAST_AHEAD_S, AudioStream, Pace
from server.protocols.lyria.messages import (
    MAX_WEIGHTED_PROMPTS,
    ClientContent,
    LyriaPrompt,
    MusicGenerationConfig,
    Playback,
    Setup,
    audio_message,
    message_bytes,
    parse_message,
    source_metadata,
)
from server.service.service import Service

# As Google's servers: 1007 for a message that is none.
CLOSE_CODES = {**LIVE_CLOSE_CODES, "violation": 1007}
MAX_REASON_BYTES = 123
# Messages for a client that does not read, and configurations that are not played yet: older ones are forgotten.
MAX_WAITING, MAX_CONFIGURATIONS = 256, 32


class LyriaConnection:
    """An accepted WebSocket. `run` serves it to its end, which ends its session.

    Raises ProblemError where the server has no live sessions now.
    """

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        pipeline = service.ready_pipeline()
        self._websocket, self._service = websocket, service
        self._host: SessionHost = service.live_host()
        self._text_encoder, self._heard = pipeline.text_encoder, pipeline.bundle.controls.heard
        bpm = pipeline.bundle.controls.bpm
        self._numbers = ["guidance", *(["bpm"] if bpm is not None and bpm.option == "bpm" and not bpm.range else [])]
        model = self._host.model
        self._wake = asyncio.Event()
        self._stream = AudioStream(model.sample_rate_hz, model.channels, self._wake.set, self._take)
        self._client = SessionClient(self._host, self._stream, client_of(websocket.scope))
        self._pace = Pace()
        self._reset_seq = 0
        self._is_playing = False
        self._is_fresh = False  # What plays next does not continue what was played.
        self._prompts, self._config = ClientContent(weighted_prompts=[]), MusicGenerationConfig()
        self._filtered: set[str] = set()
        self._refusal = lru_cache(MAX_WEIGHTED_PROMPTS)(self._find_refusal)
        self._items: list[dict[str, Any]] = []
        self._values = self._heard_config()[1]
        self._metadata = {0: source_metadata(self._prompts, self._config)}  # by seq
        self._outgoing: deque[bytes] = deque()
        self._end: tuple[int, str] | None = None
        self._warnings = RateLimit(MAX_PROBLEMS, PROBLEM_PERIOD_S)

    async def run(self) -> None:
        """Serve until one side closes, or the server drains."""
        ending = asyncio.create_task(self._end_when(self._service.draining))
        receiving = asyncio.create_task(charged_to(self._websocket.scope, self._receive_all))
        tasks = {asyncio.create_task(self._send_all()), receiving}
        try:
            await first_completed(tasks)
        finally:
            ending.cancel()
            self._stream.close()
            if self._client.id:
                self._client.end()
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _end_when(self, draining: asyncio.Event) -> None:
        await draining.wait()
        self._close("shutdown", "the server is shutting down")

    # What the client sends.

    async def _receive_all(self) -> None:
        try:
            await self._open()
            await self._process()
        except WebSocketDisconnect:
            return
        except ViolationError as error:
            self._close(error.reason, error.what)
        except TickError as error:
            self._service.live_metrics.refused.labels(error.code).inc()
            self._close("unavailable" if error.status == 503 else "refused", _sentence(error.what, error.fix))
        await asyncio.Event().wait()

    async def _open(self) -> None:
        """Take the setup. Raises TickError where no session can be opened."""
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                content = parse_message(await receive(self._websocket))
        except TimeoutError:
            raise RequestError(f"no setup within {OPEN_TIMEOUT_S:g} s") from None
        if not isinstance(content, Setup):
            raise ViolationError("The first message is setup.")
        # In a worker thread: the client has the session's id then, so that a cancelled task ends it, too.
        await run_in_threadpool(self._client.open, Open(mode="extend", paused=True, plan=False))
        self._send(setupComplete={})

    async def _process(self) -> None:
        limit = RateLimit(MAX_MESSAGES_PER_S, 1.0)
        while True:
            await has_room(self._host, self._client.id)
            data = await receive(self._websocket)
            await asyncio.sleep(limit.wait_s(1 + len(data) // KIB))
            try:
                await self._handle(parse_message(data))
            except ViolationError:
                raise
            except RequestError as error:
                self._warn(str(error))

    async def _handle(self, content: Setup | ClientContent | MusicGenerationConfig | Playback) -> None:
        match content:
            case Setup():
                raise ViolationError("setup is only in the first message.")
            case ClientContent():
                if not any(prompt.weight for prompt in content.weighted_prompts):
                    raise RequestError("there is no prompt with a weight above 0", field="weightedPrompts")
                self._prompts = content
                self._filtered.clear()
                if sum(prompt.weight > 0 for prompt in content.weighted_prompts) > MAX_PROMPTS:
                    self._warn(f"only the {MAX_PROMPTS} heaviest prompts are played")
                await self._steer()
            case MusicGenerationConfig():
                self._config = self._playable(content)
                await self._steer()
            case "PLAY":
                self._play()
            case "RESET_CONTEXT" if self._is_playing:
                self._reset()
            case _:
                self._hold(is_stop=content != "PAUSE", is_reset=content == "RESET_CONTEXT")

    def _play(self) -> None:
        if self._is_playing:
            return
        if self._is_fresh:
            self._reset()
            self._stream.begin_at(self._reset_seq)
        self._client.post(Play())
        self._is_playing, self._is_fresh = True, False
        self._pace.play()
        self._client.acknowledge()

    def _reset(self) -> None:
        self._reset_seq = self._client.send("reset", {})

    def _hold(self, *, is_stop: bool, is_reset: bool) -> None:
        """PAUSE and STOP; also RESET_CONTEXT while nothing plays."""
        if self._is_playing and not is_reset:
            self._client.post(Pause())
            self._pace.pause()
            self._is_playing = False
        if is_stop:
            self._is_fresh = True
            self._pace.stop()

    async def _steer(self) -> None:
        """Let the session have the prompts and the configuration."""
        words, values = self._heard_config()
        (played, refused), cost_s = await run_in_threadpool(timed, partial(self._chosen, words))
        for text in refused.keys() - self._filtered:
            self._send(filteredPrompt={"text": text, "filteredReason": refused[text]})
        self._filtered |= refused.keys()
        items = [
            {"text": ", ".join([prompt.text, *words]), "weight": prompt.weight / played[0].weight} for prompt in played
        ]
        if words and not played:
            items = [{"text": ", ".join(words)}]
        if values != self._values:
            self._client.send("set", {"values": values})
        if items != self._items:
            self._client.send("prompts", {"items": items})
        self._values, self._items = values, items
        made_with = source_metadata(ClientContent(weighted_prompts=played), self._config)
        self._metadata = dict([*self._metadata.items(), (self._client.seq, made_with)][-MAX_CONFIGURATIONS:])
        await asyncio.sleep(cost_s * (1.0 / SHARE - 1.0))  # a connection may take no more of a thread

    def _playable(self, config: MusicGenerationConfig) -> MusicGenerationConfig:
        """A configuration whose numbers the model can play: Lyria's range is not every model's. Warns of others."""
        changed = dict[str, float]()
        for name in self._numbers:
            value, taken = getattr(config, name), getattr(self._host.model.ranges, name)
            taken = taken.model_copy(update={"type": "integer"}) if name == "bpm" else taken  # as Lyria's
            if value is not None and (nearest := taken.nearest(value)) != value:
                self._warn(f"{name} {found_outside(name, taken, value)}; {nearest:g} is played")
                changed[name] = nearest
        return config.model_copy(update=changed)

    def _heard_config(self) -> tuple[list[str], dict[str, Any]]:
        """The words that prompts get, and all controls that a configuration can set; None: not set."""
        words, options = self._heard(self._config.controls)
        given = {"guidance": self._config.guidance, "seed": self._config.seed, **options}
        return words, {name: value for name, value in given.items() if name not in self._host.model.untaken}

    def _chosen(self, words: list[str]) -> tuple[list[LyriaPrompt], dict[str, str]]:
        """The heaviest prompts that can be played with these words, and why others cannot. In a worker thread."""
        played: list[LyriaPrompt] = []
        refused: dict[str, str] = {}
        for prompt in sorted(self._prompts.weighted_prompts, key=lambda prompt: -prompt.weight):
            if prompt.weight and len(played) < MAX_PROMPTS:
                reason = self._refusal(prompt.text, ", ".join([prompt.text, *words]))
                if reason:
                    refused[prompt.text] = reason
                else:
                    played.append(prompt)
        return played, refused

    def _find_refusal(self, text: str, played: str) -> str:
        """Why a prompt cannot be played, as the text `played`; "" where it can."""
        if self._text_encoder is None:
            return "this model takes no text"
        try:
            if not self._text_encoder.words([text]).understood:
                return "this model understands no word of it"
            num_tokens, limit = self._text_encoder.num_tokens(played), self._text_encoder.spec.max_tokens
        except RequestError as error:
            return error.what
        return f"it is too long: {num_tokens} tokens, this model takes {limit}" if num_tokens > limit else ""

    # What the client gets.

    def _take(self, message: ServerMessage) -> None:
        """What the session reports."""
        if isinstance(message, Problem):
            self._warn(_sentence(message.detail, message.fix))
        elif isinstance(message, Closed):
            self._close(message.reason, f"the session has ended: {message.reason}")

    def _warn(self, text: str) -> None:
        """What was refused changes nothing. A client that goes on and on is disconnected."""
        self._send(warning=text)
        if self._warnings.wait_s() > 0.0:
            self._close("refused", f"more than {MAX_PROBLEMS} warnings in {PROBLEM_PERIOD_S:g} s")

    def _send(self, **members: Any) -> None:
        if len(self._outgoing) < MAX_WAITING:
            self._outgoing.append(message_bytes(**members))
            self._wake.set()
        else:
            self._close("refused", "messages are not read")

    def _close(self, reason: str, text: str) -> None:
        """Close the connection after the messages that wait."""
        cut = text.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        self._end = self._end or (CLOSE_CODES.get(reason, 1000), cut)
        self._wake.set()

    async def _send_all(self) -> None:
        try:
            while self._end is None or self._outgoing:
                self._wake.clear()
                data = self._next()
                if data is None:
                    await self._wait()
                    continue
                async with asyncio.timeout(self._service.settings.send_timeout_s):
                    await self._websocket.send_bytes(data)
            code, reason = self._end
            await self._websocket.close(code, reason)
        except WebSocketDisconnect:
            return
        except TimeoutError:
            self._service.live_metrics.send_timeouts.inc()
            abort_of(self._websocket.scope)(False)

    async def _wait(self) -> None:
        """Until there may be something to send."""
        try:
            async with asyncio.timeout(self._audio_due_s()):
                await self._wake.wait()
        except TimeoutError:
            return

    def _audio_due_s(self) -> float | None:
        """In how many seconds to send audio; None: there is none.

        After a reset, what was made before is only sent where the client would have nothing to play.
        """
        if not self._is_playing or not self._stream.has_chunk:
            return None
        ahead_s = AHEAD_S if self._stream.newest_seq >= self._reset_seq else LEAST_AHEAD_S
        return self._pace.wait_s(ahead_s)

    def _next(self) -> bytes | None:
        """The next message, None while there is none to send."""
        if self._outgoing:
            return self._outgoing.popleft()
        if self._audio_due_s() != 0.0:
            return None
        try:
            seq, pcm = self._stream.read()
        except NonFiniteError as error:
            self._warn(str(error))
            return self._outgoing.popleft()
        finally:
            self._client.acknowledge()
        self._pace.send()
        return audio_message(pcm, self._made_with(seq))

    def _made_with(self, seq: int) -> dict[str, Any]:
        """The prompts and the configuration of a seq; those before it are forgotten."""
        newest = max((known for known in self._metadata if known <= seq), default=min(self._metadata))
        self._metadata = {known: value for known, value in self._metadata.items() if known >= newest}
        return self._metadata[newest]


def _sentence(what: str, fix: str | None) -> str:
    return f"{what}; {fix}" if fix else what
