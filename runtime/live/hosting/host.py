"""All live sessions of a process: one thread connects them with the tick loop, the codec, the store and their clients.

Only that thread touches sessions once they are open. Events of generations and decoded audio reach it as calls in one
queue; what clients want waits in the inbox of its session. After the calls that are there it handles some of that, of
each session in turn, advances the sessions that changed or are due, and hands out free slots. It sleeps until the next
call, or until a session is due.

What one session does is a unit of work: an error that is none of TickRT's ends that session alone. Any other error ends
the thread, and with it the server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from runtime.base.errors import DrainingError, EngineDeadError, QueueFullError, RequestError, TickError
from runtime.base.threads import ServingThread, Watched
from runtime.config.codec import Pcm
from runtime.live.hosting.clients import Change, FurtherListener, Received, SessionListener
from runtime.live.hosting.directory import SessionDirectory, unknown
from runtime.live.hosting.hosted_session import HostedSession
from runtime.live.hosting.inbox import Inbox
from runtime.live.hosting.passage import Passage
from runtime.live.hosting.services import Clock, CodecWork, HostServices, HostStats, SessionInfo, Sources, live_model
from runtime.live.hosting.slots import DEFAULT_LIMITS, Demand, HostLimits, next_session
from runtime.live.protocol.messages import ClientMessage, Open, Reply
from runtime.live.session.live_session import LiveSession
from runtime.live.storage.store import SessionStore
from runtime.pipeline.pipeline import Pipeline
from runtime.tick.loop.record import TickRecord

MIN_WAIT_S, MAX_WAIT_S = 0.001, 60.0
# Of clients' messages, before sessions are advanced.
MESSAGES_S = 0.005
T = TypeVar("T")


class SessionHost:
    """Opens and runs live sessions on a pipeline. A context manager: entering starts its thread, leaving ends it.

    sources: latents of a source by its id; called in any thread, raises RequestError. store: where sessions survive the
    process. clock: seconds, monotonic. thread_clock: seconds that the calling thread has worked. control_observers: get
    the kind of a change ("step", "generation"), the stage ("first", "full") and the seconds until it is played, on the
    host's thread. Methods may be called from any thread. threads: that serve its sessions. has_restored: set
    once the stored sessions of this server are open, or the store could not be read. Raises ConfigError where the
    pipeline's bundle has no codec.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sources: Sources | None = None,
        store: SessionStore | None = None,
        limits: HostLimits = DEFAULT_LIMITS,
        clock: Clock = time.monotonic,
        thread_clock: Clock = time.thread_time,
        session_type: type[LiveSession] = LiveSession,
    ) -> None:
        self.model, self.pipeline, self._store = live_model(pipeline), pipeline, store
        assert pipeline.codec is not None
        codec_work = CodecWork(pipeline.codec)
        self.services = services = HostServices(
            self.model, pipeline, codec_work, clock, limits.keep_s, sources=sources, store=store
        )
        self.control_observers = services.control_observers
        self.has_restored = threading.Event()
        self.directory = directory = SessionDirectory(services, limits, session_type)
        self.loop = SessionLoop(services, directory, thread_clock, self.has_restored.set)
        self.threads: tuple[Watched, ...] = (
            self.loop.thread,
            codec_work.threads,
            services.words_thread,
            services.compose_threads,
        )
        if store is not None:
            store.on_lost(lambda session_id: self.end(session_id, "taken"))
            services.mailbox.put(partial(directory.restore_all, store, self.loop.thread.heartbeat))
        services.mailbox.put(self.has_restored.set)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread."""
        self.loop.thread.start()

    def open(self, message: Open, listener: SessionListener, client: str = "", clock: Clock | None = None) -> str:
        """Open a session; its listener gets Ready first. Returns its id. May read a source.

        clock: the session's own time, for a playhead that does not follow the host's clock. Raises RequestError,
        SessionsFullError, DrainingError, EngineDeadError.
        """
        hosted = self.directory.open(message, client, clock or self.services.clock)
        hosted.inbox.put(Received(call=partial(hosted.attach, listener)))
        return hosted.id

    def resume(self, session_id: str, token: str, listener: SessionListener, client: str = "") -> str:
        """Connect to a session, here or in the store; an earlier connection of it is closed. Returns its id.

        One in the store is taken from the server that has it. Raises UnknownSessionError, DrainingError,
        EngineDeadError, StoreUnavailableError, QueueFullError.
        """
        hosted = self.directory.find(session_id) or self.directory.restored(session_id, token)
        if not hosted.session.has_token(token):
            raise unknown(session_id)
        hosted.client = hosted.client or client
        if not hosted.inbox.put(Received(call=partial(hosted.attach, listener, token))):
            raise _busy(session_id)
        return session_id

    def post(self, session_id: str, message: ClientMessage, pcm: Pcm | None = None, reply: Reply | None = None) -> None:
        """Pass on a client's message; never blocks, see `room`. pcm `[n, channels]` float32: the audio of WriteAudio.

        What is wrong with it comes back to the listener as a Problem; with `reply`, that gets the error, or None once
        the message is handled. Of an unknown session only `reply` is called.
        """
        hosted = self.directory.find(session_id)
        if hosted is not None:
            self._put(hosted, Received(message, pcm, reply))
        elif reply is not None:
            reply(unknown(session_id))

    def room(self, session_id: str) -> Future[None] | None:
        """What is done once a session takes more messages; None where it does. What is posted before may be refused."""
        hosted = self.directory.find(session_id)
        return None if hosted is None else hosted.inbox.room()

    def join(self, session_id: str, listener: FurtherListener) -> None:
        """Add a further client of a session; it gets Changed with all values, then with what others change, and Closed.

        Raises UnknownSessionError, QueueFullError.
        """
        hosted = self.directory.find(session_id)
        if hosted is None:
            raise unknown(session_id)
        self._put(hosted, Received(call=partial(hosted.join, listener), sender=listener))

    def leave(self, session_id: str, listener: FurtherListener) -> None:
        """Remove a further client."""
        self._ask(session_id, lambda hosted: hosted.controllers.leave(listener), listener)

    def change(self, session_id: str, change: Change, sender: FurtherListener) -> None:
        """Pass on what a further client makes of the session's values, on the host's thread. It gets the problems.

        The seq of its message does not count: the session's client goes on with its own. Of an unknown session nothing
        is changed. Raises QueueFullError.
        """
        if (hosted := self.directory.find(session_id)) is not None:
            self._put(hosted, Received(sender=sender, change=change))

    def check_stems(self) -> None:
        """Raises RequestError where the layers of what sessions play cannot be told apart."""
        if not self.model.has_stems:
            what = f"bundle {self.pipeline.bundle.name!r} does not tell the layers of what sessions play apart"
            raise RequestError(what, field="stems", fix="use a model with [stems] that names no tracks")

    def passage(self, session_id: str, most_s: float) -> Future[Passage]:
        """What a session plays: one pass of a loop, or what was played last, at most so long.

        Raises UnknownSessionError, and what check_stems() raises; the future raises RequestError where nothing was
        played yet.
        """
        self.check_stems()
        if self.directory.find(session_id) is None:
            raise unknown(session_id)
        answer: Future[Passage] = Future()

        def tell(hosted: HostedSession) -> None:
            try:
                played = hosted.session.played(hosted.clock(), most_s)
            except TickError as error:
                answer.set_exception(error)
            else:
                answer.set_result(Passage(self.pipeline, played))

        self._call_session(session_id, tell)
        return answer

    def detach(self, session_id: str, listener: SessionListener | None = None) -> None:
        """The connection has ended. The session is kept for `keep_s`. listener: only if this one is connected."""
        self._ask(session_id, lambda hosted: hosted.detach(listener))

    def release(self, session_id: str, epoch: int) -> None:
        """The client of an epoch is gone, and may be back at once: the session ends soon. Of another epoch: nothing."""
        self._call_session(session_id, lambda hosted: hosted.release(epoch))

    def end(self, session_id: str, reason: str) -> None:
        """End a session; it cannot be resumed."""
        self._call_session(session_id, lambda hosted: hosted.end(reason))

    def hand_over(self, session_id: str) -> None:
        """End a session here, so that its client resumes it elsewhere: it is stored before its client gets `closed`."""
        self._call_session(session_id, lambda hosted: hosted.end("moved", is_resumable=self._store is not None))

    def _put(self, hosted: HostedSession, received: Received) -> None:
        """Let it wait; the session's client gets a Problem where too much waits. Raises QueueFullError for others."""
        if hosted.inbox_of(received).put(received):
            return
        if received.sender is not None:
            raise _busy(hosted.id)
        hosted.work.put(hosted.refuse, received, _busy(hosted.id))

    def _ask(
        self, session_id: str, call: Callable[[HostedSession], None], sender: FurtherListener | None = None
    ) -> None:
        """Call in the order of what a client wants of a session, however much waits."""
        if (hosted := self.directory.find(session_id)) is not None:
            received = Received(call=partial(call, hosted), sender=sender)
            hosted.inbox_of(received).put(received, is_bounded=False)

    def _call_session(self, session_id: str, call: Callable[[HostedSession], None]) -> None:
        hosted = self.directory.find(session_id)
        if hosted is not None:
            hosted.work.put(call, hosted)

    def sessions(self) -> list[SessionInfo]:
        """Every open session."""
        return self.directory.infos()

    def stats(self) -> HostStats:
        """Counts as of now."""
        return self.directory.stats()

    def close(self, reason: str = "shutdown") -> None:
        """Close every connection and stop the thread. What is in the store stays there. Again does nothing."""
        directory, services = self.directory, self.services
        directory.refusal = directory.refusal or DrainingError("the server is shutting down and takes no new work")
        services.mailbox.put(partial(self.loop.stop, reason))
        if self.loop.thread.is_alive():
            self.loop.thread.join()  # until it has carried out `stop`
        services.codec_work.close()
        services.words_thread.shutdown()
        services.compose_threads.shutdown()

    @property
    def session_wait_s(self) -> float:
        """When a further session may be opened, as far as that is known; 0: now."""
        return self.directory.wait_s


