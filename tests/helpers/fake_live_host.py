"""A host of live sessions without sessions: records what it is called with; the test speaks for the session."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from helpers.live_clients import ready

from runtime.base.errors import TickError, UnknownSessionError
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import SetControls
from runtime.live.protocol.server_messages import Closed

RATE_HZ = 48_000
CHANNELS = 2


def chunk(start: int = 0, samples: int = 960, epoch: int = 1, **flags: Any) -> AudioChunk:
    """Audio at half of full scale."""
    return AudioChunk(epoch, start, np.full((samples, CHANNELS), 0.5, np.float32), **flags)


@dataclass
class FakeHost:
    """`refusal` is raised by open and resume, `wrong` by post; `waiting` is what `room` gives."""

    refusal: TickError | None = None
    wrong: TickError | None = None
    listeners: list[Any] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)
    posted: list[Any] = field(default_factory=list)
    detached: list[Any] = field(default_factory=list)
    waiting: Future[None] | None = None

    def open(self, message: Any, listener: Any, client: str = "") -> str:
        if self.refusal is not None:
            raise self.refusal
        self.opened.append((message, client))
        self.listeners.append(listener)
        listener.on_message(ready(format=message.format, sample_rate_hz=RATE_HZ, channels=CHANNELS))
        return "one"

    def resume(self, session: str, token: str, listener: Any, client: str = "") -> str:
        if token != "token":
            raise UnknownSessionError("there is no such session")
        self.listeners.append(listener)
        listener.on_message(ready(session=session, sample_rate_hz=RATE_HZ, channels=CHANNELS))
        return session

    def post(self, session: str, message: Any, pcm: Any = None) -> None:
        if self.wrong is not None and isinstance(message, SetControls):
            raise self.wrong
        self.posted.append((message, pcm))

    def room(self, session: str) -> Future[None] | None:
        return self.waiting

    def hand_over(self, session: str) -> None:
        self.listeners[-1].on_message(Closed(reason="moved", resumable=True))

    def detach(self, session: str, listener: Any) -> None:
        self.detached.append((session, listener))
