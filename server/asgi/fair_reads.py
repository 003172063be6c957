"""Fair reading: what connections send is parsed in turns, which take about half of the event loop's thread, and of
which every connection gets its share.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count
from time import thread_time
from typing import Any

from server.asgi.shares import Budget, network_of

# What is read at once, and the first part of it that is parsed: chunks and frames of a few bytes take 1 us a byte.
READ_BYTES, PIECE_BYTES = 16 * 1024, 512
# How long a client may take to read what was written, once its connection is closing.
FLUSH_S = 2.0
# CPU time of one connection's turn, and about that of accepting and closing one, counted with its first turn.
TURN_S, CONNECTION_S = 0.0005, 0.0003
# CPU time of the turns in one iteration of the event loop, with about what each makes tasks do, which is counted later.
TURNS_S, TASK_S = 0.002, 0.001
# Of the thread's time; after a quiet time so much at once. A debt is paid by a pause, which the bound keeps short.
SHARE, BURST_S, MAX_DEBT_S = 0.5, 0.02, 0.02
# What an address may use of the thread before its new connections come behind those of others: they do so by steps of
# what it has used more, up to a last one.
ADDRESS_SHARE, STEP_S, MAX_STEPS = 0.1, 0.02, 5
# So many wait before those that have left are looked for.
MANY_WAITING = 1024
MAX_ADDRESSES = 4096
# All addresses that no connection has come from lately.
UNKNOWN = "unknown"
MAX_NUMBER = 2**63


@dataclass(eq=False)
class ConnectionKind:
    """Connections of one kind, and those of them that wait, as (order, number, connection, turn).

    tag_s: of the kind among kinds, as a connection's among those of its kind. virtual_s: the tag that had a turn last.
    """

    tag_s: float = 0.0
    virtual_s: float = 0.0
    limit: int = MANY_WAITING
    waiting: list[tuple[float, int, Flow, Callable[[], None]]] = field(default_factory=list)


@dataclass(eq=False)
class Flow:
    """What a connection counts as. account: its address, or UNKNOWN where that was unknown when it came."""

    kind: ConnectionKind
    address: str
    account: str
    is_closing: Callable[[], bool]
    tag_s: float = 0.0


class FairReads:
    """The turns of one event loop's connections: start-time fair queueing by the CPU time that each has caused.

    Every connection has a tag, in seconds: the virtual time at which it has had its share. The lowest tag is next, and
    is the virtual time then; a turn, and what the tasks of its requests use, add to the tag. A connection that used
    little is next. The same holds among three kinds of connections: new ones, up to the end of their first turn's work,
    those with further requests, and WebSockets that are open. However many come, those that are there get their share.
    New ones are in the order of what their addresses have used lately, unknown addresses together.

    There are few turns in an iteration of the event loop: what they make tasks do is counted before further ones.
    """

    def __init__(self) -> None:
        self.new, self.requests, self.websockets = ConnectionKind(), ConnectionKind(), ConnectionKind()
        self._virtual_s = 0.0
        self._budget = Budget(SHARE, BURST_S, MAX_DEBT_S, self._now_s)
        self._number = count()
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by account: how much, and when
        self._is_running = False
        self._timer: asyncio.Handle | None = None

    def flow(self, address: str, is_closing: Callable[[], bool]) -> Flow:
        """What a new connection counts as."""
        return Flow(self.new, address, address if address in self._used else UNKNOWN, is_closing)

    def open_websocket(self, flow: Flow) -> None:
        """The connection is a WebSocket's from now on."""
        self._move(flow, self.websockets)

    def add(self, connection: FairTransport, *, at_once: bool = False) -> None:
        """Let a connection wait for its turn; `at_once`: it has it before this returns, if there is time for that."""
        self._add(connection.flow, connection.take_turn, at_once=at_once)

    async def turn(self, flow: Flow) -> None:
        """Wait for a turn of the connection's, to write."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add(flow, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def charge(self, connection: FairTransport, used_s: float) -> None:
        """Count CPU time that a connection has caused."""
        flow, kind = connection.flow, connection.flow.kind
        self._budget.charge(used_s)
        flow.tag_s = max(kind.virtual_s, flow.tag_s) + used_s
        kind.tag_s = max(self._virtual_s, kind.tag_s) + used_s
        for account in {flow.address, flow.account} if kind is self.new else {flow.address}:
            self._used[account] = self._lately_s(account) + used_s, self._now_s()
            self._used.move_to_end(account)
        while len(self._used) > MAX_ADDRESSES:
            self._used.popitem(last=False)

    def _add(self, flow: Flow, turn: Callable[[], None], *, at_once: bool = False) -> None:
        if flow.kind is self.new and flow.tag_s:  # it had its first turn
            self._move(flow, self.requests)
        self._push(flow, turn)
        if self._is_running or self._timer is not None:
            return
        pause_s = self._budget.pause_s()
        if at_once and not pause_s:
            self._run()
        else:
            self._run_later(pause_s)

    def _push(self, flow: Flow, turn: Callable[[], None]) -> None:
        order, number = max(flow.kind.virtual_s, flow.tag_s), next(self._number)
        if flow.kind is self.new:
            order = min(MAX_STEPS, self._lately_s(flow.account) // STEP_S)
            # Of more than there is time for, those who wait the longest have left, or are closed to make room.
            number = MAX_NUMBER - number if flow.account == UNKNOWN else number
        heappush(flow.kind.waiting, (order, number, flow, turn))
        if len(flow.kind.waiting) > flow.kind.limit:
            self._forget_closed(flow.kind)

    def _forget_closed(self, kind: ConnectionKind) -> None:
        waiting, kind.waiting = kind.waiting, []
        for item in waiting:
            if item[2].is_closing():
                item[3]()
            else:
                kind.waiting.append(item)
        heapify(kind.waiting)
        kind.limit = 2 * len(kind.waiting) + MANY_WAITING

    def _move(self, flow: Flow, kind: ConnectionKind) -> None:
        flow.tag_s, flow.kind = kind.virtual_s + max(0.0, flow.tag_s - flow.kind.virtual_s), kind

    def _run(self) -> None:
        """Give turns; at least one, so that none waits for ever where other work takes all time."""
        self._timer, self._is_running, has_turned = None, True, False
        ends_s = thread_time() + TURNS_S
        try:
            while thread_time() < ends_s:
                if (found := self._next()) is None:
                    break
                (flow, turn), has_turned = found, True
                ends_s -= 0.0 if flow.is_closing() else TASK_S
                turn()
                if self._budget.pause_s():
                    break
        finally:
            self._is_running = False
        if has_turned:
            self._run_later(self._budget.pause_s())

    def _run_later(self, pause_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(pause_s, self._run) if pause_s else loop.call_soon(self._run)

    def _next(self) -> tuple[Flow, Callable[[], None]] | None:
        """The turn that is next."""
        while kinds := [kind for kind in (self.websockets, self.new, self.requests) if kind.waiting]:
            kind = min(kinds, key=lambda kind: max(self._virtual_s, kind.tag_s))
            order, _, flow, turn = heappop(kind.waiting)
            if flow.kind is not kind or (kind is not self.new and flow.tag_s > order):
                self._push(flow, turn)  # it has changed while it waited
                continue
            self._virtual_s = max(self._virtual_s, kind.tag_s)
            kind.virtual_s = order if kind is not self.new else 0.0
            return flow, turn
        return None

    def _lately_s(self, account: str) -> float:
        """What connections of an account have used lately."""
        used_s, at_s = self._used.get(account, (0.0, 0.0))
        return max(0.0, used_s - ADDRESS_SHARE * (self._now_s() - at_s))

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class FairTransport:
    """A connection's transport as its protocols see it: what arrives is kept until it is parsed in a turn.

    Nothing is read while something is kept, and nothing is written once the connection is closing. `pause_reading`
    ends the turns until `resume_reading`. `has_turn`: whether it is the connection's turn, `is_waiting`: whether it
    waits for one.
    """

    def __init__(self, transport: Any, reads: FairReads) -> None:
        self._transport, self._reads = transport, reads
        peer = transport.get_extra_info("peername")
        self.address = network_of(str(peer[0])) if peer else ""
        self.flow = reads.flow(self.address, transport.is_closing)
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

    def close(self) -> None:
        """Send what was written, then close."""
        self._transport.close()
        self.abort_later()

    def abort_later(self) -> None:
        """Abort after FLUSH_S: a client that does not read cannot keep a closing connection open."""
        asyncio.get_running_loop().call_later(FLUSH_S, self._transport.abort)

    def end(self) -> None:
        """The connection has ended: nothing of it is kept, though its protocols and transports know each other."""
        self._kept = b""

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
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # also a panic of native code
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

    def open_websocket(self) -> None:
        """The connection is a WebSocket's from now on."""
        self._reads.open_websocket(self.flow)

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

    def abort(self, flush: bool) -> None:
        """Close the connection at once; with `flush`, send first what was already written."""
        if not flush:
            self.transport.abort()
        self.transport.close()

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
