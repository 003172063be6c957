"""Live sessions on servers: one goes on at the next address when its server ends, freezes or hands it over."""

from __future__ import annotations

import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from http.client import HTTPException
from itertools import count
from os import PathLike
from pathlib import Path
from typing import Literal, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from runtime.base.errors import DrainingError, RequestError, TickError
from runtime.base.files import open_file, warn_of_losses
from runtime.config.codec import Pcm
from runtime.live.hosting.services import Clock
from runtime.live.protocol.backoff import backoff_s
from runtime.live.protocol.frames import decode_chunk
from runtime.live.protocol.messages import SUBPROTOCOL, Ack, ClientMessage, Close, EventKind, Open, ReferenceKind, Reply
from runtime.live.protocol.server_messages import (
    Closed,
    Problem,
    Ready,
    ServerMessage,
    message_text,
    parse_server_message,
)
from runtime.requests.prompt_words import PromptWords
from tickrt.audio import Audio
from tickrt.connections import Connection
from tickrt.live import CHUNK_S, Live, open_message
from tickrt.options import Blend, Controls, Prompt, Source
from tickrt.receiver import Receiver, error_of

CONNECT_S, CLOSE_S, UPLOAD_S = 5.0, 1.0, 60.0
# A server that plays says something several times a second; one that is silent for so long is frozen or cut off.
SILENCE_S, ACK_S = 3.0, 0.5
FIRST_RETRY_S, LONGEST_RETRY_S, JITTER_S = 0.05, 2.0, 0.1
# For how long a session is looked for that no server has: it may be kept for longer, for clients that sleep.
RESUME_S = 60.0
MAX_MESSAGE_BYTES = 2**24
TAKEN = "taken"


class TickRT:
    """Servers of one model, which share their live sessions: the addresses "http://host:8000" of one or more of them.

    key: the API key, where they need one. Raises RequestError without an address, or where no server can have the key.
    """

    def __init__(self, urls: str | Sequence[str], *, key: str = "") -> None:
        self._urls = [url.rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]
        self._key = key
        if not self._urls or not all(url.startswith(("http://", "https://")) for url in self._urls):
            raise RequestError("expected addresses such as http://127.0.0.1:8000", field="urls")
        if not (key.isascii() and key.isprintable()):
            raise RequestError("has characters that no header can carry", field="key", fix="give the server's API key")

    def live(
        self,
        prompts: Prompt = "",
        *,
        mode: Literal["loop", "extend"] = "loop",
        seconds: float | None = None,
        blend: Blend = "velocity",
        source: Source | None = None,
        source_strength: float | None = None,
        slots: int = 2,
        plan: bool | None = None,
        chunk_s: float = CHUNK_S,
        events: Sequence[EventKind] = (),
        **controls: Unpack[Controls],
    ) -> Live:
        """Open a live session, as Model.live() does; what is wrong with a later change is raised by the next read().

        source: a file. Where a connection is lost the session is resumed at the next address, and the audio goes on at
        its sample. Raises RequestError, and the error of the last address where none opens it.
        """
        message = open_message(
            prompts,
            controls,
            mode=mode,
            seconds=seconds,
            blend=blend,
            source_strength=source_strength,
            slots=slots,
            plan=plan,
            events=list(events),
            format="f32",
        )
        session = RemoteSession(self._urls, self._key, message, source)
        return Live(session, message, chunk_s, self)


