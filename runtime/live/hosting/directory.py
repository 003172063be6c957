"""The sessions of a host by their ids: opened within limits, restored from the store, forgotten where they end."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from runtime.base.errors import (
    RequestError,
    SessionsFullError,
    StoreError,
    StoreUnavailableError,
    TickError,
    UnknownSessionError,
)
from runtime.base.files import losses
from runtime.base.threads import Heartbeat
from runtime.live.hosting.hosted_session import HostedSession
from runtime.live.hosting.inbox import timed
from runtime.live.hosting.services import Clock, HostServices, HostStats, SessionInfo
from runtime.live.hosting.slots import RETRY_AFTER_S, HostLimits, live_capacity, projected_refresh_s
from runtime.live.protocol.messages import Open
from runtime.live.session.live_session import LiveSession
from runtime.live.session.reports import prompt_words
from runtime.live.storage.store import SessionSnapshot, SessionStore

logger = logging.getLogger("tickrt.sessions")


class SessionDirectory:
    """Any thread may call, but for `forget`, which is the host's thread's.

    refusal: why nothing is opened any more. capacity: slots of the tick loop that live sessions may hold.
    session_type: what a session is.
    """

    def __init__(
        self, services: HostServices, limits: HostLimits, session_type: type[LiveSession] = LiveSession
    ) -> None:
        self.refusal: TickError | None = None
        self.capacity = live_capacity(services.pipeline.deployment.runtime.depth)
        self._services, self._limits, self._session_type = services, limits, session_type
        self._lock = threading.Lock()  # where sessions are added; reads take a copy
        self._sessions: dict[str, HostedSession] = {}
        self._ended: Counter[str] = Counter()
        self._num_opened = self._past_underruns = 0

    def find(self, session_id: str) -> HostedSession | None:
        """An open session."""
        return self._sessions.get(session_id)

    def all(self) -> list[HostedSession]:
        """Those that are open now."""
        return list(self._sessions.values())

    def infos(self) -> list[SessionInfo]:
        """Every open session."""
        return [
            SessionInfo(hosted.id, hosted.client, hosted.listener is not None, hosted.state, hosted.plan)
            for hosted in self.all()
        ]

    def stats(self) -> HostStats:
        """Counts as of now."""
        sessions, services = self.all(), self._services
        return HostStats(
            open=len(sessions),
            connected=sum(hosted.listener is not None for hosted in sessions),
            opened=self._num_opened,
            ended=dict(self._ended),
            generations_started=services.generations_started,
            generations_ended=dict(services.generations_ended),
            underruns=self._past_underruns + sum(map(_underruns, sessions)),
            store_failure=None if services.store is None else services.store.failure,
        )

    def open(self, message: Open, client: str, clock: Clock) -> HostedSession:
        """A new session. May read a source.

        Raises RequestError, SessionsFullError, DrainingError, EngineDeadError.
        """
        services = self._services
        self.check_room(client)
        self._find_words(message, client)
        session_id = secrets.token_hex(8)
        with losses() as lost:
            try:
                source = None if message.source_id is None else services.reference("source", message.source_id)
            except RequestError as error:
                raise error.renamed("source_id") from None
        session = self._session_type(session_id, services.model, message, clock(), source)
        hosted = HostedSession(services, session, session_id, client, clock, self.forget)
        hosted.losses = lost
        with self._lock:
            self.check_room(client)
            self._make_room(client)
            self._add(hosted)
        return hosted

    def restored(self, session_id: str, token: str | None = None) -> HostedSession:
        """A session of the store, added to the open ones and kept like one whose connection has ended.

        It is taken once it is known to fit the model and to be resumed by the token, if one is given. Raises
        UnknownSessionError, StoreError, and RequestError where it does not fit the model.
        """
        store = self._services.store
        if self.refusal is not None:
            raise self.refusal
        if store is None:
            raise unknown(session_id)
        if token is not None and not self._loaded(session_id, store.load).has_token(token):
            raise unknown(session_id)
        session, clock = self._loaded(session_id, store.take), self._services.clock
        hosted = HostedSession(self._services, session, session_id, "", clock, self.forget)
        hosted.expires_s = clock() + self._limits.keep_s
        with self._lock:
            if session_id not in self._sessions:
                self._add(hosted)
            return self._sessions[session_id]

    def restore_all(self, store: SessionStore, heartbeat: Heartbeat) -> None:
        """Open the stored sessions that belong to this server; one that cannot be restored is set aside in the store.

        The next start leaves it alone, its client may still resume it. Where the storage fails, nothing is set aside.
        """
        try:
            names = store.ids()
        except StoreError as error:
            logger.error("stored sessions are not restored: %s", error)
            return
        for name in names:
            heartbeat.beat()
            try:
                self.restored(name)
            except (StoreUnavailableError, OSError, MemoryError) as error:  # it says nothing about the session
                logger.error("session %s is not restored: %s", name, error)
            except BaseException as error:  # also a panic of native code
                if not isinstance(error, UnknownSessionError):  # that it is damaged was logged
                    defect = None if isinstance(error, TickError) else error
                    logger.error("session %s is not restored, it is set aside: %s", name, error, exc_info=defect)
                with suppress(StoreError):  # then the next start finds it again
                    store.set_aside(name)

    def forget(self, hosted: HostedSession, reason: str) -> None:
        """A session ends."""
        self._sessions.pop(hosted.id, None)
        self._ended[reason] += 1
        self._past_underruns += _underruns(hosted)
        self._share_out()

    @property
    def wait_s(self) -> float:
        """When a further session may be opened, as far as that is known; 0: now."""
        try:
            self.check_room("")
        except SessionsFullError as error:
            return error.retry_after_s
        except TickError:
            return RETRY_AFTER_S
        return 0.0

    def check_room(self, client: str) -> None:
        """Raises SessionsFullError where no session can be added, DrainingError or EngineDeadError after the end."""
        if self.refusal is not None:
            raise self.refusal
        playing = [hosted.client for hosted in self.all() if hosted.expires_s is None]
        steps, times = self._services.pipeline.bundle.sampler.live_steps, self._services.tick_times
        refresh_s = projected_refresh_s(len(playing) + 1, self.capacity, steps, times) if playing else 0.0
        self._limits.check(client, playing, refresh_s)

    def _make_room(self, client: str) -> None:
        """End sessions that are kept without a client until there is a place for one more."""
        now_s, playing, kept = self._services.clock(), list[str](), list[tuple[float, HostedSession]]()
        for hosted in self._sessions.values():
            if (expires_s := hosted.expires_s) is None:
                playing.append(hosted.client)
            elif expires_s > now_s:  # else it ends soon
                kept.append((expires_s, hosted))
        kept.sort(key=lambda item: item[0])
        while (index := self._limits.makes_room(client, playing, [hosted.client for _, hosted in kept])) is not None:
            _, hosted = kept.pop(index)
            hosted.expires_s = now_s
            self._services.mailbox.put(lambda: None)  # wakes the host's thread, which ends it

    def _add(self, hosted: HostedSession) -> None:
        self._sessions[hosted.id] = hosted
        self._num_opened += 1
        self._share_out()

    def _share_out(self) -> None:
        self._services.mailbox.share = self._limits.message_share / max(1, len(self._sessions))

    def _find_words(self, message: Open, client: str) -> None:
        """Find the words of the texts that a session begins with, which it then knows at once.

        One thread does so, in no more than half of the time: a long text takes milliseconds.
        """
        texts = [prompt.text for prompt in message.prompts]
        try:
            finding = self._services.words_thread.submit(_resting, partial(prompt_words, self._services.model, texts))
        except RuntimeError:  # The host was closed meanwhile.
            self.check_room(client)
            raise
        finding.result()  # after the texts that wait; blocks the caller, which is no event loop

    def _loaded(self, session_id: str, load: Callable[[str], SessionSnapshot | None]) -> LiveSession:
        snapshot = load(session_id)
        if snapshot is None:
            raise unknown(session_id)
        try:
            return self._session_type.restore(snapshot, self._services.model, self._services.clock())
        except StoreError as error:
            logger.error("session %s cannot be resumed: %s", session_id, error.what)
            raise unknown(session_id) from None


def _resting(work: Callable[[], object]) -> None:
    """Carry out work, then rest for as long as it took."""
    _, cost_s = timed(work)
    time.sleep(cost_s)  # in the words thread: others wait meanwhile


def _underruns(hosted: HostedSession) -> int:
    return hosted.state.underruns if hosted.state else 0


def unknown(session_id: str) -> UnknownSessionError:
    """The error of what names no session."""
    return UnknownSessionError(f"no session {session_id!r:.40} is resumed by this token", fix="open a new session")
