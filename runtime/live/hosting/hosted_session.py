"""One live session in its host: its client, its generations in the tick loop, and what it waits for."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import partial

from runtime.base.errors import EngineDeadError, InternalError, TickError
from runtime.config.codec import Pcm
from runtime.live.hosting.clients import ClientMessages, Controllers, FurtherListener, Received, SessionListener
from runtime.live.hosting.flights import Flights
from runtime.live.hosting.inbox import Inbox, timed
from runtime.live.hosting.mailbox import SessionWork, expected
from runtime.live.hosting.services import Clock, HostServices
from runtime.live.hosting.slots import Demand
from runtime.live.hosting.work import HintsWork
from runtime.live.protocol import actions
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import Message
from runtime.live.protocol.server_messages import Applied, Closed, Plan, ServerMessage, State, TextWords, problem_of
from runtime.live.session.live_session import LiveSession
from runtime.live.session.reports import prompt_words
from runtime.pipeline.songs.plan import SongPlan
from runtime.pipeline.songs.planner import Caller

# A page that is loaded again is back within this; one that was left would count against its client's limit.
LEFT_KEEP_S = 8.0
logger = logging.getLogger("tickrt.sessions")


class HostedSession:
    """A session in its host. The host's thread calls all methods.

    clock: the session's time. on_end: called once, where it ends, with the reason. listener: None while no client is
    connected. expires_s: when it ends unless one connects. state, plan: the last ones that were sent. demand: the slots
    that it held and wanted when it was advanced last, with the time by the host's clock. inbox: of its client,
    further_inbox: of the further ones. losses: of the source that it was opened with.
    """

    def __init__(
        self,
        services: HostServices,
        session: LiveSession,
        session_id: str,
        client: str,
        clock: Clock,
        on_end: Callable[[HostedSession, str], None],
    ) -> None:
        self.session, self.id, self.client, self.clock = session, session_id, client, clock
        self.listener: SessionListener | None = None
        self.expires_s: float | None = None
        self.state: State | None = None
        self.plan: Plan | None = None
        self.is_ended = False
        self.losses: list[str] = []
        self.demand = Demand(session_id, 0)
        self.work = SessionWork(session_id, services.mailbox, lambda error: self.end("internal", error=error))
        self.controllers = Controllers(session.values)
        self._services, self._on_end = services, on_end
        self._token = secrets.token_urlsafe(24)
        self._flights = Flights(services, session, session_id, clock, self.work)
        self._messages = ClientMessages(
            session, clock, self.controllers, self._flights.times, self._send, self.work.change
        )
        self.inbox = Inbox(services, self.work, self._messages)
        self.further_inbox = Inbox(services, self.work, self._messages)
        self._words: tuple[actions.FindWords, Inbox] | None = None  # What is being found, and who pays for it.
        self._next_words: tuple[actions.FindWords, Inbox] | None = None
        if clock is not services.clock:
            session.wait_for_plan()
        self.hints = HintsWork(self._open_song, partial(services.pipeline.prompts.drawn, seed=session.seed))

    # Its clients.

    def attach(self, listener: SessionListener, token: str = "") -> None:
        """Connect a client; an earlier connection is closed. token: that the client resumes the session with.

        It stays the same: a new one could be lost with the process before it is stored, and the session with it.
        """
        self._token = token or self._token
        if self.is_ended:
            listener.on_message(Closed(reason="ended", resumable=False))
            return
        before, self.listener, self.expires_s = self.listener, listener, None
        if before is not None:
            before.on_message(Closed(reason="another connection resumed it", resumable=False))
            self.session.detach(self.clock())
        ready = self.session.attach(self._token, self.clock(), keep_s=self._services.keep_s)
        listener.on_message(ready.model_copy(update={"losses": list(self.losses)}))
        self.work.change()

    def detach(self, listener: SessionListener | None = None) -> None:
        """The connection has ended. listener: only if this one is connected."""
        if self.is_ended or self.listener is None or listener not in (None, self.listener):
            return
        self.listener, self.expires_s = None, self._services.clock() + self._services.keep_s
        self.session.detach(self.clock())
        self.work.change()

    def release(self, epoch: int) -> None:
        """The client of an epoch says that it is gone: the session waits for its return for `LEFT_KEEP_S` at most."""
        if self.is_ended or epoch != self.session.epoch:
            return
        self.detach()
        soon_s = self._services.clock() + LEFT_KEEP_S
        self.expires_s = soon_s if self.expires_s is None else min(self.expires_s, soon_s)

    def join(self, listener: FurtherListener) -> None:
        """A further client gets all values, then what others change."""
        if self.is_ended:
            self.controllers.attempt(listener, listener.on_message, Closed(reason="ended", resumable=False))
        else:
            self.controllers.join(listener)

    def inbox_of(self, received: Received) -> Inbox:
        """Where it waits: what further clients want neither delays nor displaces what the client wants."""
        return self.inbox if received.sender is None else self.further_inbox

    def refuse(self, received: Received, error: TickError) -> None:
        """Say why a message is not handled."""
        self._messages.refuse(received, error)

    def end(self, reason: str, *, is_resumable: bool = False, error: TickError | None = None) -> None:
        """Stop what runs and close the connection. In the store it is saved before, if `is_resumable`, else deleted.

        error: why, for the client. Again does nothing.
        """
        if self.is_ended:
            return
        self.is_ended = True
        self._on_end(self, reason)
        self.hints.close()
        self._flights.close()
        closed = Closed(reason=reason, resumable=is_resumable)
        try:
            self.inbox.close()
            self.further_inbox.close()
            self.controllers.close(closed)
        finally:
            self._close_client(closed, error)

    def _close_client(self, closed: Closed, error: TickError | None) -> None:
        store = self._services.store
        if store is not None and closed.resumable:
            try:
                store.save(self.id, self.session.snapshot(self.clock()))
            except BaseException:
                self._send(closed.model_copy(update={"resumable": False}))
                raise
            store.release(self.id, lambda is_stored: self._send(closed.model_copy(update={"resumable": is_stored})))
            return
        if store is not None:
            store.delete(self.id)
        if error is not None:
            self._send(problem_of(error))
        self._send(closed)

    def _send(self, message: ServerMessage) -> None:
        if isinstance(message, Plan):
            self.plan = message
        if self.listener is not None:
            self.listener.on_message(message)

    # What it asks for.

    @property
    def payer(self) -> Inbox | None:
        """Whose messages have changed something that has not begun yet: they pay for that."""
        if not self._messages.is_steered:
            return None
        return self.further_inbox if self._messages.is_steered_by_further else self.inbox

    def is_due(self) -> bool:
        """Whether the time has come to advance it."""
        due_s = self.session.due_s()
        return due_s is not None and due_s <= self.clock()

    def advance(self, *, may_generate: bool = False, may_draft: bool = False) -> bool:
        """Carry out what the session asks for; returns whether the client has closed it."""
        if self.hints.thread.has_died:
            raise InternalError("the thread of the session's plan has ended")
        is_closed, is_changed, num_waiting = False, False, self.session.num_waiting
        for action in self.session.advance(self.clock(), may_generate=may_generate, may_draft=may_draft):
            is_closed |= isinstance(action, actions.End)
            is_changed |= isinstance(action, actions.Commit)
            if not self.is_ended:
                self._perform(action)
        if self.session.num_waiting < num_waiting:  # Who has sent what begins now is not known any more.
            self.controllers.note(None, tells_all=True)
        self.controllers.send(self.listener)
        if is_changed and not self.is_ended and self._services.store is not None:
            self._services.store.save(self.id, self.session.snapshot(self.clock()))
        self._note_demand(is_new=may_generate)
        if self.demand.wanted_s is None:
            self._messages.is_steered = self._messages.is_steered_by_further = False
        return is_closed

    def _note_demand(self, *, is_new: bool) -> None:
        """is_new: what it wants now, it has not wanted before."""
        wanted_s = None
        if self.session.wanted_s() is not None:
            has_waited = self.demand.wanted_s is not None and not is_new
            wanted_s = self.demand.wanted_s if has_waited else self._services.clock()
        self.demand = Demand(self.id, len(self._flights), wanted_s, self.session.is_ending)

    def _perform(self, action: actions.Action) -> None:
        match action:
            case actions.SessionJob():
                self._flights.submit(action)
            case actions.UpdateSteps():
                self._flights.update(action)
            case actions.CancelJob(job_id):
                self._flights.cancel(job_id)
            case actions.MakeHints():
                self.work.when_done(self.hints.start(action), partial(self._hints_made, action.number))
            case actions.StopHints():
                self.hints.stop()
            case actions.FindWords():
                self._find_words(action, self.payer or self.inbox)
            case actions.DecodeWindow():
                self._decode(action)
            case AudioChunk():
                self._flights.times.mark("decoded", action.first_seq)
                if self.listener is not None:
                    self.listener.on_audio(self.session.client_seqs.of_chunk(action))
            case Message():
                completed = self.session.client_seqs.of_message(self._completed(action))
                if completed is not None:
                    self._send(completed)

    def _completed(self, message: ServerMessage) -> ServerMessage:
        """A message with the figures that only the host has."""
        services = self._services
        if isinstance(message, State):
            stats = services.pipeline.loop.stats()
            tick_ms = services.tick_times.estimate_ms(stats.slots_active)
            message = self.state = message.model_copy(
                update={"ticks": stats.ticks, "tick_ms": tick_ms, "stored": services.is_storing}
            )
            self.controllers.tell(message)
        elif isinstance(message, Applied):
            playhead = self.session.playhead_sample(self.clock())
            message = self._flights.times.apply(message, playhead, services.model.sample_rate_hz)
        return message

    def _decode(self, window: actions.DecodeWindow) -> None:
        lead = window.start_sample - self.session.playhead_sample(self.clock())
        lead_s = lead / self._services.model.sample_rate_hz
        decoding = self._services.codec_work.decode(window, lead_s, partial(self._is_wanted, window))
        self.work.when_done(decoding, partial(self._decoded, window))

    def _is_wanted(self, window: actions.DecodeWindow) -> bool:
        return not self.is_ended and self.session.is_current(window)

    def _decoded(self, window: actions.DecodeWindow, decoded: Pcm | BaseException) -> None:
        if self.is_ended:
            return
        pcm = expected(decoded)
        if isinstance(pcm, EngineDeadError):
            self._services.mailbox.failure = pcm
        elif isinstance(pcm, TickError):
            logger.error("session %s: audio was not decoded: %s", self.id, pcm)
        self.session.decoded(window, None if isinstance(pcm, TickError) else pcm)
        self.work.change()

    def _find_words(self, action: actions.FindWords, payer: Inbox) -> None:
        """Find words, after those that are being found; of several that wait, the newest."""
        if self._words is not None:
            self._next_words = action, payer
            return
        self._words = action, payer
        find = partial(prompt_words, self.session.model, action.texts, action.options, action.seed)
        self.work.when_done(self._services.words_thread.submit(timed, find), self._words_found)

    def _words_found(self, found: tuple[list[TextWords], float] | BaseException) -> None:
        found_now, self._words, following, self._next_words = self._words, None, self._next_words, None
        if self.is_ended or found_now is None:
            return
        if isinstance(found, BaseException):
            raise found
        words, cost_s = found
        action, payer = found_now
        payer.charge(cost_s)
        self.session.words_found(action.seq, words)
        self.controllers.note(None)
        self.work.change()
        if following is not None:
            self._find_words(*following)

    def _open_song(self, begin: actions.SongBeginning) -> SongPlan:
        planner = self._services.pipeline.planner
        assert planner is not None
        return SongPlan(planner, begin.options, begin.seed, caller=Caller(self.id), state=begin.state)

    def _hints_made(self, number: int, made: actions.MadeHints | BaseException) -> None:
        if not self.is_ended:
            self.session.plan_made(number, expected(made), self.clock())
            self.work.change()
