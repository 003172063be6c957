"""A client of a session: it opens it, numbers its changes, and says what of its audio was taken, which is its time."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from runtime.base.errors import TickError
from runtime.config.codec import Pcm
from runtime.live.hosting.clients import SessionListener
from runtime.live.hosting.services import Clock
from runtime.live.playback.audio_ring import AudioRing
from runtime.live.protocol.messages import Ack, ClientMessage, Open, Reply, parse_client_message

# What is generated again after these unless they say when; until then what is read is not faster than real time.
PACED = ("set", "prompts", "source", "structure", "timbre", "adapter", "reset")


class SessionProvider(Protocol):
    """Where sessions run: a host in this process, or servers."""

    def open(self, message: Open, listener: Any, client: str = "", clock: Clock | None = None) -> str:
        """Open a session for a listener of its kind; returns its id. May block."""

    def post(self, session_id: str, message: ClientMessage, pcm: Pcm | None = None, reply: Reply | None = None) -> None:
        """Pass on a message; `reply` gets the error, or None. Without it an error is a Problem to the listener."""

    def end(self, session_id: str, reason: str) -> None:
        """End a session."""


class Hearing(SessionListener):
    """A listener whose client takes audio from `ring`."""

    ring: AudioRing

    def expect(self, seq: int) -> None:
        """A change is sent that will be heard as soon as it is made."""

    def forget(self, seq: int) -> None:
        """It was refused."""


L = TypeVar("L", bound=Hearing)


class SessionClient(Generic[L]):
    """The client of one session that is open between `open` and `end`. Any thread, but for `open`, which comes first.

    listener: what the session sends. client: its address, where limits count by it. id: of the session; "" before it is
    open. seq: the number of the newest change.
    """

    def __init__(self, sessions: SessionProvider, listener: L, client: str = "") -> None:
        self.listener = listener
        self.id, self.seq = "", 0
        self._sessions, self._client = sessions, client
        # Held from the choice of a number until its message is posted, so that messages go in the order of numbers.
        self._sending = threading.Lock()

    def open(self, message: Open) -> None:
        """Open the session; may block, and raises what `SessionProvider.open` raises."""
        self.id = self._sessions.open(message, self.listener, self._client, lambda: self.position_s)

    def end(self, reason: str = "closed") -> None:
        """End the session."""
        self._sessions.end(self.id, reason)

    @property
    def position_s(self) -> float:
        """How much of the session's audio was taken, in seconds; where it has moved on, from its beginning on."""
        return self.listener.ring.playhead_sample / self.listener.ring.sample_rate_hz

    def acknowledge(self) -> None:
        """Say what was taken."""
        ring = self.listener.ring
        self.post(Ack(playhead_sample=ring.playhead_sample, worst_lead_s=ring.take_worst_lead_s()))

    def post(self, message: ClientMessage) -> None:
        """Send a message that has no number."""
        self._sessions.post(self.id, message)

    def send(
        self, kind: str, members: Mapping[str, Any], pcm: Pcm | None = None, handled: Future[None] | None = None
    ) -> int:
        """Send a change; returns its number. handled: done once it is, without it an error is a Problem.

        Raises RequestError where a member is wrong.
        """
        with self._sending:
            self.seq = seq = self.seq + 1
            message = parse_client_message(json.dumps({"type": kind, "seq": seq, **members}))
            if kind in PACED and members.get("at") is None:
                self.listener.expect(seq)
            self._sessions.post(self.id, message, pcm, None if handled is None else partial(self._note, seq, handled))
        return seq

    def change(self, kind: str, members: Mapping[str, Any], pcm: Pcm | None = None) -> Future[None]:
        """Send a change; done once it is handled, with the TickError that it is refused by. Raises RequestError."""
        handled: Future[None] = Future()
        self.send(kind, members, pcm, handled)
        return handled

    def _note(self, seq: int, handled: Future[None], error: TickError | None) -> None:
        if error is None:
            handled.set_result(None)
        else:
            self.listener.forget(seq)
            handled.set_exception(error)