class SessionLoop:
    """Runs the sessions of a directory in `thread`. thread_clock: seconds that the calling thread has worked.

    on_end: called where the thread ends.
    """

    def __init__(
        self, services: HostServices, directory: SessionDirectory, thread_clock: Clock, on_end: Callable[[], None]
    ) -> None:
        self.thread = ServingThread("live", self._run)
        self._services, self._directory, self._on_end = services, directory, on_end
        self._mailbox, self._clock, self._thread_clock = services.mailbox, services.clock, thread_clock
        self._is_stopped = False

    def run_once(self, timeout_s: float | None) -> None:
        """Wait for a call, at most `timeout_s`, and do everything that is to be done then."""
        self._mailbox.take(timeout_s, self.thread.heartbeat)
        self._end_where_the_tick_loop_has()
        self._handle_messages()
        for hosted in self._due_sessions():
            self._advance(hosted)
        self._grant_slots()
        self._end_where_the_tick_loop_has()

    def timeout_s(self) -> float | None:
        """How long there is nothing to do; None: until the next call. A session's own clock moves by calls only."""
        times: list[float] = [inbox.free_s for inbox in self._mailbox.waiting]
        if self._mailbox.changed or any(time_s <= self._clock() for time_s in times):
            return 0.0
        for hosted in self._directory.all():
            due_s = hosted.session.due_s() if hosted.clock is self._clock else None
            times += [time_s for time_s in (due_s, hosted.expires_s) if time_s is not None]
        return min(max(MIN_WAIT_S, min(times) - self._clock()), MAX_WAIT_S) if times else None

    def stop(self, reason: str) -> None:
        """End all sessions, and the thread; on the thread."""
        self._end_all(reason)
        self._is_stopped = True

    def _run(self) -> None:
        observers = self._services.pipeline.loop.observers
        observers.append(self._note_tick)
        try:
            while not self._is_stopped:
                self.run_once(self.timeout_s())
            self._mailbox.take(0.0, self.thread.heartbeat)
            for inbox in list(self._mailbox.waiting):
                inbox.close()
        except BaseException:
            self._mailbox.failure = EngineDeadError("the thread of live sessions has ended")
            self._end_where_the_tick_loop_has()
            raise
        finally:
            self._on_end()
            observers.remove(self._note_tick)

    def _handle_messages(self) -> None:
        """What clients want: of each session in turn one message, for MESSAGES_S at the most.

        One whose messages have taken more than its share is left out for a while.
        """
        now_s, waiting = self._clock(), self._mailbox.waiting
        ends_s = now_s + MESSAGES_S
        while now_s < ends_s and (inbox := next((item for item in waiting if item.free_s <= now_s), None)) is not None:
            del waiting[inbox]
            if self._charged(inbox, inbox.handle_next):
                waiting[inbox] = None
            now_s = self._clock()

    def _charged(self, inbox: Inbox, work: Callable[[], T]) -> T | None:
        """Carry out work that a session's clients have caused."""
        started_s = self._thread_clock()
        try:
            return inbox.work.attempt(work)
        finally:
            inbox.charge(self._thread_clock() - started_s)

    def _due_sessions(self) -> list[HostedSession]:
        """The sessions that calls have changed and those whose time has come; ends those that have expired."""
        now_s, due = self._clock(), self._mailbox.changed.copy()
        self._mailbox.changed.clear()
        for hosted in self._directory.all():
            if hosted.work.attempt(hosted.is_due):
                due[hosted.id] = None
            if hosted.expires_s is not None and hosted.expires_s <= now_s:
                hosted.work.attempt(hosted.end, "expired")
        return [found for name in due if (found := self._directory.find(name)) is not None]

    def _advance(self, hosted: HostedSession, *, may_generate: bool = False, may_draft: bool = False) -> None:
        if hosted.is_ended:
            return
        work = partial(hosted.advance, may_generate=may_generate, may_draft=may_draft)
        payer = hosted.payer
        if hosted.work.attempt(work) if payer is None else self._charged(payer, work):
            hosted.work.attempt(hosted.end, "closed")

    def _grant_slots(self) -> None:
        """Let sessions that want a slot have one, as long as there are slots for live sessions.

        Where more than half of these are taken, drafts would only delay complete generations.
        """
        capacity = self._directory.capacity
        demands = {hosted.id: hosted.demand for hosted in self._directory.all()}
        while (name := next_session(demands.values(), capacity)) is not None:
            held = demands[name].held
            if (hosted := self._directory.find(name)) is None:  # It has ended since.
                demands[name] = Demand(name, held)
                continue
            num_held = sum(demand.held for demand in demands.values())
            self._advance(hosted, may_generate=True, may_draft=num_held <= capacity // 2)
            has_started = not hosted.is_ended and hosted.demand.held > held
            demands[name] = hosted.demand if has_started else Demand(name, held)

    def _end_where_the_tick_loop_has(self) -> None:
        failure = self._mailbox.failure
        if failure is not None:
            self._directory.refusal = self._directory.refusal or failure
            self._end_all("engine" if isinstance(failure, EngineDeadError) else "shutdown")

    def _end_all(self, reason: str) -> None:
        is_resumable = self._services.store is not None
        for hosted in self._directory.all():
            hosted.work.attempt(hosted.end, reason, is_resumable=is_resumable)

    def _note_tick(self, record: TickRecord) -> None:
        """On the tick thread."""
        self._services.tick_times.note(record.slots, record.tick_ms)


def _busy(session_id: str) -> QueueFullError:
    return QueueFullError(f"too much waits for the session {session_id!r:.40}: it handles what came before first")
