"""All live sessions of a process: one thread connects them with the tick loop, the codec, the store and their clients.

Only that thread touches sessions once they are open. Events of generations and decoded audio reach it as calls in one
queue; what clients want waits in the inbox of its session. After the calls that are there it handles some of that, of
each session in turn, advances the sessions that changed or are due, and hands out free slots. It sleeps until the next
call, or until a session is due.

What one session does is a unit of work, which `_attempt` carries out: an error that is none of TickRT's ends that
session alone. Any other error ends the thread, and with it the server.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

from runtime.base.errors import (
    DrainingError,
    EngineDeadError,
    InternalError,
    QueueFullError,
    RequestError,
    SessionsFullError,
    StoreError,
    StoreUnavailableError,
    TickError,
    UnknownSessionError,
)
from runtime.base.files import losses
from runtime.base.threads import ServingThread, Watched
from runtime.config.codec import Latents, Pcm
from runtime.live.hosting.controllers import Change
from runtime.live.hosting.hosted_session import HostedSession
from runtime.live.hosting.inbox import Inbox, Received, timed
from runtime.live.hosting.passage import Passage
from runtime.live.hosting.services import (
    Clock,
    FurtherListener,
    HostServices,
    HostStats,
    SessionInfo,
    SessionListener,
    Sources,
    live_model,
)
from runtime.live.hosting.slots import (
    DEFAULT_LIMITS,
    RETRY_AFTER_S,
    Demand,
    HostLimits,
    TickTimes,
    live_capacity,
    next_session,
    projected_refresh_s,
)
from runtime.live.hosting.work import CodecWork
from runtime.live.protocol.messages import ClientMessage, Open, Reply
from runtime.live.session.live_session import LiveSession
from runtime.live.session.reports import prompt_words
from runtime.live.storage.store import SessionSnapshot, SessionStore
from runtime.pipeline.pipeline import Pipeline
from runtime.tick.loop.record import TickRecord

MIN_WAIT_S, MAX_WAIT_S = 0.001, 60.0
# Of clients' messages, before sessions are advanced.
MESSAGES_S = 0.005
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("tickrt.sessions")


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
    ) -> None:
        self.model = live_model(pipeline)
        assert pipeline.codec is not None
        self._pipeline, self._store, self._limits = pipeline, store, limits
        self._clock, self._thread_clock = clock, thread_clock
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()  # from any thread to the host's
        self._codec_work = CodecWork(pipeline.codec, self._calls.put)
        self._services = HostServices(
            pipeline=pipeline,
            codec_work=self._codec_work,
            tick_times=TickTimes(),
            clock=clock,
            sample_rate_hz=self.model.sample_rate_hz,
            keep_s=limits.keep_s,
            sources=sources,
            store=store,
            call=self._calls.put,
            attempt=self._attempt,
            fail=self._fail,
            enqueue=self._enqueue,
            message_share=lambda: limits.message_share / max(1, len(self._sessions)),
            untaken=self.model.untaken,
        )
        self.control_observers = self._services.control_observers
        self._capacity = live_capacity(pipeline.deployment.runtime.depth)
        self._lock = threading.Lock()  # where sessions are added; reads take a copy
        self._sessions: dict[str, HostedSession] = {}
        self._inboxes: dict[Inbox, None] = {}  # those with something in them, in their turn
        self._ended: Counter[str] = Counter()
        self._num_opened = self._past_underruns = 0
        self._is_stopped = False
        self._refusal: TickError | None = None
        self.has_restored = threading.Event()
        self._thread = ServingThread("live", self._run)
        pools = self._codec_work.threads, self._services.words_thread, self._services.compose_threads
        self.threads: tuple[Watched, ...] = (self._thread, *pools)
        if store is not None:
            store.on_lost(lambda session_id: self.end(session_id, "taken"))
            self._calls.put(partial(self._restore_all, store))
        self._calls.put(self.has_restored.set)

    # Any thread.

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def open(self, message: Open, listener: SessionListener, client: str = "", clock: Clock | None = None) -> str:
        """Open a session; its listener gets Ready first. Returns its id. May read a source.

        clock: the session's own time, for a playhead that does not follow the host's clock. Raises RequestError,
        SessionsFullError, DrainingError, EngineDeadError.
        """
        self._check_room(client)
        self._find_words(message, client)
        clock, session_id = clock or self._clock, secrets.token_hex(8)
        with losses() as lost:
            source = self._source(message.source_id)
        session = LiveSession(session_id, self.model, message, clock(), source)
        hosted = HostedSession(self._services, session, session_id, client, clock)
        hosted.losses = lost
        with self._lock:
            self._check_room(client)
            self._make_room(client)
            self._add(hosted)
        hosted.inbox.put(Received(call=partial(hosted.attach, listener)))
        return session_id

    def resume(self, session_id: str, token: str, listener: SessionListener, client: str = "") -> str:
        """Connect to a session, here or in the store; an earlier connection of it is closed. Returns its id.

        One in the store is taken from the server that has it. Raises UnknownSessionError, DrainingError,
        EngineDeadError, StoreUnavailableError, QueueFullError.
        """
        hosted = self._sessions.get(session_id) or self._restored(session_id, token)
        if not hosted.session.has_token(token):
            raise _unknown(session_id)
        hosted.client = hosted.client or client
        if not hosted.inbox.put(Received(call=partial(hosted.attach, listener, token))):
            raise _busy(session_id)
        return session_id

    def post(self, session_id: str, message: ClientMessage, pcm: Pcm | None = None, reply: Reply | None = None) -> None:
        """Pass on a client's message; never blocks, see `room`. pcm `[n, channels]` float32: the audio of WriteAudio.

        What is wrong with it comes back to the listener as a Problem; with `reply`, that gets the error, or None once
        the message is handled. Of an unknown session only `reply` is called.
        """
        hosted = self._sessions.get(session_id)
        if hosted is not None:
            self._put(hosted, Received(message, pcm, reply))
        elif reply is not None:
            reply(_unknown(session_id))

    def room(self, session_id: str) -> Future[None] | None:
        """What is done once a session takes more messages; None where it does. What is posted before may be refused."""
        hosted = self._sessions.get(session_id)
        return None if hosted is None else hosted.inbox.room()

    def join(self, session_id: str, listener: FurtherListener) -> None:
        """Add a further client of a session; it gets Changed with all values, then with what others change, and Closed.

        Raises UnknownSessionError, QueueFullError.
        """
        hosted = self._sessions.get(session_id)
        if hosted is None:
            raise _unknown(session_id)
        self._put(hosted, Received(call=partial(hosted.join, listener), sender=listener))

    def leave(self, session_id: str, listener: FurtherListener) -> None:
        """Remove a further client."""
        self._ask(session_id, lambda hosted: hosted.controllers.leave(listener), listener)

    def change(self, session_id: str, change: Change, sender: FurtherListener) -> None:
        """Pass on what a further client makes of the session's values, on the host's thread. It gets the problems.

        The seq of its message does not count: the session's client goes on with its own. Of an unknown session nothing
        is changed. Raises QueueFullError.
        """
        if (hosted := self._sessions.get(session_id)) is not None:
            self._put(hosted, Received(sender=sender, change=change))

    def check_stems(self) -> None:
        """Raises RequestError where the layers of what sessions play cannot be told apart."""
        if not self.model.has_stems:
            what = f"bundle {self._pipeline.bundle.name!r} does not tell the layers of what sessions play apart"
            raise RequestError(what, field="stems", fix="use a model with [stems] that names no tracks")

    def passage(self, session_id: str, most_s: float) -> Future[Passage]:
        """What a session plays: one pass of a loop, or what was played last, at most so long.

        Raises UnknownSessionError, and what check_stems() raises; the future raises RequestError where nothing was
        played yet.
        """
        self.check_stems()
        if session_id not in self._sessions:
            raise _unknown(session_id)
        answer: Future[Passage] = Future()

        def tell(hosted: HostedSession) -> None:
            try:
                played = hosted.session.played(hosted.clock(), most_s)
            except TickError as error:
                answer.set_exception(error)
            else:
                answer.set_result(Passage(self._pipeline, played))

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
        self._call_session(session_id, lambda hosted: self._end(hosted, reason))

    def hand_over(self, session_id: str) -> None:
        """End a session here, so that its client resumes it elsewhere: it is stored before its client gets `closed`."""
        self._call_session(session_id, lambda hosted: self._end(hosted, "moved", is_resumable=self._store is not None))

    def _put(self, hosted: HostedSession, received: Received) -> None:
        """Let it wait; the session's client gets a Problem where too much waits. Raises QueueFullError for others."""
        if hosted.inbox_of(received).put(received):
            return
        if received.sender is not None:
            raise _busy(hosted.id)
        self._calls.put(partial(self._attempt, hosted, hosted.refuse, received, _busy(hosted.id)))

    def _ask(
        self, session_id: str, call: Callable[[HostedSession], None], sender: FurtherListener | None = None
    ) -> None:
        """Call in the order of what a client wants of a session, however much waits."""
        if (hosted := self._sessions.get(session_id)) is not None:
            received = Received(call=partial(call, hosted), sender=sender)
            hosted.inbox_of(received).put(received, is_bounded=False)

    def _call_session(self, session_id: str, call: Callable[[HostedSession], None]) -> None:
        hosted = self._sessions.get(session_id)
        if hosted is not None:
            self._calls.put(partial(self._attempt, hosted, call, hosted))

    def sessions(self) -> list[SessionInfo]:
        """Every open session."""
        return [
            SessionInfo(hosted.id, hosted.client, hosted.listener is not None, hosted.state, hosted.plan)
            for hosted in list(self._sessions.values())
        ]

    def stats(self) -> HostStats:
        """Counts as of now."""
        sessions = list(self._sessions.values())
        return HostStats(
            open=len(sessions),
            connected=sum(hosted.listener is not None for hosted in sessions),
            opened=self._num_opened,
            ended=dict(self._ended),
            generations_started=self._services.generations_started,
            generations_ended=dict(self._services.generations_ended),
            underruns=self._past_underruns + sum(_underruns(hosted) for hosted in sessions),
            store_failure=None if self._store is None else self._store.failure,
        )

    def close(self, reason: str = "shutdown") -> None:
        """Close every connection and stop the thread. What is in the store stays there. Again does nothing."""
        self._refusal = self._refusal or DrainingError("the server is shutting down and takes no new work")
        self._calls.put(partial(self._stop, reason))
        if self._thread.is_alive():
            self._thread.join()  # until it has carried out `_stop`
        self._codec_work.close()
        self._services.words_thread.shutdown()
        self._services.compose_threads.shutdown()

    @property
    def session_wait_s(self) -> float:
        """When a further session may be opened, as far as that is known; 0: now."""
        try:
            self._check_room("")
        except SessionsFullError as error:
            return error.retry_after_s
        except TickError:
            return RETRY_AFTER_S
        return 0.0

    def _check_room(self, client: str) -> None:
        """Raises SessionsFullError where no session can be added, DrainingError or EngineDeadError after the end."""
        if self._refusal is not None:
            raise self._refusal
        playing = [hosted.client for hosted in list(self._sessions.values()) if hosted.expires_s is None]
        steps, times = self._pipeline.bundle.sampler.live_steps, self._services.tick_times
        refresh_s = projected_refresh_s(len(playing) + 1, self._capacity, steps, times) if playing else 0.0
        self._limits.check(client, playing, refresh_s)

    def _make_room(self, client: str) -> None:
        """End sessions that are kept without a client until there is a place for one more."""
        playing, kept = list[str](), list[tuple[float, HostedSession]]()
        for hosted in self._sessions.values():
            if (expires_s := hosted.expires_s) is None:
                playing.append(hosted.client)
            elif expires_s > self._clock():  # else it ends soon
                kept.append((expires_s, hosted))
        kept.sort(key=lambda item: item[0])
        while (index := self._limits.makes_room(client, playing, [hosted.client for _, hosted in kept])) is not None:
            _, hosted = kept.pop(index)
            hosted.expires_s = self._clock()
            self._calls.put(lambda: None)  # wakes the host's thread, which ends it

    def _find_words(self, message: Open, client: str) -> None:
        """Find the words of the texts that a session begins with, which it then knows at once.

        One thread does so, in no more than half of the time: a long text takes milliseconds.
        """
        texts = [prompt.text for prompt in message.prompts]
        try:
            finding = self._services.words_thread.submit(_resting, partial(prompt_words, self.model, texts))
        except RuntimeError:  # The host was closed meanwhile.
            self._check_room(client)
            raise
        finding.result()  # after the texts that wait; blocks the caller, which is no event loop

    def _source(self, source_id: str | None) -> Latents | None:
        try:
            return None if source_id is None else self._services.reference("source", source_id)
        except RequestError as error:
            raise error.renamed("source_id") from None

    def _add(self, hosted: HostedSession) -> None:
        self._sessions[hosted.id] = hosted
        self._num_opened += 1

    def _restored(self, session_id: str, token: str | None = None) -> HostedSession:
        """A session of the store, added to the open ones and kept like one whose connection has ended.

        It is taken once it is known to fit the model and to be resumed by the token, if one is given. Raises
        UnknownSessionError, StoreError, and RequestError where it does not fit the model.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._store is None:
            raise _unknown(session_id)
        if token is not None and not self._loaded(session_id, self._store.load).has_token(token):
            raise _unknown(session_id)
        session = self._loaded(session_id, self._store.take)
        hosted = HostedSession(self._services, session, session_id, "", self._clock)
        hosted.expires_s = self._clock() + self._limits.keep_s
        with self._lock:
            if session_id not in self._sessions:
                self._add(hosted)
            return self._sessions[session_id]

    def _loaded(self, session_id: str, load: Callable[[str], SessionSnapshot | None]) -> LiveSession:
        snapshot = load(session_id)
        if snapshot is None:
            raise _unknown(session_id)
        try:
            return LiveSession.restore(snapshot, self.model, self._clock())
        except StoreError as error:
            logger.error("session %s cannot be resumed: %s", session_id, error.what)
            raise _unknown(session_id) from None

    def _restore_all(self, store: SessionStore) -> None:
        """Open the stored sessions that belong to this server; one that cannot be restored is set aside in the store.

        The next start leaves it alone, its client may still resume it. Where the storage fails, nothing is set aside.
        """
        try:
            names = store.ids()
        except StoreError as error:
            logger.error("stored sessions are not restored: %s", error)
            return
        for name in names:
            self._thread.heartbeat.beat()
            try:
                self._restored(name)
            except (StoreUnavailableError, OSError, MemoryError) as error:  # it says nothing about the session
                logger.error("session %s is not restored: %s", name, error)
            except BaseException as error:  # also a panic of native code
                self._set_aside(store, name, error)

    def _set_aside(self, store: SessionStore, name: str, error: BaseException) -> None:
        if not isinstance(error, UnknownSessionError):  # that it is damaged was logged
            defect = None if isinstance(error, TickError) else error
            logger.error("session %s is not restored, it is set aside: %s", name, error, exc_info=defect)
        with suppress(StoreError):  # then the next start finds it again
            store.set_aside(name)

    # The host's thread.

    def _run(self) -> None:
        self._pipeline.loop.observers.append(self._note_tick)
        try:
            while not self._is_stopped:
                self.run_once(self.timeout_s())
            self._take_calls(0.0)
            for inbox in list(self._inboxes):
                inbox.close()
        except BaseException:
            self._fail(EngineDeadError("the thread of live sessions has ended"))
            raise
        finally:
            self.has_restored.set()
            self._pipeline.loop.observers.remove(self._note_tick)

    def run_once(self, timeout_s: float | None) -> None:
        """Wait for a call, at most `timeout_s`, and do everything that is to be done then."""
        self._take_calls(timeout_s)
        self._handle_messages()
        for hosted in self._due_sessions():
            self._advance(hosted)
        self._grant_slots()

    def _take_calls(self, timeout_s: float | None) -> None:
        heartbeat = self._thread.heartbeat
        try:
            heartbeat.rest()
            call = self._calls.get(timeout=timeout_s)  # waits until a call comes, or a session is due
        except Empty:
            return
        finally:
            heartbeat.beat()
        call()
        for _ in range(self._calls.qsize()):
            self._calls.get()()  # is there already: no other thread takes calls

    def _handle_messages(self) -> None:
        """What clients want: of each session in turn one message, for MESSAGES_S at the most.

        One whose messages have taken more than its share is left out for a while.
        """
        now_s, waiting = self._clock(), self._inboxes
        ends_s = now_s + MESSAGES_S
        while now_s < ends_s and (inbox := next((item for item in waiting if item.free_s <= now_s), None)) is not None:
            del waiting[inbox]
            if self._charged(inbox, inbox.handle_next):
                waiting[inbox] = None
            now_s = self._clock()

    def _enqueue(self, inbox: Inbox) -> None:
        self._inboxes[inbox] = None

    def _charged(self, inbox: Inbox, work: Callable[[], T]) -> T | None:
        """Carry out work that a session's clients have caused."""
        started_s = self._thread_clock()
        try:
            return inbox.attempt(work)
        finally:
            inbox.charge(self._thread_clock() - started_s)

    def timeout_s(self) -> float | None:
        """How long there is nothing to do; None: until the next call. A session's own clock moves by calls only."""
        times: list[float] = [inbox.free_s for inbox in self._inboxes]
        if self._services.changed or any(time_s <= self._clock() for time_s in times):
            return 0.0
        for hosted in list(self._sessions.values()):
            due_s = hosted.session.due_s() if hosted.clock is self._clock else None
            times += [time_s for time_s in (due_s, hosted.expires_s) if time_s is not None]
        return min(max(MIN_WAIT_S, min(times) - self._clock()), MAX_WAIT_S) if times else None

    def _due_sessions(self) -> list[HostedSession]:
        """The sessions that calls have changed and those whose time has come; ends those that have expired."""
        now_s, due = self._clock(), self._services.changed.copy()
        self._services.changed.clear()
        for hosted in list(self._sessions.values()):
            if self._attempt(hosted, hosted.is_due):
                due[hosted.id] = None
            if hosted.expires_s is not None and hosted.expires_s <= now_s:
                self._attempt(hosted, self._end, hosted, "expired")
        return [self._sessions[name] for name in due if name in self._sessions]

    def _advance(self, hosted: HostedSession, *, may_generate: bool = False, may_draft: bool = False) -> None:
        if hosted.is_ended:
            return
        work = partial(hosted.advance, may_generate=may_generate, may_draft=may_draft)
        payer = hosted.steered_by
        if self._attempt(hosted, work) if payer is None else self._charged(payer, work):
            self._attempt(hosted, self._end, hosted, "closed")

    def _attempt(self, hosted: HostedSession, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """Carry out work of one session; None where the session has ended of it."""
        try:
            return work(*args, **options)
        except BaseException:  # also a panic of native code
            logger.exception("session %s has failed", hosted.id)
            self._attempt(hosted, self._end, hosted, "internal", error=InternalError("the session has failed"))
            return None

    def _grant_slots(self) -> None:
        """Let sessions that want a slot have one, as long as there are slots for live sessions.

        Where more than half of these are taken, drafts would only delay complete generations.
        """
        demands = {hosted.id: hosted.demand for hosted in list(self._sessions.values())}
        while (name := next_session(demands.values(), self._capacity)) is not None:
            held = demands[name].held
            if (hosted := self._sessions.get(name)) is None:  # All have ended with the tick loop.
                return
            num_held = sum(demand.held for demand in demands.values())
            self._advance(hosted, may_generate=True, may_draft=num_held <= self._capacity // 2)
            has_started = not hosted.is_ended and hosted.demand.held > held
            demands[name] = hosted.demand if has_started else Demand(name, held)

    def _end(
        self, hosted: HostedSession, reason: str, *, is_resumable: bool = False, error: TickError | None = None
    ) -> None:
        if hosted.is_ended:
            return
        self._sessions.pop(hosted.id, None)
        self._ended[reason] += 1
        self._past_underruns += _underruns(hosted)
        hosted.end(reason, is_resumable=is_resumable, error=error)

    def _end_all(self, reason: str) -> None:
        for hosted in list(self._sessions.values()):
            self._attempt(hosted, self._end, hosted, reason, is_resumable=self._store is not None)

    def _fail(self, error: TickError) -> None:
        """The tick loop has ended: so do all sessions."""
        self._refusal = self._refusal or error
        self._end_all("engine" if isinstance(error, EngineDeadError) else "shutdown")

    def _stop(self, reason: str) -> None:
        self._end_all(reason)
        self._is_stopped = True

    def _note_tick(self, record: TickRecord) -> None:
        """On the tick thread."""
        self._services.tick_times.note(record.slots, record.tick_ms)


def _resting(work: Callable[[], object]) -> None:
    """Carry out work, then rest for as long as it took."""
    _, cost_s = timed(work)
    time.sleep(cost_s)  # in the words thread: others wait meanwhile


def _underruns(hosted: HostedSession) -> int:
    return hosted.state.underruns if hosted.state else 0


def _busy(session_id: str) -> QueueFullError:
    return QueueFullError(f"too much waits for the session {session_id!r:.40}: it handles what came before first")


def _unknown(session_id: str) -> UnknownSessionError:
    return UnknownSessionError(f"no session {session_id!r:.40} is resumed by this token", fix="open a new session")