class RemoteSession:
    """The connection of one session: a thread receives, and resumes it elsewhere after a loss.

    The session's only receiver is the one that it is opened with.
    """

    def __init__(self, urls: Sequence[str], key: str, message: Open, source: Source | None = None) -> None:
        self._urls, self._headers = list(urls), {"Authorization": f"Bearer {key}"} if key else {}
        self._connection = ExitStack()
        self._ready, self._socket = self._open_anywhere(message, source)
        self.sample_rate_hz, self.channels = self._ready.sample_rate_hz, self._ready.channels
        self._end_sample = self._ready.next_sample
        self._receiver: Receiver
        self._is_connected, self._is_ended = threading.Event(), threading.Event()
        self._is_connected.set()
        self._has_given_up = False  # A server that was asked to resume the session and did not answer may still do so.
        self._thread = threading.Thread(target=self._run, name="tickrt-live", daemon=True)

    # What Live calls.

    def open(self, message: Open, receiver: Receiver, client: str = "", clock: Clock | None = None) -> str:
        """Begin to receive. Returns the session's id. Its time is what is acknowledged."""
        self._receiver = receiver
        receiver.on_message(self._ready)
        self._thread.start()
        return self._ready.session

    def post(self, session_id: str, message: ClientMessage, pcm: Pcm | None = None, reply: Reply | None = None) -> None:
        """Send a message; one that changes something waits for a connection. `reply` gets None once it is sent."""
        if isinstance(message, Ack):
            self._acknowledge(message)
            return
        while not self._is_ended.is_set():
            # Until the thread that receives has a connection again; ACK_S, then whether the session has ended.
            if self._is_connected.wait(ACK_S) and self._send(message, pcm):
                break
        if reply is not None:
            reply(DrainingError("the session has ended") if self._is_ended.is_set() else None)

    def end(self, session_id: str, reason: str = "closed") -> None:
        """End the session: wait a little for the server's word, as it may not read after it cannot send any more."""
        self._is_ended.set()  # First: a connection that is being resumed is closed then.
        self._send(Close())
        if threading.current_thread() is not self._thread:
            # Until the server's last message has arrived.
            self._thread.join(CLOSE_S)
        self._connection.close()

    def add_source(self, kind: ReferenceKind, source: Source, sample_rate_hz: int | None) -> str:
        """Upload a file to the server that plays; returns its id. Raises RequestError."""
        if not isinstance(source, str | PathLike):
            raise RequestError(
                "a session on a server takes files", field="source", fix="save the audio and name the file"
            )
        try:
            with open_file(Path(source)) as file:
                headers = {**self._headers, "Content-Length": str(os.fstat(file.fileno()).st_size)}
                request = urllib.request.Request(f"{self._urls[0]}/v1/sources", file, headers)
                with urllib.request.urlopen(request, timeout=UPLOAD_S) as response:
                    card = from_json(response.read(MAX_MESSAGE_BYTES))
                    warn_of_losses(source, map(str, card.get("losses", ())))
                    return str(card["id"])
        except urllib.error.HTTPError as error:
            raise RequestError(_detail(error), field="source") from None
        except (OSError, HTTPException) as error:
            raise RequestError(f"the file was not uploaded: {error}", field="source") from None
        except (ValueError, LookupError, TypeError):
            what = f"{self._urls[0]} answers something else than the id of a source"
            raise RequestError(what, field="source") from None

    def remove_source(self, source_id: str | None) -> None:
        """Uploaded sources stay where they are."""

    def words(self, texts: Sequence[str], negative: str) -> PromptWords:
        """Which words of the prompts and the negative prompt are understood, as the server said last."""
        known = self._receiver.words
        return PromptWords(
            tuple(phrase for words in known for phrase in words.understood),
            tuple(phrase for words in known for phrase in words.unknown),
            {word: tuple(near) for words in known for word, near in words.near.items()},
        )

    def audio(self, pcm: NDArray[np.float32], seed: int, prompt_words: PromptWords) -> Audio:
        """PCM of the session as an Audio, without latents."""
        canvas = self._ready.canvas
        latents = np.empty((0, canvas.channels), np.float32)
        return Audio(
            latents, canvas.frame_rate_hz, self.sample_rate_hz, seed, {}, ("", ""), pcm, prompt_words=prompt_words
        )

    # Connections. `_urls[0]` is the address that is used, or tried next.

    def _open_anywhere(self, message: Open, source: Source | None) -> tuple[Ready, Connection]:
        """Open the session at the first address that takes it, and its source. Raises the error of the last one."""
        error: TickError = DrainingError("no server was asked")
        asked: set[str] = set()
        while self._urls[0] not in asked:
            asked.add(self._urls[0])
            try:
                if source is not None:
                    uploaded = self.add_source("source", source, None)
                    message = message.model_copy(update={"source_id": uploaded})
                return self._open("/v1/live", message)
            except RequestError:
                raise
            except TickError as refused:
                error = refused
                self._turn()
        raise error

    def _open(self, path: str, message: Open) -> tuple[Ready, Connection]:
        """Connect to `_urls[0]` and wait for `ready`; a server that names another one is followed. Raises TickError."""
        self._connection.close()
        try:
            socket = self._connection.enter_context(self._connect(path))
            socket.send(message_text(message))
            answer = parse_server_message(socket.recv(CONNECT_S))
            if isinstance(answer, Ready):
                self._urls += [url for url in answer.edges if url not in self._urls]
                return answer, socket
        except InvalidStatus as error:
            kind = RequestError if error.response.status_code in (401, 403) else DrainingError
            raise kind(f"{self._urls[0]} answers {error.response.status_code}") from None
        except (OSError, TimeoutError, EOFError, InvalidHandshake, WebSocketException) as error:
            raise DrainingError(f"{self._urls[0]} does not answer: {error or type(error).__name__}") from None
        if not isinstance(answer, Problem):
            raise DrainingError(f"{self._urls[0]} answers {answer.type}, expected ready")
        with suppress(WebSocketException, TimeoutError):
            closed = parse_server_message(socket.recv(CONNECT_S))
            self._follow(closed.url if isinstance(closed, Closed) else None)
        raise error_of(answer)

    def _connect(self, path: str) -> Connection:
        return Connection(
            f"ws{self._urls[0].removeprefix('http')}{path}",
            headers=self._headers,
            subprotocol=SUBPROTOCOL,
            open_s=CONNECT_S,
            close_s=CLOSE_S,
            max_bytes=MAX_MESSAGE_BYTES,
        )

    def _turn(self) -> None:
        """Use the next address. Other threads read the list: there is always one in it."""
        self._urls = [*self._urls[1:], self._urls[0]]

    def _follow(self, url: str | None) -> None:
        """Try the address that a server names next, after the one in use."""
        if url is not None:
            self._urls = [self._urls[0], url, *(other for other in self._urls[1:] if other != url)]

    def _run(self) -> None:
        for generation in count():
            if generation and not self._resume():
                return
            try:
                if self._receive():
                    return
            except RequestError as error:
                self._finish(TickError(f"{self._urls[0]} sends what this version does not know: {error}"))
                return
            except (WebSocketException, OSError, EOFError):
                pass
            self._is_connected.clear()
            if self._is_ended.is_set():
                return
            self._turn()

    def _resume(self) -> bool:
        """Connect to one address after the other; whether the session goes on. Its receiver gets the error if not."""
        until_s = time.monotonic() + min(self._ready.limits.keep_s, RESUME_S)
        for attempt in count():
            # Until the next attempt, or the end of the session.
            if self._is_ended.wait(retry_delay_s(attempt, len(self._urls))):
                return False
            try:
                opening = Open(resume=self._ready.resume_token)
                ready, self._socket = self._open(f"/v1/live/{self._ready.session}", opening)
                break
            except TickError as error:
                if error.status != DrainingError.status or time.monotonic() > until_s:
                    self._finish(error)
                    return False
                self._has_given_up = True
            self._turn()
        if self._is_ended.is_set():
            self._send(Close())
            self._connection.close()
            return False
        self._end_sample = ready.next_sample
        self._receiver.on_message(ready)
        self._is_connected.set()
        return True

    def _receive(self) -> bool:
        """Pass on what arrives; whether the session has ended. Raises what a connection raises that is lost."""
        heard_s = time.monotonic()
        while True:
            try:
                data = self._socket.recv(ACK_S)
            except TimeoutError:
                if time.monotonic() > heard_s + SILENCE_S:
                    raise
                data = None
            if isinstance(data, bytes):
                chunk = decode_chunk(data, self.sample_rate_hz, self.channels)
                self._end_sample = max(self._end_sample, chunk.end_sample)
                self._receiver.on_audio(chunk)
                if self._end_sample <= self._receiver.ring.playhead_sample:  # of before the loss: it has been played
                    self._acknowledge(Ack(playhead_sample=self._end_sample))
            elif data is not None and (closed := self._take(parse_server_message(data))) is not None:
                return closed
            if data is None:
                self._acknowledge(Ack(playhead_sample=self._receiver.ring.playhead_sample))
            else:
                heard_s = time.monotonic()

    def _take(self, message: ServerMessage) -> bool | None:
        """Whether the session has ended, or is to be resumed; None where the connection goes on."""
        if isinstance(message, Closed):
            if message.resumable or (message.reason == TAKEN and self._has_given_up):
                self._has_given_up = False
                self._follow(message.url)
                return False
            self._finish(DrainingError(f"the session has ended: {message.reason}"))
            return True
        self._receiver.on_message(message)
        return None

    def _acknowledge(self, ack: Ack) -> None:
        """Acknowledge no more than this connection has brought: what was played before the loss comes again first."""
        self._send(ack.model_copy(update={"playhead_sample": min(ack.playhead_sample, self._end_sample)}))

    def _finish(self, error: TickError) -> None:
        self._is_ended.set()
        self._receiver.fail(error)

    def _send(self, message: ClientMessage, pcm: Pcm | None = None) -> bool:
        try:
            self._socket.send(message_text(message))
            if pcm is not None:
                self._socket.send(np.ascontiguousarray(pcm, "<f4").tobytes())
        except (WebSocketException, OSError):
            return False
        return True


def _detail(error: urllib.error.HTTPError) -> str:
    """What a server says of an error; an edge's answer is no problem document."""
    try:
        with error:
            return str(from_json(error.read(MAX_MESSAGE_BYTES))["detail"])
    except (ValueError, LookupError, TypeError):
        return str(error)


def retry_delay_s(attempt: int, num_addresses: int) -> float:
    """How long to wait before an attempt to resume: a little at the first time that each address is tried, then longer.

    It is random, so that the listeners of a server that has ended do not all come to another one at once.
    """
    rounds = attempt // num_addresses
    if not rounds:
        return random.uniform(0.0, JITTER_S)
    return backoff_s(rounds, FIRST_RETRY_S, LONGEST_RETRY_S) * random.uniform(0.5, 1.5)
