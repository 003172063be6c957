"""Further clients of a session: they change what it plays, and receive what other clients have changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from runtime.base.errors import TickError
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import ClientMessage
from runtime.live.protocol.server_messages import Changed, Closed, ServerMessage, State

P = ParamSpec("P")
T = TypeVar("T")
Values = Mapping[str, Any]
# The values of a session -> a message that changes them, or None. On the host's thread; raises RequestError.
Change = Callable[[Values], ClientMessage | None]
logger = logging.getLogger("tickrt.sessions")


class SessionListener(Protocol):
    """A session's client. Called on the host's thread, at the end on the store's; must not block."""

    def on_message(self, message: ServerMessage) -> None:
        """A message to the client."""

    def on_audio(self, chunk: AudioChunk) -> None:
        """Audio to the client."""


class FurtherListener(SessionListener, Protocol):
    """A further client's. client: who it is; what has the same one waits in one order, and is in its turn as one."""

    client: str


class Controllers:
    """What each client of one session still has to receive. The host's thread calls all methods.

    A further client's failure ends that client alone.

    values: of the session, as they are now.
    """

    def __init__(self, values: Callable[[], dict[str, Any]]) -> None:
        self._values = values
        self._known: dict[str, Any] = {}
        self._waiting: dict[SessionListener, dict[str, Any]] = {}
        self._waiting_for_client: dict[str, Any] = {}

    def join(self, listener: SessionListener) -> None:
        """Add a client; it gets all values."""
        self._known = self._values()
        self._waiting[listener] = {}
        self.attempt(listener, listener.on_message, Changed(values=self._known))

    def leave(self, listener: SessionListener) -> None:
        """Remove a client."""
        self._waiting.pop(listener, None)
        if not self._waiting:
            self._known = {}

    def attempt(self, listener: SessionListener, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T | None:
        """Call what is a further client's; where that fails, this client leaves. Raises TickError."""
        try:
            return call(*given, **named)
        except TickError:
            raise
        except BaseException:  # also a panic of native code
            logger.exception("a further client of a session has failed and gets nothing more")
            self.leave(listener)
            return None

    def watch(self, values: dict[str, Any]) -> None:
        """A client is about to change something: the values as they are before that."""
        self._known = self._known or values

    def note(self, sender: SessionListener | None, *, tells_all: bool = False) -> None:
        """A client has changed something; None: the one that the session was opened by. tells_all: also the sender."""
        if not self._known:
            return
        before, self._known = self._known, self._values()
        changed = {name: value for name, value in self._known.items() if value != before.get(name, ...)}
        for listener, waiting in self._waiting.items():
            if tells_all or listener is not sender:
                waiting.update(changed)
        if tells_all or sender is not None:
            self._waiting_for_client.update(changed)

    def send(self, client: SessionListener | None) -> None:
        """Send each what others have changed. client: the one that the session was opened by, where it is connected."""
        for listener, waiting in [*self._waiting.items(), (client, self._waiting_for_client)]:
            if not waiting or listener is None:
                waiting.clear()
                continue
            changed = Changed(values=dict(waiting))
            waiting.clear()
            if listener is client:
                listener.on_message(changed)
            else:
                self.attempt(listener, listener.on_message, changed)

    def tell(self, message: State) -> None:
        """Send all further clients the state."""
        for listener in list(self._waiting):
            self.attempt(listener, listener.on_message, message)

    def close(self, message: Closed) -> None:
        """The session has ended."""
        listeners, self._waiting = list(self._waiting), {}
        for listener in listeners:
            self.attempt(listener, listener.on_message, message)
