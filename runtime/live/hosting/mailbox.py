"""What a host's thread has to do next: calls from any thread, sessions to advance, inboxes with something in them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, ParamSpec, TypeVar

from runtime.base.errors import InternalError, TickError
from runtime.base.threads import Heartbeat

P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("tickrt.sessions")


class Mailbox:
    """Any thread puts calls; the host's thread takes them and has the rest.

    changed: the sessions to advance next, by id. waiting: the inboxes with something in them, in their turn. share:
    what messages of one session may take of a thread now. failure: the tick loop has ended with it, and so do all
    sessions.
    """

    def __init__(self) -> None:
        self.changed: dict[str, None] = {}
        self.waiting: dict[Any, None] = {}
        self.share = 1.0
        self.failure: TickError | None = None
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def put(self, call: Callable[[], object]) -> None:
        """Let the host's thread call this."""
        self._calls.put(call)

    def take(self, timeout_s: float | None, heartbeat: Heartbeat) -> None:
        """Wait for a call, at most `timeout_s`, and carry out all that are there."""
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


class SessionWork:
    """Work of one session on the host's thread: an error that is none of TickRT's ends that session alone.

    end: ends it with an error.
    """

    def __init__(self, session_id: str, mailbox: Mailbox, end: Callable[[TickError], None]) -> None:
        self._id, self._mailbox, self._end = session_id, mailbox, end

    def attempt(self, work: Callable[P, T], *args: P.args, **options: P.kwargs) -> T | None:
        """Carry out work; None where the session has ended of it."""
        try:
            return work(*args, **options)
        except BaseException:  # also a panic of native code
            logger.exception("session %s has failed", self._id)
            self.attempt(self._end, InternalError("the session has failed"))
            return None

    def put(self, work: Callable[..., object], *args: Any) -> None:
        """Let the host's thread carry it out; from any thread."""
        self._mailbox.put(partial(self.attempt, work, *args))

    def when_done(self, made: Future[Any], take: Callable[[Any], object]) -> None:
        """Let the host's thread take what another one gives or raises: `expected` tells them apart."""
        made.add_done_callback(lambda ended: None if ended.cancelled() else self.put(take, outcome(ended)))

    def change(self) -> None:
        """Let the session be advanced next; on the host's thread."""
        self._mailbox.changed[self._id] = None


def outcome(ended: Future[T]) -> T | BaseException:
    """What a future that has ended gave or raised."""
    return ended.exception() or ended.result()


def expected(given: T | BaseException) -> T | TickError:
    """What work in a thread gave, or TickRT's error. Raises any other error, where it ends one session alone."""
    if isinstance(given, BaseException) and not isinstance(given, TickError):
        raise given
    return given
