"""A session's messages in their order, also where audio is encoded, or a source loaded, for one of them first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtime.audio.formats import Latents, Pcm
from runtime.errors import DrainingError, RequestError, TickError
from runtime.sessions.hosting.codec_work import expected
from runtime.sessions.hosting.services import HostServices, Reply, SessionListener
from runtime.sessions.messages import SetReference, WriteAudio

MAX_WAITING_MESSAGES = 256
MAX_WAITING_AUDIO_S = 30.0


@dataclass(frozen=True, eq=False)
class Received:
    """A client's message; `reply` gets None when it was handled, or its error, instead of a Problem.

    sender: the further client that it is of; None: that of the session.
    """

    message: Any
    pcm: Pcm | None
    reply: Reply | None
    sender: SessionListener | None = None

    @property
    def needs_latents(self) -> bool:
        """Whether audio is encoded, or a source loaded, before it can be handled."""
        message = self.message
        return isinstance(message, WriteAudio) or (isinstance(message, SetReference) and message.id is not None)


class MessageQueue:
    """Passes messages on, those that change sound in their order. The host's thread calls all methods.

    write_region: as LiveSession's. handle: takes a message and its latents; refuse: takes one that cannot be handled.
    attempt: as that of HostServices, of this session.
    """

    def __init__(
        self,
        services: HostServices,
        write_region: Callable[[WriteAudio], tuple[int, Latents]],
        handle: Callable[[Received, Latents | None], None],
        refuse: Callable[[Received, TickError], None],
        attempt: Callable[..., Any],
    ) -> None:
        self._services, self._write_region = services, write_region
        self._handle, self._refuse = handle, refuse
        self._done = partial(attempt, self._loaded)
        self._waiting: deque[Received] = deque()

    def put(self, received: Received) -> None:
        """Handle a message, now or after those before it whose latents are being loaded."""
        has_order = hasattr(received.message, "seq")
        if not has_order or not (self._waiting or received.needs_latents):
            self._handle(received, None)
        elif len(self._waiting) >= MAX_WAITING_MESSAGES or self._waiting_s(received) > MAX_WAITING_AUDIO_S:
            self._refuse(received, RequestError("too many messages wait for audio to be encoded", fix="send fewer"))
        else:
            self._waiting.append(received)
            if len(self._waiting) == 1:
                self._load_next()

    def close(self) -> None:
        """The session has ended: refuse what waits."""
        waiting, self._waiting = self._waiting, deque()
        for received in waiting:
            self._refuse(received, DrainingError("the session has ended"))

    def _waiting_s(self, received: Received) -> float:
        """Seconds of audio that wait to be encoded, with those of `received`."""
        samples = sum(len(item.pcm) for item in (*self._waiting, received) if item.pcm is not None)
        return samples / self._services.sample_rate_hz

    def _load_next(self) -> None:
        """Handle waiting messages up to the next one that needs latents, and begin to load those."""
        while self._waiting and not self._waiting[0].needs_latents:
            self._handle(self._waiting.popleft(), None)
        if not self._waiting:
            return
        try:
            work = self._loading(self._waiting[0])
        except RequestError as error:
            self._loaded(error)
        else:
            self._services.codec_work.encode(work, self._done)

    def _loading(self, received: Received) -> Callable[[], Latents]:
        """What loads the latents of a message, in another thread. Raises RequestError."""
        message, pcm = received.message, received.pcm
        if not isinstance(message, WriteAudio):
            return partial(self._services.reference, message.type, message.id)
        if pcm is None:
            raise RequestError("the audio is missing", field="samples")
        return partial(self._services.codec_work.write, message, pcm, *self._write_region(message))

    def _loaded(self, latents: Latents | BaseException) -> None:
        if not self._waiting:
            return  # The session has ended.
        loaded, received = expected(latents), self._waiting.popleft()
        if isinstance(loaded, TickError):
            self._refuse(received, loaded)
        else:
            self._handle(received, loaded)
        self._load_next()
