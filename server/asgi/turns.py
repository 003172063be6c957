"""Work that clients cause, and that takes long: one at a time, each client in its turn, at a bounded pace."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool

from server.asgi.problems import unavailable
from server.asgi.shares import SMOOTHING, Budget, Clock

# How long work waits for its turn; the longest pause after other work; what work may take at once after a quiet time.
MAX_WAIT_S, MAX_PAUSE_S, BURST_S = 8.0, 2.0, 0.05
P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Work in threads, one at a time; next is the client that has used least CPU time (start-time fair queueing).

    what: the work, in messages: "this server {what}". share: of the time that it may use. max_wait_s: for a turn.
    Cancelled before its turn, because the client has left, work costs nothing. Event loop's thread only.
    """

    def __init__(self, what: str, share: float, max_wait_s: float = MAX_WAIT_S, clock: Clock = time.monotonic) -> None:
        self._what, self._share, self._max_wait_s = what, share, max_wait_s
        self._budget = Budget(share, BURST_S, share * MAX_PAUSE_S, clock)
        self._tags: dict[str, float] = {}  # what each client has used, from the virtual time on
        self._virtual_s = self._used_s = self._mean_s = 0.0
        self._number = count()
        self._waiting: list[tuple[float, int, str, asyncio.Future[None]]] = []
        self._is_taken = False
        self._timer: asyncio.TimerHandle | None = None
        self._shared: asyncio.Task[Any] | None = None

    async def run(self, client: str, work: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """What `work` gives. Raises ProblemError 503 where it has no turn in time."""
        await self._turn(client)
        try:
            return await run_in_threadpool(self._timed, partial(work, *arguments, **options))
        finally:
            self._charge(client)
            self._end_turn()

    async def run_shared(self, work: Callable[[], T]) -> T:
        """As run, for clients that get the same: those that ask before it begins get one result."""
        if self._shared is None:
            self._shared = asyncio.create_task(self.run("", self._begin, work))
            self._shared.add_done_callback(self._forget)
        result: T = await asyncio.shield(self._shared)
        return result

    def _begin(self, work: Callable[[], T]) -> T:
        self._shared = None
        return work()

    def _forget(self, shared: asyncio.Task[Any]) -> None:
        if self._shared is shared:  # it had no turn
            self._shared = None

    def _timed(self, work: Callable[[], T]) -> T:
        """In a thread, which alone has a turn now."""
        started_s = time.thread_time()
        try:
            return work()
        finally:
            self._used_s = time.thread_time() - started_s

    def _charge(self, client: str) -> None:
        used_s, self._used_s = self._used_s, 0.0
        self._tags[client] = self._tag(client) + used_s
        self._mean_s += (SMOOTHING if self._mean_s else 1.0) * (used_s - self._mean_s)
        self._budget.charge(used_s)

    async def _turn(self, client: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (self._tag(client), next(self._number), client, turn))
        self._go_on()
        try:
            async with asyncio.timeout(self._max_wait_s):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it came too late
                self._end_turn()
            if not isinstance(error, TimeoutError):
                raise
            left_s = self._mean_s / self._share * (1 + sum(not item[3].done() for item in self._waiting))
            raise unavailable("busy", f"this server {self._what}, one at a time", retry_after_s=left_s) from None

    def _end_turn(self) -> None:
        self._is_taken = False
        self._go_on()

    def _go_on(self) -> None:
        """Give the next turn, now or after a pause."""
        if self._is_taken or self._timer is not None:
            return
        if self._waiting and (pause_s := self._budget.pause_s()):
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._end_pause)
            return
        while self._waiting:
            tag, number, client, turn = heappop(self._waiting)
            if turn.done():  # its client has left
                continue
            if self._tag(client) > tag:  # other work of this client came first
                heappush(self._waiting, (self._tag(client), number, client, turn))
                continue
            self._virtual_s, self._is_taken = tag, True
            turn.set_result(None)
            return
        self._virtual_s = 0.0
        self._tags.clear()

    def _end_pause(self) -> None:
        self._timer = None
        self._go_on()

    def _tag(self, client: str) -> float:
        return max(self._virtual_s, self._tags.get(client, 0.0))


async def run_to_end(future: Future[T]) -> T:
    """The result of work in another thread. On cancellation its end is waited for: it uses its arguments until then."""
    done = asyncio.wrap_future(future)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        if not future.cancel():
            await asyncio.wait([done])
            if not done.cancelled():
                done.exception()
        raise
