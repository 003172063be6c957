"""The clients of one session: what they want of it, and what each is told of what others change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Protocol, TypeVar

from runtime.base.errors import InternalError, RequestError, TickError
from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.control_times import ControlTimes
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import MAX_SEQ, Ack, ClientMessage, Reply, SetReference, WriteAudio, seq_in
from runtime.live.protocol.server_messages import Applied, Changed, Closed, ServerMessage, State, problem_of
from runtime.live.session.live_session import LiveSession

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


@dataclass(frozen=True, eq=False)
class Received:
    """A client's message; `reply` gets None when it was handled, or its error, instead of a Problem.

    sender: the further client that it is of; None: that of the session. change: makes the message of the session's
    values when its turn comes. call: in place of a message, what else there is to do, such as connecting a client.
    losses: what of the source that it names could not be decoded.
    """

    message: Any = None
    pcm: Pcm | None = None
    reply: Reply | None = None
    sender: FurtherListener | None = None
    change: Change | None = None
    call: Callable[[], None] | None = None
    losses: tuple[str, ...] = ()

    @property
    def client(self) -> str:
        """Whose turn it takes."""
        return "" if self.sender is None else self.sender.client

    @property
    def has_order(self) -> bool:
        """Whether it waits for messages before it that need latents."""
        return self.change is not None or hasattr(self.message, "seq")

    @property
    def needs_latents(self) -> bool:
        """Whether audio is encoded, or a source loaded, before it can be handled."""
        message = self.message
        return isinstance(message, WriteAudio) or (isinstance(message, SetReference) and message.id is not None)


class ClientMessages:
    """Gives a session what its clients want, each with the numbers of its own.

    clock: the session's time. send: sends the session's client a message. change: lets the session be advanced next.
    is_steered: something was changed that has not begun yet. is_steered_by_further: further clients have a part in it.
    """

    def __init__(
        self,
        session: LiveSession,
        clock: Callable[[], float],
        controllers: Controllers,
        times: ControlTimes,
        send: Callable[[ServerMessage], None],
        change: Callable[[], None],
    ) -> None:
        self.session, self.is_steered, self.is_steered_by_further = session, False, False
        self._clock, self._send, self._change = clock, send, change
        self._controllers, self._times = controllers, times

    def resolved(self, received: Received) -> Received | None:
        """What waits with the message, if any, that a further client makes of the values as they are now."""
        if received.change is None or received.sender is None:
            return received
        values = self.session.values()
        self._controllers.watch(values)
        message = self._controllers.attempt(received.sender, received.change, values)
        return None if message is None else replace(received, message=message)

    def handle(self, received: Received, latents: Latents | None = None) -> None:
        """Handle a message with the latents that it needs."""
        try:
            message = self._numbered(received)
            self.session.handle(message, self._clock(), latents)
            if received.sender is not None and (seq := seq_in(message)) is not None:
                self.session.client_seqs.add(seq)
            self._controllers.note(received.sender)
            self._times.receive(message)
            self._tell_losses(received, message)
        except RequestError as error:
            self.refuse(received, error)
            return
        except BaseException:
            if received.reply is not None:
                received.reply(InternalError("the session has failed"))
            raise
        if received.reply is not None:
            received.reply(None)
        if not isinstance(received.message, Ack):  # Those come often, and only make the session due.
            self.is_steered = True
            self.is_steered_by_further = self.is_steered_by_further or received.sender is not None
            self._change()

    def refuse(self, received: Received, error: TickError) -> None:
        """Say why a message is not handled."""
        if received.reply is not None:
            received.reply(error)
        elif received.sender is not None:
            self._controllers.attempt(received.sender, received.sender.on_message, problem_of(error))
        else:
            self._send(problem_of(error, getattr(received.message, "seq", None)))

    def _tell_losses(self, received: Received, message: ClientMessage) -> None:
        """Tell who has named a source what of it could not be decoded, and the session's client."""
        if received.losses and (seq := seq_in(message)) is not None:
            applied = Applied(seq=seq, losses=list(received.losses))
            if received.sender is not None:
                self._controllers.attempt(received.sender, received.sender.on_message, applied)
            elif (of_client := self.session.client_seqs.of_message(applied)) is not None:
                self._send(of_client)

    def _numbered(self, received: Received) -> ClientMessage:
        """The message with the session's seq in place of the client's. Raises RequestError."""
        message: ClientMessage = received.message
        if (client_seq := seq_in(message)) is None:
            return message
        seqs = self.session.client_seqs
        seq = seqs.number(client_seq) if received.sender is None else self.session.next_seq
        if seq > MAX_SEQ:
            raise RequestError("the session has no numbers left", field="seq", fix="open a new session")
        return message if seq == client_seq else message.model_copy(update={"seq": seq})
