"""What the host's thread does: calls, clients' messages, sessions that changed or are due, free slots of the tick loop.

What one session does is a unit of work: an error that is none of TickRT's ends that session alone. Any other error ends
the thread, and with it the server.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from runtime.base.errors import EngineDeadError
from runtime.base.threads import ServingThread
from runtime.live.hosting.directory import SessionDirectory
from runtime.live.hosting.hosted_session import HostedSession
from runtime.live.hosting.inbox import Inbox
from runtime.live.hosting.services import Clock, HostServices
from runtime.live.hosting.slots import Demand, next_session
from runtime.tick.loop.record import TickRecord

MIN_WAIT_S, MAX_WAIT_S = 0.001, 60.0
# Of clients' messages, before sessions are advanced.
MESSAGES_S = 0.005
T = TypeVar("T")


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
