"""What clients want of one session: it waits here, bounded and in order, until its turn on the host's thread.

Where audio has to be encoded, or a source loaded, for one message, those that change sound wait for it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from runtime.base.errors import DrainingError, RequestError, TickError
from runtime.base.files import losses
from runtime.config.codec import Latents
from runtime.live.hosting.clients import ClientMessages, Received
from runtime.live.hosting.mailbox import SessionWork
from runtime.live.hosting.services import HostServices
from runtime.live.protocol.messages import WriteAudio

# A connection reads no further while so much waits, and goes on at half of it.
MAX_UNHANDLED, MAX_UNHANDLED_AUDIO_S = 64, 20.0
# What comes nevertheless is refused beyond this; where several clients have something waiting, each has its part.
MAX_WAITING, MAX_WAITING_AUDIO_S = 256, 30.0
# What messages of one session may take of a thread over time, however many sessions there are, and at once.
SHARE, BURST_S = 0.1, 0.05


class Inbox:
    """A session's inbox, of its own client or of the further ones, of which each is next in its turn. Any thread puts;
    the host's thread calls the other methods.

    free_s: by the host's clock, from when on the next one may be handled: what has cost much is charged.
    """

    def __init__(self, services: HostServices, work: SessionWork, messages: ClientMessages) -> None:
        self.free_s, self.work = -math.inf, work
        self._services, self._messages = services, messages
        self._lock = threading.Lock()  # of all below but `_loading` and `_is_closed`, which are the host thread's
        self._waiting: dict[str, deque[Received]] = {}  # by client, in their turn
        self._audio_s = 0.0
        self._has_turn = self._is_closed = False
        self._loading: Received | None = None
        self._rooms: list[Future[None]] = []

    # Any thread.

    def put(self, received: Received, *, is_bounded: bool = True) -> bool:
        """Add what a client wants, unless too much waits; whether it was added."""
        audio_s = self._seconds(received)
        with self._lock:
            of_client = self._waiting.setdefault(received.client, deque())
            most = max(1, MAX_WAITING // len(self._waiting))
            is_full = len(of_client) >= most or self._audio_s + audio_s > MAX_WAITING_AUDIO_S
            if is_full and is_bounded:
                return False
            of_client.append(received)
            self._audio_s += audio_s
            has_turn, self._has_turn = self._has_turn, True
        if not has_turn:
            self._services.mailbox.put(self._take_turn)  # to the host's thread
        return True

    def room(self) -> Future[None] | None:
        """None where a connection may put more; else what is done once it may."""
        with self._lock:
            if not self._is_full(1.0):
                return None
            self._rooms.append(Future())
            return self._rooms[-1]

    # The host's thread.

    def handle_next(self) -> bool:
        """Handle what is next, or begin to load what it needs; False where nothing can be handled now."""
        received = self._next()
        if received is None:
            return False
        if received.call is not None:
            received.call()
        elif self._is_closed:
            self._turn_away(received)
        else:
            self._begin(received)
        return True

    def charge(self, cost_s: float) -> None:
        """Let what comes next wait until the session has kept to its share again."""
        share = max(SHARE, self._services.mailbox.share)
        self.free_s = max(self.free_s, self._services.clock() - BURST_S / share) + cost_s / share

    def close(self) -> None:
        """The session has ended: refuse what waits, and what comes."""
        self._is_closed, self.free_s = True, -math.inf
        loading, self._loading = self._loading, None
        if loading is not None:
            self._turn_away(loading)
        while self.handle_next():
            pass

    def _take_turn(self) -> None:
        self._services.mailbox.waiting[self] = None

    def _next(self) -> Received | None:
        with self._lock:
            received = next((found for waiting in self._waiting.values() for found in self._first(waiting)), None)
            if received is None:
                self._has_turn = False
                return None
            of_client = self._waiting.pop(received.client)
            of_client.remove(received)
            if of_client:
                self._waiting[received.client] = of_client  # behind the others
            self._audio_s -= self._seconds(received)
            rooms, self._rooms = ([], self._rooms) if self._is_full(0.5) else (self._rooms, [])
        for room in rooms:
            if room.set_running_or_notify_cancel():
                room.set_result(None)  # wakes the connection that waits for it, in its event loop
        return received

    def _first(self, waiting: deque[Received]) -> Iterator[Received]:
        """What may be handled now, of what one client wants: its first one."""
        return islice((each for each in waiting if self._loading is None or not each.has_order), 1)

    def _is_full(self, share: float) -> bool:
        num_waiting = sum(map(len, self._waiting.values()))
        return num_waiting >= share * MAX_UNHANDLED or self._audio_s > share * MAX_UNHANDLED_AUDIO_S

    def _seconds(self, received: Received) -> float:
        """The length of its audio."""
        return 0.0 if received.pcm is None else len(received.pcm) / self._services.model.sample_rate_hz

    def _begin(self, received: Received) -> None:
        try:
            resolved = self._messages.resolved(received)
            if resolved is None:
                return
            received = resolved
            work = self._work(received) if received.needs_latents else None
        except RequestError as error:
            self._messages.refuse(received, error)
            return
        if work is None:
            self._messages.handle(received)
            return
        self._loading = received
        # to the encoding thread; `_loaded` runs on the host's
        loading = self._services.codec_work.encode(partial(timed, partial(_with_losses, work)))
        self.work.when_done(loading, self._loaded)

    def _work(self, received: Received) -> Callable[[], Latents]:
        """What loads the latents of a message, in another thread. Raises RequestError."""
        message, pcm = received.message, received.pcm
        if not isinstance(message, WriteAudio):
            return partial(self._services.reference, message.type, message.id)
        if pcm is None:
            raise RequestError("the audio is missing", field="samples")
        return partial(self._services.codec_work.write, message, pcm, *self._messages.session.write_region(message))

    def _loaded(self, done: tuple[tuple[Latents, tuple[str, ...]] | TickError, float] | BaseException) -> None:
        if isinstance(done, BaseException):
            raise done
        received = self._loading
        if received is None:
            return  # The session has ended.
        given, cost_s = done
        self.charge(cost_s)
        self._loading = None
        with self._lock:
            self._has_turn = bool(self._waiting)
        if self._has_turn:
            self._take_turn()
        if isinstance(given, TickError):
            self._messages.refuse(received, given)
        else:
            latents, lost = given
            self._messages.handle(replace(received, losses=lost), latents)

    def _turn_away(self, received: Received) -> None:
        """After the end clients get the refusal of what was not made; that the session has ended, `closed` says."""
        if received.reply is not None or received.sender is not None or received.has_order:
            self._messages.refuse(received, DrainingError("the session has ended"))


def _with_losses(work: Callable[[], Latents]) -> tuple[Latents, tuple[str, ...]]:
    with losses() as lost:
        return work(), tuple(lost)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What work gives, or TickRT's error, and the processor time that it took in this thread, in seconds."""
    started_s = time.thread_time()
    try:
        result = work()
    except TickError as error:
        result = error
    return result, time.thread_time() - started_s
