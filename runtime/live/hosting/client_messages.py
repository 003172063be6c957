"""What clients want of one session, handled on the host's thread: messages, answers, problems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from runtime.base.errors import InternalError, RequestError, TickError
from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.control_times import ControlTimes
from runtime.live.hosting.controllers import Change, Controllers, FurtherListener
from runtime.live.protocol.messages import MAX_SEQ, Ack, ClientMessage, Reply, SetReference, WriteAudio, seq_in
from runtime.live.protocol.server_messages import Applied, ServerMessage, problem_of
from runtime.live.session.live_session import LiveSession


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
            self.is_steered, self.is_steered_by_further = (
                True,
                self.is_steered_by_further or received.sender is not None,
            )
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
