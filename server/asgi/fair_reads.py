"""Fair reading: what connections send is parsed in turns, which take about half of the event loop's thread, and of
which every connection gets its share.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import partial
from heapq import heappop, heappush
from itertools import count
from time import thread_time
from typing import Any

# What is read at once, and the first part of it that is parsed: chunks and frames of a few bytes take 1 us a byte.
READ_BYTES, PIECE_BYTES = 16 * 1024, 512
# CPU time: of one connection's turn, of the turns between which the event loop does other things, and by how much a new
# connection comes behind those that used little, where others of its address have used more.
TURN_S, TURNS_S, NEW_S = 0.0005, 0.005, 0.00005
# About the CPU time of accepting and closing a connection, counted with its first turn.
CONNECTION_S = 0.0003
# Of the thread's time; after a quiet time so much at once. A debt is paid by a pause, which the bound keeps short.
SHARE, BURST_S, MAX_DEBT_S = 0.5, 0.02, 0.02
MAX_ADDRESSES = 4096


class FairReads:
    """The turns of one event loop's connections: start-time fair queueing by the CPU time that each has caused.

    Every connection has a tag, in seconds: the virtual time at which it has had its share. The lowest tag is next, and
    is the virtual time then; a turn, and what the tasks of its requests use, add to the tag. A connection that used
    little is next; new ones of an address come behind, so that many of them gain nothing.
    """

    def __init__(self) -> None:
        self._virtual_s = 0.0
        self._budget_s, self._filled_s = BURST_S, 0.0
        self._waiting: list[tuple[float, int, FairTransport]] = []
        self._order = count()
        self._addresses: dict[str, float] = {}  # the largest tag of each
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None

    def first_tag_s(self, address: str) -> float:
        """The tag of a new connection."""
        return min(self._addresses.get(address, 0.0), self._virtual_s + NEW_S)

    def add(self, connection: FairTransport, *, at_once: bool = False) -> None:
        """Let a connection wait for its turn; `at_once`: it has it before this returns, if there is time for that."""
        heappush(self._waiting, (max(self._virtual_s, connection.tag_s), next(self._order), connection))
        if self._is_running or self._timer is not None:
            return
        pause_s = self._pause_s()
        if at_once and not pause_s:
            self._run()
        else:
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._run)

    def charge(self, connection: FairTransport, used_s: float) -> None:
        """Count CPU time that a connection has caused."""
        self._budget_s = max(-MAX_DEBT_S, self._budget_s - used_s)
        connection.tag_s = max(self._virtual_s, connection.tag_s) + used_s
        if len(self._addresses) >= MAX_ADDRESSES:
            self._addresses.clear()
        self._addresses[connection.address] = max(self._addresses.get(connection.address, 0.0), connection.tag_s)

    def _run(self) -> None:
        """Give turns; at least one, so that none waits for ever where other work takes all time."""
        self._timer, self._is_running, started_s = None, True, thread_time()
        try:
            while self._waiting and thread_time() - started_s < TURNS_S:
                tag_s, order, connection = heappop(self._waiting)
                if connection.tag_s > tag_s:  # it was charged while it waited
                    heappush(self._waiting, (connection.tag_s, order, connection))
                    continue
                self._virtual_s = tag_s
                connection.take_turn()
                if self._pause_s():
                    break
        finally:
            self._is_running = False
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s(), self._run)

    def _pause_s(self) -> float:
        """How long it takes until there is time for turns again."""
        now_s = asyncio.get_running_loop().time()
        self._budget_s = min(BURST_S, self._budget_s + SHARE * (now_s - self._filled_s))
        self._filled_s = now_s
        return max(0.0, -self._budget_s / SHARE)


class FairTransport:
    """A connection's transport as its protocols see it: what arrives is kept until it is parsed in a turn.

    Nothing is read while something is kept, and nothing is written once the connection is closing. `pause_reading`
    ends the turns until `resume_reading`. `has_turn`: whether it is the connection's turn, `is_waiting`: whether it
    waits for one.
    """

    def __init__(self, transport: Any, reads: FairReads) -> None:
        self._transport, self._reads = transport, reads
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        self.tag_s = reads.first_tag_s(self.address)
        self.has_turn = self.is_waiting = False
        self._kept = b""
        self._has_more = self._is_paused = False
        self._uncounted_s = CONNECTION_S

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        """Send bytes."""
        self.write(b"".join(parts))

    def pause_reading(self) -> None:
        """Parse no more."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Parse again, in the next turn."""
        self._is_paused = False
        self._wait()

    def wait_for_turn(self) -> None:
        """Have the protocol's `handle_events` called in the next turn: it has bytes that it has not parsed."""
        self._has_more = True
        self._wait()

    def put_back(self, data: bytes) -> None:
        """Keep bytes that a protocol did not take for the one that comes after it."""
        self._kept = data + self._kept

    def take(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._kept += data
        self._wait(at_once=True)
        if self._has_bytes():
            self._transport.pause_reading()

    def take_turn(self, limit_s: float = TURN_S) -> None:
        """Parse what is kept, for about `limit_s` of CPU time."""
        self.is_waiting, self.has_turn, started_s, size = False, True, thread_time(), PIECE_BYTES
        had_bytes = self._has_bytes()
        try:
            while self._can_parse() and (used_s := thread_time() - started_s) < limit_s:
                size *= 2 if 0 < used_s < limit_s / 4 else 1
                self._parse(size)
        except Exception as error:
            message = "a connection could not be read"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})
            self._transport.abort()
        finally:
            self.has_turn = False
            self.charge(thread_time() - started_s + self._uncounted_s)
            self._uncounted_s = 0.0
        if had_bytes and not self._has_bytes():
            self._transport.resume_reading()
        self._wait()

    def parse_rest(self) -> None:
        """Parse all that is kept, because there are no more turns."""
        while self._has_bytes() and not self._transport.is_closing():
            self._is_paused = False
            self.take_turn(math.inf)

    def charge(self, used_s: float) -> None:
        """Count CPU time that the connection has caused."""
        self._reads.charge(self, used_s)

    def _parse(self, size: int) -> None:
        protocol = self._transport.get_protocol()
        if self._has_more:
            self._has_more = False
            protocol.handle_events()
            return
        piece, self._kept = self._kept[:size], self._kept[size:]
        protocol.data_received(piece)

    def _has_bytes(self) -> bool:
        """Whether something is kept of what has arrived."""
        return bool(self._kept)

    def _can_parse(self) -> bool:
        is_paused = self._is_paused or self._transport.is_closing()
        return (self._has_more or self._has_bytes()) and not is_paused

    def _wait(self, *, at_once: bool = False) -> None:
        if self._can_parse() and not self.is_waiting and not self.has_turn:
            self.is_waiting = True
            self._reads.add(self, at_once=at_once)


class BoundedReads(asyncio.BufferedProtocol, asyncio.Protocol):
    """A protocol of a FairTransport, which gives its data_received at most READ_BYTES at once."""

    transport: FairTransport
    _buffer = memoryview(b"")

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have arrived."""
        data, self._buffer = bytes(self._buffer[:nbytes]), memoryview(b"")
        self.transport.take(data)


@types.coroutine
def charged(coroutine: Coroutine[Any, Any, Any], charge: Callable[[float], None]) -> Generator[Any, None, Any]:
    """Run a coroutine; `charge` gets the CPU time of each of its steps, in seconds."""
    step: Callable[[], Any] = partial(coroutine.send, None)
    while True:
        started_s = thread_time()
        try:
            awaited = step()
        except StopIteration as end:
            return end.value
        finally:
            charge(thread_time() - started_s)
        try:
            yield awaited
        except BaseException as error:
            step = partial(coroutine.throw, error)
        else:
            step = partial(coroutine.send, None)
