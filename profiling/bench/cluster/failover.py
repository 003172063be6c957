"""What the client of a session plays when its replica is killed, drained or frozen, or when the store is gone."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from websockets.exceptions import WebSocketException

from profiling.bench.live.client import LiveClient, live_client
from profiling.bench.result import rounded
from runtime.base.errors import TickError
from runtime.live.protocol.messages import Close, LivePrompt, Open
from server.cluster.local_cluster import LocalCluster
from tickrt.live import Live
from tickrt.remote import TickRT

SIGNALS: Mapping[str, signal.Signals] = {
    "killed": signal.SIGKILL,
    "drained": signal.SIGTERM,
    "frozen": signal.SIGSTOP,
}
STORE = "store away"
ROUNDS = 3
BEFORE_S, AFTER_S = 2.0, 5.0
CHUNK_S, RETRY_S, RESUME_S = 0.05, 0.02, 30.0
# The edge sends a new session to the replica with the fewest: after one session and three more, each of two has two.
WATCHERS = 3
Listen = Callable[..., Coroutine[Any, Any, "Loss"]]
# A loop that nothing changes is generated once.
OPENING = Open(mode="loop", prompts=[LivePrompt(text="calm piano")], seed=3)


@dataclass
class Loss:
    """One event. Times in milliseconds since then; None where no connection was lost.

    noticed_ms: a connection to that replica was closed. resumed_ms: the session goes on at another one. gap_ms: the
    longest silence of a player in real time.
    """

    gap_ms: float
    noticed_ms: float | None = None
    resumed_ms: float | None = None


@dataclass
class Replicas:
    """The replicas of a cluster of servers, of which some end: others with new names take their place."""

    cluster: LocalCluster
    config: Path
    settings: Mapping[str, str]
    names: list[str]
    _num_started: int = field(init=False)
    _ended: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._num_started = len(self.names)

    def wait_idle(self) -> None:
        """Wait until exactly these replicas are ready behind the edge, without a session. Raises TickError."""
        self.cluster.wait_until(lambda: self._sessions() == dict.fromkeys(self.names, 0), "the replicas are not idle")
        self.cluster.wait_ready(len(self.names))

    def holder(self) -> str:
        """The one that has the only session. Raises TickError where there is none."""
        self.cluster.wait_until(lambda: sum(self._sessions().values()) == 1, "no replica has the session")
        return next(name for name, sessions in self._sessions().items() if sessions)

    def _sessions(self) -> dict[str, int]:
        return {lease.name: lease.sessions for lease in self.cluster.leases()}

    def end(self, name: str, sent: signal.Signals) -> None:
        """Send a replica a signal, with which it stops or ends."""
        self._ended = self.cluster.launched.pop(name)
        self._ended.send_signal(sent)

    def replace(self, name: str, sent: signal.Signals) -> None:
        """After `end`: let it go on, or start another one."""
        if sent == signal.SIGSTOP:
            self._ended.send_signal(signal.SIGCONT)
            self.cluster.launched[name] = self._ended
            return
        self._ended.wait()
        self._num_started += 1
        self.names[self.names.index(name)] = f"r{self._num_started}"
        self.cluster.start_replica(f"r{self._num_started}", self.config, **self.settings)


class FailoverClient:
    """Plays chunks of CHUNK_S in real time: what comes late is played late. A thread of its own plays.

    gap_s: the longest wait so far for audio that was due.
    """

    def __init__(
        self,
        chunks: Iterator[object],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.gap_s = 0.0
        self._clock, self._sleep = clock, sleep
        self._chunks = chunks
        self._due_s = 0.0
        self._has_ended = threading.Event()

    @asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        """Play until the end of the block, without a pause, in which more audio than usual would be sent ahead."""
        thread = asyncio.create_task(asyncio.to_thread(self._play))
        try:
            yield
        finally:
            self._has_ended.set()
            await thread

    def _play(self) -> None:
        while not self._has_ended.is_set():
            self.play_chunk()

    def play_chunk(self) -> None:
        """Wait until a chunk is due and take it. Raises TickError where the session has ended."""
        self._sleep(max(0.0, self._due_s - self._clock()))
        next(self._chunks)
        now_s = self._clock()
        if self._due_s:
            self.gap_s = max(self.gap_s, now_s - self._due_s)
        self._due_s = max(now_s, self._due_s) + CHUNK_S


async def listen(
    url: str,
    on_open: Callable[[], None],
    event: Callable[[], None],
    *,
    loses_replica: bool = False,
    after_s: float = AFTER_S,
) -> Loss:
    """Listen to a session and watch others while something happens. on_open: called while it is the only session."""
    with await asyncio.to_thread(_open, url) as live:
        player = FailoverClient(live)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(player.playing())
            await asyncio.to_thread(on_open)
            clients = [await stack.enter_async_context(live_client(url, OPENING)) for _ in range(WATCHERS)]
            watching = [asyncio.create_task(resume_elsewhere(url, client)) for client in clients]
            await asyncio.sleep(BEFORE_S)
            player.gap_s, begin_s = 0.0, time.monotonic()
            event()
            await asyncio.sleep(after_s)
            if loses_replica:
                await asyncio.wait(watching, timeout=RESUME_S, return_when=asyncio.FIRST_COMPLETED)
            loss = Loss(1e3 * player.gap_s)
            for client, task in zip(clients, watching, strict=True):
                if task.done():
                    loss.noticed_ms, loss.resumed_ms = (1e3 * (at_s - begin_s) for at_s in task.result())
                    continue
                task.cancel()
                with suppress(TickError):
                    await client.send(Close())
    return loss


def measure_failover(
    replicas: Replicas, url: str, on_share: Callable[[float], None], listen: Listen = listen
) -> dict[str, Any]:
    """Every event, ROUNDS times, and the end of the store: event -> figures. Raises TickError.

    listen: what listens meanwhile.
    """
    wanted = [(name, sent) for name, sent in SIGNALS.items() for _ in range(ROUNDS)]
    losses: dict[str, list[Loss]] = {name: [] for name in (*SIGNALS, STORE)}
    for index, (name, sent) in enumerate(wanted):
        on_share(index / (len(wanted) + 1))
        losses[name].append(_replica_ends(replicas, url, sent, listen))
    replicas.wait_idle()
    redis = replicas.cluster.launched.pop("redis")
    losses[STORE].append(asyncio.run(listen(url, lambda: None, redis.kill)))
    redis.wait()
    return {name: loss_figures(found) for name, found in losses.items()}


def loss_figures(losses: Sequence[Loss]) -> dict[str, Any]:
    """Median and largest of each time; {} where there is none."""
    figures: dict[str, Any] = {"rounds": len(losses)}
    for name in ("noticed_ms", "resumed_ms", "gap_ms"):
        times_ms = sorted(value for loss in losses if (value := getattr(loss, name)) is not None)
        figures[name] = rounded({"p50": median(times_ms), "max": times_ms[-1]}) if times_ms else {}
    return figures


def _replica_ends(replicas: Replicas, url: str, sent: signal.Signals, listen: Listen) -> Loss:
    replicas.wait_idle()
    held: list[str] = []
    find, end = (lambda: held.append(replicas.holder())), (lambda: replicas.end(held[0], sent))
    loss = asyncio.run(listen(url, find, end, loses_replica=True))
    replicas.replace(held[0], sent)
    return loss


def _open(url: str) -> Live:
    return TickRT(url).live("calm piano", mode="extend", chunk_s=CHUNK_S, seed=3)


async def resume_elsewhere(url: str, client: LiveClient) -> tuple[float, float]:
    """When the connection is lost, and when its session goes on in another one, which is then ended."""
    await client.wait_closed()
    lost_s = time.monotonic()
    while True:
        with suppress(TickError, OSError, WebSocketException):
            opening = Open(resume=client.ready.resume_token)
            async with live_client(url, opening, client.ready.session) as again:
                resumed_s = time.monotonic()
                await again.send(Close())
                return lost_s, resumed_s
        await asyncio.sleep(RETRY_S)
