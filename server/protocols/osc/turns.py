"""The turns of OSC clients on the event loop: what they send and are answered counts, however it is packed.

A client is an address, with all of its ports. Next is who has used least; what exceeds a client's limit waits, and is
dropped where too much waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from runtime.live.protocol.messages import MAX_MESSAGES_PER_S
from server.asgi.shares import Budget, Clock, RateLimit
from server.live.connection import MAX_PROBLEMS, PROBLEM_PERIOD_S

# So many bytes, of a packet or of an answer, count as one message.
BYTES_PER_MESSAGE = 64
# What the messages and answers of all addresses may count a second, and at once after a quiet time; of one address:
# MAX_MESSAGES_PER_S, and as many at once.
MAX_OF_ALL_PER_S, BURST_OF_ALL = 3 * MAX_MESSAGES_PER_S, 100
# Packets of one address that wait.
MAX_WAITING_BYTES = 16 * 1024
# Addresses that are known, and addresses that wait.
MAX_CLIENTS = 256
# In one iteration of the event loop.
MAX_PARTS = 4
# Gives what its next part counts, before that part is done.
Work = Iterator[int]


def size_count(num_bytes: int) -> int:
    """What bytes count beside the message that they are."""
    return num_bytes // BYTES_PER_MESSAGE


@dataclass(eq=False)
class QueuedWork:
    """Work that waits. count: what its next part counts."""

    work: Work
    num_bytes: int = 0
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = next(self.work)


@dataclass(eq=False)
class Client:
    """What an address has used and what it waits for. used: compared with the others that wait.

    answers: to what it has asked, before further packets. shown: what else it is sent, after all packets.
    """

    problems: RateLimit
    limit: Budget
    used: float = 0.0
    num_bytes: int = 0
    answers: deque[QueuedWork] = field(default_factory=deque)
    packets: deque[QueuedWork] = field(default_factory=deque)
    shown: deque[QueuedWork] = field(default_factory=deque)

    @property
    def jobs(self) -> deque[QueuedWork]:
        """Those that the next part is of; none where nothing waits."""
        return self.answers or self.packets or self.shown

    @property
    def order(self) -> float:
        """What it will have used after its next part."""
        return self.used + self.jobs[0].count

    def do_part(self) -> int:
        """Do the next part; what it counts."""
        jobs = self.jobs
        job, count, following = jobs[0], jobs[0].count, None
        self.used += count
        try:
            following = next(job.work, None)
        finally:
            if following is None:
                jobs.popleft()
                self.num_bytes -= job.num_bytes
            else:
                job.count = following
        return count


class ClientTurns:
    """Fair queueing of what clients' work counts. Used on the event loop's thread."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._limit = Budget(MAX_OF_ALL_PER_S, BURST_OF_ALL, clock=clock)
        self._clients: dict[str, Client] = {}  # who was heard last is the last
        self._waiting: dict[Client, None] = {}
        self._used = 0.0  # what each of those that wait has used, at least
        self._timer: asyncio.TimerHandle | None = None

    def client(self, name: str) -> Client:
        """An address, which is heard or answered now."""
        client = self._clients.pop(name, None) or self._new_client()
        self._clients[name] = client
        if len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]
        return client

    def has_room(self, client: Client) -> bool:
        """Whether a further packet of a client may wait."""
        return client.num_bytes < MAX_WAITING_BYTES and (client in self._waiting or len(self._waiting) < MAX_CLIENTS)

    def add_packet(self, client: Client, work: Work, num_bytes: int) -> None:
        """Do what a packet asks for, after those before it."""
        client.num_bytes += num_bytes + BYTES_PER_MESSAGE
        self._add(client, client.packets, QueuedWork(work, num_bytes + BYTES_PER_MESSAGE))

    def add_answers(self, name: str, work: Work) -> None:
        """Answer an address, before it may ask more."""
        client = self.client(name)
        self._add(client, client.answers, QueuedWork(work))

    def add_shown(self, name: str, work: Work) -> None:
        """Show an address something, after the packets that it has sent."""
        client = self.client(name)
        self._add(client, client.shown, QueuedWork(work))

    def close(self) -> None:
        """Give no more turns."""
        self._waiting.clear()
        self._go_on()

    def run(self) -> None:
        """Do some parts of work, of those clients that have kept to their limit."""
        try:
            for _ in range(MAX_PARTS):
                ready = [client for client in self._waiting if not client.limit.pause_s()]
                if ready and not self._limit.pause_s():
                    self._do_part(min(ready, key=attrgetter("order")))
        finally:
            self._go_on()

    def _new_client(self) -> Client:
        problems = RateLimit(MAX_PROBLEMS, PROBLEM_PERIOD_S, self._clock)
        return Client(problems, Budget(MAX_MESSAGES_PER_S, MAX_MESSAGES_PER_S, clock=self._clock))

    def _do_part(self, client: Client) -> None:
        self._used = max(self._used, min(waiting.used for waiting in self._waiting))
        try:
            count = client.do_part()
        finally:
            if not client.jobs:
                del self._waiting[client]
        for limit in (client.limit, self._limit):
            limit.charge(count)

    def _add(self, client: Client, jobs: deque[QueuedWork], job: QueuedWork) -> None:
        jobs.append(job)
        if client not in self._waiting:
            client.used = max(client.used, self._used)
            self._waiting[client] = None
        self._go_on()

    def _go_on(self) -> None:
        """Run again when a client may have a turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            pause_s = max(self._limit.pause_s(), min(client.limit.pause_s() for client in self._waiting))
            self._timer = asyncio.get_running_loop().call_later(pause_s, self.run)
