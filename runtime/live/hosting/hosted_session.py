"""One live session in its host: its client, its generations in the tick loop, and what it waits for."""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from runtime.base.errors import DrainingError, EngineDeadError, InternalError, QueueFullError, RequestError, TickError
from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.control_times import ControlTimes
from runtime.live.hosting.controllers import Controllers
from runtime.live.hosting.inbox import Inbox, Received, timed
from runtime.live.hosting.services import Clock, HostServices, SessionListener
from runtime.live.hosting.slots import Demand
from runtime.live.hosting.work import HintsWork, compose_job, expected, report
from runtime.live.protocol import actions
from runtime.live.protocol.actions import Action, DecodeWindow, SessionJob
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.messages import MAX_SEQ, Ack, ClientMessage, Message, seq_in
from runtime.live.protocol.server_messages import Applied, Closed, Plan, ServerMessage, State, TextWords, problem_of
from runtime.live.session.live_session import LiveSession
from runtime.live.session.reports import prompt_words
from runtime.pipeline.songs.plan import SongPlan
from runtime.requests.options import StepOptions
from runtime.requests.request import GenerationRequest
from runtime.requests.segments import Segment, step_parameters
from runtime.tick.loop.events import Event, Failed, Finished, Progress, Started, Updated

# A page that is loaded again is back within this; one that was left would count against its client's limit.
LEFT_KEEP_S = 8.0

NO_STEPS = StepOptions()
logger = logging.getLogger("tickrt.sessions")


@dataclass(eq=False)
class _Job:
    """A generation, with changes up to `newest_seq`. `seqs`: of updates that it has not applied yet.

    is_submitted: it is in the loop; before, it is composed, and `updates` wait.
    """

    segment: Segment
    newest_seq: int
    submitted_s: float
    composing: Future[GenerationRequest]
    seqs: deque[int] = field(default_factory=deque)
    updates: list[actions.UpdateSteps] = field(default_factory=list)
    is_submitted: bool = False
    is_cancelled: bool = False


class HostedSession:
    """A session in its host. The host's thread calls all methods.

    clock: the session's time. listener: None while no client is connected. expires_s: when it ends unless one connects.
    state, plan: the last ones that were sent. demand: the slots that it held and wanted when it was advanced last, with
    the time by the host's clock. inbox: of its client, further_inbox: of the further ones. steered_by: the one whose
    messages have changed something that has not begun yet, which pays for that. losses: of the source that it was
    opened with.
    """

    def __init__(
        self, services: HostServices, session: LiveSession, session_id: str, client: str, clock: Clock
    ) -> None:
        self.session, self.id, self.client, self.clock = session, session_id, client, clock
        self.listener: SessionListener | None = None
        self.expires_s: float | None = None
        self.state: State | None = None
        self.plan: Plan | None = None
        self.is_ended = False
        self.losses: list[str] = []
        self._services = services
        self._token = secrets.token_urlsafe(24)
        self._times = ControlTimes(services.observe_control, services.clock)
        self._jobs: dict[str, _Job] = {}
        self.inbox = Inbox(services, self)
        self.write_region = session.write_region
        self.further_inbox = Inbox(services, self)
        self.steered_by: Inbox | None = None
        self._words: tuple[actions.FindWords, Inbox] | None = None  # What is being found, and who pays for it.
        self._next_words: tuple[actions.FindWords, Inbox] | None = None
        if clock is not services.clock:
            session.wait_for_plan()
        with_drawn = partial(services.pipeline.with_drawn, seed=session.seed)
        self._plans = HintsWork(self._open_form, with_drawn, services.call)
        self.controllers = Controllers(session.values)
        self.demand = Demand(session_id, 0)

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
        self._change()

    def detach(self, listener: SessionListener | None = None) -> None:
        """The connection has ended. listener: only if this one is connected."""
        if self.is_ended or self.listener is None or listener not in (None, self.listener):
            return
        self.listener, self.expires_s = None, self._services.clock() + self._services.keep_s
        self.session.detach(self.clock())
        self._change()

    def release(self, epoch: int) -> None:
        """The client of an epoch says that it is gone: the session waits for its return for `LEFT_KEEP_S` at most."""
        if self.is_ended or epoch != self.session.epoch:
            return
        self.detach()
        soon_s = self._services.clock() + LEFT_KEEP_S
        self.expires_s = soon_s if self.expires_s is None else min(self.expires_s, soon_s)

    def end(self, reason: str, *, is_resumable: bool, error: TickError | None = None) -> None:
        """Stop what runs and close the connection. In the store it is saved before, if `is_resumable`, else deleted.

        error: why, for the client.
        """
        self.is_ended = True
        self._plans.close()
        for job_id in list(self._jobs):
            self._cancel(job_id)
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

    def is_due(self) -> bool:
        """Whether the time has come to advance it."""
        due_s = self.session.due_s()
        return due_s is not None and due_s <= self.clock()

    def attempted(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Carry out work of this session, called by others on the host's thread."""
        return self._services.attempt(self, work, *arguments)

    def _change(self) -> None:
        """Let the host advance this session next."""
        self._services.changed[self.id] = None

    def _send(self, message: ServerMessage) -> None:
        if isinstance(message, Plan):
            self.plan = message
        if self.listener is not None:
            self.listener.on_message(message)

    # Messages.

    def inbox_of(self, received: Received) -> Inbox:
        """Where it waits: what further clients want neither delays nor displaces what the client wants."""
        return self.inbox if received.sender is None else self.further_inbox

    def join(self, listener: SessionListener) -> None:
        """A further client gets all values, then what others change."""
        if self.is_ended:
            self.controllers.attempt(listener, listener.on_message, Closed(reason="ended", resumable=False))
        else:
            self.controllers.join(listener)

    def resolved(self, received: Received) -> Received | None:
        """What waits with the message, if any, that a further client makes of the values as they are now."""
        if received.change is None or received.sender is None:
            return received
        values = self.session.values()
        self.controllers.watch(values)
        message = self.controllers.attempt(received.sender, received.change, values)
        return None if message is None else replace(received, message=message)

    def handle(self, received: Received, latents: Latents | None = None) -> None:
        """Handle a message with the latents that it needs."""
        try:
            message = self._numbered(received)
            self.session.handle(message, self.clock(), latents)
            if received.sender is not None and (seq := seq_in(message)) is not None:
                self.session.client_seqs.add(seq)
            self.controllers.note(received.sender)
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
            is_paid = self.steered_by is self.further_inbox
            self.steered_by = self.further_inbox if is_paid else self.inbox_of(received)
            self._change()

    def _tell_losses(self, received: Received, message: ClientMessage) -> None:
        """Tell who has named a source what of it could not be decoded, and the session's client."""
        if received.losses and (seq := seq_in(message)) is not None:
            applied = Applied(seq=seq, losses=list(received.losses))
            if received.sender is not None:
                self.controllers.attempt(received.sender, received.sender.on_message, applied)
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

    def refuse(self, received: Received, error: TickError) -> None:
        """Say why a message is not handled."""
        if received.reply is not None:
            received.reply(error)
        elif received.sender is not None:
            self.controllers.attempt(received.sender, received.sender.on_message, problem_of(error))
        else:
            self._send(problem_of(error, getattr(received.message, "seq", None)))

    # Actions.

    def advance(self, *, may_generate: bool = False, may_draft: bool = False) -> bool:
        """Carry out what the session asks for; returns whether the client has closed it."""
        if self._plans.has_died:
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
            self.steered_by = None
        return is_closed

    def _note_demand(self, *, is_new: bool) -> None:
        """is_new: what it wants now, it has not wanted before."""
        wanted_s = None
        if self.session.wanted_s() is not None:
            has_waited = self.demand.wanted_s is not None and not is_new
            wanted_s = self.demand.wanted_s if has_waited else self._services.clock()
        self.demand = Demand(self.id, len(self._jobs), wanted_s, self.session.is_ending)

    def _perform(self, action: Action) -> None:
        match action:
            case SessionJob():
                self._submit(action)
            case actions.MakeHints():
                self._plans.start(action, partial(self.attempted, self._planned, action.number))
            case actions.StopHints():
                self._plans.stop()
            case actions.FindWords():
                self._find_words(action, self.steered_by or self.inbox)
            case actions.UpdateSteps():
                self._update(action)
            case actions.CancelJob(job_id):
                self._cancel(job_id)
            case DecodeWindow():
                self._decode(action)
            case AudioChunk():
                self._times.mark("decoded", action.first_seq)
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
            message = self._times.apply(message, playhead, services.sample_rate_hz)
        return message

    def _decode(self, window: DecodeWindow) -> None:
        lead = window.start_sample - self.session.playhead_sample(self.clock())
        lead_s = lead / self._services.sample_rate_hz
        self._services.codec_work.decode(
            window, lead_s, partial(self._is_wanted, window), partial(self.attempted, self._decoded, window)
        )

    def _is_wanted(self, window: DecodeWindow) -> bool:
        return not self.is_ended and self.session.is_current(window)

    def _decoded(self, window: DecodeWindow, decoded: Pcm | BaseException) -> None:
        if self.is_ended:
            return
        pcm = expected(decoded)
        if isinstance(pcm, EngineDeadError):
            self._services.fail(pcm)
        elif isinstance(pcm, TickError):
            logger.error("session %s: audio was not decoded: %s", self.id, pcm)
        self.session.decoded(window, None if isinstance(pcm, TickError) else pcm)
        self._change()

    # The words of its prompts.

    def _find_words(self, action: actions.FindWords, payer: Inbox) -> None:
        """Find words, after those that are being found; of several that wait, the newest."""
        if self._words is not None:
            self._next_words = action, payer
            return
        self._words = action, payer
        find = partial(prompt_words, self.session.model, action.texts, action.options, action.seed)
        finding = self._services.words_thread.submit(timed, find)
        finding.add_done_callback(partial(report, self._services.call, partial(self.attempted, self._words_found)))

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
        self._change()
        if following is not None:
            self._find_words(*following)

    # The plan.

    def _open_form(self, begin: actions.SongBeginning) -> SongPlan:
        planner = self._services.pipeline.planner
        assert planner is not None
        return planner.song_plan(begin.options, begin.seed, client=self.id, state=begin.state)

    def _planned(self, number: int, made: actions.MadeHints | BaseException) -> None:
        if not self.is_ended:
            self.session.plan_made(number, expected(made), self.clock())
            self._change()

    # Generations.

    def _submit(self, job: SessionJob) -> None:
        services = self._services
        self._times.mark("submitted", job.full_seq)
        services.generations_started += 1
        composing = services.compose_threads.submit(compose_job, services.pipeline, job, self.session.seed, self.id)
        self._jobs[job.id] = _Job(job.segment, job.full_seq, services.clock(), composing)
        done = partial(self.attempted, self._composed, job.id)
        composing.add_done_callback(partial(report, services.call, done))  # `done` on the host's thread

    def _composed(self, job_id: str, composed: GenerationRequest | BaseException) -> None:
        job = self._jobs[job_id]
        try:
            request = expected(composed)
            if isinstance(request, TickError):
                raise request
            if job.is_cancelled:
                self._remove(job_id, "cancelled")
                self._change()
                return
            self._services.pipeline.loop.submit(replace(request, id=job_id, is_urgent=True), self._publish)
        except TickError as error:
            self._lose(job_id, error)
            return
        except BaseException:
            self._remove(job_id, "failed")
            raise
        job.is_submitted = True
        for action in job.updates:
            self._update_job(job_id, job, action)

    def _cancel(self, job_id: str) -> None:
        job = self._jobs.get(job_id)
        if job is None or job.is_submitted:
            self._services.pipeline.loop.cancel(job_id)
        elif job.composing.cancel():
            self._remove(job_id, "cancelled")
            self._change()
        else:
            job.is_cancelled = True

    def _update(self, action: actions.UpdateSteps) -> None:
        self._times.mark("submitted", action.seq)
        for job_id in action.job_ids:
            job = self._jobs.get(job_id)
            if job is not None and not job.is_submitted:
                job.updates.append(action)
            elif job is not None:
                self._update_job(job_id, job, action)

    def _update_job(self, job_id: str, job: _Job, action: actions.UpdateSteps) -> None:
        values = step_parameters(NO_STEPS.model_copy(update=action.patch), job.segment)
        try:
            job.seqs.append(action.seq)
            self._services.pipeline.loop.update(job_id, {name: getattr(values, name) for name in action.patch})
        except (QueueFullError, RequestError) as error:  # its adapters find no place beside those of others
            job.seqs.pop()
            self.session.step_refused(error)

    def _publish(self, event: Event) -> None:
        """On the tick thread."""
        if not isinstance(event, (Started, Progress)):
            self._services.call(partial(self.attempted, self._take, event))  # to the host's thread

    def _take(self, event: Event) -> None:
        job_id, job = event.request_id, self._jobs[event.request_id]
        if isinstance(event, Updated):
            job.newest_seq = job.seqs.popleft()
            self.session.step_applied(job.newest_seq, (job_id,), event.tick)
        elif isinstance(event, Finished):
            self._remove(job_id, "finished")
            self._times.mark("finished", job.newest_seq)
            took_s = self._services.clock() - job.submitted_s
            self.session.generation_finished(job_id, event.latents, event.tick, self.clock(), took_s)
        elif isinstance(event, Failed):
            self._lose(job_id, event.error)
        else:
            self._remove(job_id, "cancelled")
        self._change()

    def _lose(self, job_id: str, error: TickError) -> None:
        """A generation has ended with an error."""
        self._remove(job_id, "failed")
        if isinstance(error, (EngineDeadError, DrainingError)):
            self._services.fail(error)
        elif not self.is_ended:
            self.session.generation_failed(job_id, error, self.clock())
            self._change()

    def _remove(self, job_id: str, outcome: str) -> None:
        del self._jobs[job_id]
        self._services.generations_ended[outcome] += 1
