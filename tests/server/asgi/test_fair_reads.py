from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from server.asgi.fair_reads import (
    ADDRESS_SHARE,
    MANY_WAITING,
    MAX_ADDRESSES,
    PIECE_BYTES,
    READ_BYTES,
    TURN_S,
    UNKNOWN,
    BoundedReads,
    FairReads,
    FairTransport,
    charged,
)


class Cpu:
    """The CPU time of a thread that does nothing but what tests say."""

    used_s = 0.0

    def __call__(self) -> float:
        return self.used_s


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> Cpu:
    cpu = Cpu()
    monkeypatch.setattr("server.asgi.fair_reads.thread_time", cpu)
    return cpu


class Transport:
    """A transport of a client at `address`, and what was asked of it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.protocol: BoundedReads | None = None
        self.is_paused = self.is_closed = False
        self.written = list[bytes]()

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return (self._address, 1)

    def get_protocol(self) -> BoundedReads | None:
        return self.protocol

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_closed = True


class Parser(BoundedReads):
    """A protocol that needs `byte_s` of CPU time for a byte; `parsed` of all parsers has the name of each in order."""

    def __init__(self, name: str, reads: FairReads, cpu: Cpu, byte_s: float, parsed: list[str]) -> None:
        self.name, self.byte_s, self.parsed, self._cpu = name, byte_s, parsed, cpu
        self.raw, self.data = Transport(name[0]), b""
        self.raw.protocol = self
        self.transport = FairTransport(self.raw, reads)

    def receive(self, data: bytes) -> None:
        self.get_buffer(-1)[: len(data)] = data
        self.buffer_updated(len(data))

    def data_received(self, data: bytes) -> None:
        self._cpu.used_s += self.byte_s * len(data)
        self.data += data
        self.parsed.append(self.name)

    def handle_events(self) -> None:
        self.parsed.append(f"{self.name} again")


DATA = bytes(range(256)) * (READ_BYTES // 256)
COSTLY_S, CHEAP_S = 2 * TURN_S / PIECE_BYTES, 1e-9
Connect = Callable[..., Parser]
pytestmark = pytest.mark.anyio


@pytest.fixture
def reads() -> FairReads:
    return FairReads()


@pytest.fixture
def parsed() -> list[str]:
    return []


@pytest.fixture
def connect(reads: FairReads, cpu: Cpu, parsed: list[str]) -> Connect:
    """`connect(name, byte_s)`; the first letter of a name is the client's address."""
    return lambda name, byte_s=CHEAP_S: Parser(name, reads, cpu, byte_s, parsed)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_what_arrives_is_parsed_at_once_where_nothing_waits(connect: Connect) -> None:
    parser = connect("a")
    for number in range(10):
        parser.receive(DATA)
        assert parser.data == (number + 1) * DATA
        await asyncio.sleep(0)
    assert not parser.raw.is_paused


async def test_what_is_costly_is_parsed_in_turns_and_nothing_is_read_meanwhile(connect: Connect, cpu: Cpu) -> None:
    parsers = [connect(name, COSTLY_S) for name in ("a1", "a2", "b")]
    for parser in parsers:
        parser.receive(DATA)
    assert [parser.raw.is_paused for parser in parsers] == [True] * 3
    assert cpu.used_s < 20 * TURN_S
    await until(lambda: all(parser.data == DATA for parser in parsers))
    assert [parser.raw.is_paused for parser in parsers] == [False] * 3


async def test_who_has_used_little_is_next(connect: Connect, parsed: list[str]) -> None:
    light = connect("a1")
    light.receive(b"x")
    busy = [connect(f"a{index}", COSTLY_S * index) for index in range(2, 12)]
    for parser in busy:
        parser.receive(DATA)
    await until(lambda: len(parsed) > 40)
    before = len(parsed)
    light.receive(b"y")
    newcomers = [connect("a new one"), connect("b")]
    for parser in newcomers:
        parser.receive(b"z")
    await until(lambda: all(parser.data for parser in newcomers) and light.data == b"xy")
    order = parsed[before:]
    assert max(order.index("a1"), order.index("b")) < len(busy) / 2
    assert order.index("b") < order.index("a new one") < 2 * len(busy)


async def test_new_connections_of_ever_new_addresses_leave_others_their_turns(
    connect: Connect, parsed: list[str]
) -> None:
    busy, session = connect("a", COSTLY_S), connect("b", COSTLY_S)
    session.receive(b"x")
    await until(lambda: session.data == b"x")
    busy.receive(b"x")
    await until(lambda: busy.data == b"x")
    session.transport.open_websocket()
    for number in range(200):
        connect(chr(1000 + number), COSTLY_S).receive(DATA)
    for parser in (session, busy):
        parser.receive(b"y")
    await until(lambda: session.data == busy.data == b"xy")
    assert max(parsed.index("b", 1), parsed.index("a", 2)) < 10


async def test_a_new_connection_of_an_address_that_used_little_is_before_those_of_unknown_ones(
    connect: Connect, parsed: list[str]
) -> None:
    known = connect("a")
    known.receive(b"x")
    for number in range(200):
        connect(chr(1000 + number), COSTLY_S).receive(DATA)
    await until(lambda: len(parsed) > 100)
    before = len(parsed)
    returned = connect("a again")
    returned.receive(b"y")
    await until(lambda: returned.data == b"y")
    assert parsed.index("a again", before) - before < 10


async def test_what_turns_make_tasks_do_is_counted_before_there_are_many_more(
    reads: FairReads, parsed: list[str], cpu: Cpu
) -> None:
    tasks, unfinished = list[asyncio.Task[None]](), list[int]()

    class Server(Parser):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            unfinished.append(sum(not task.done() for task in tasks))
            tasks.append(asyncio.create_task(self.answer()))

        async def answer(self) -> None:
            self.transport.charge(0.002)

    for number in range(30):
        Server(chr(1000 + number), reads, cpu, CHEAP_S, parsed).receive(b"x")
    await until(lambda: len(tasks) == 30)
    assert max(unfinished) == 1, "of two turns in an iteration, before the second"


async def test_those_that_have_left_while_they_waited_do_not_add_up(
    connect: Connect, reads: FairReads, parsed: list[str]
) -> None:
    for number in range(3 * MANY_WAITING):
        parser = connect(chr(1000 + number), COSTLY_S)
        parser.receive(b"x")
        parser.raw.is_closed = True
    assert len(reads.new.waiting) <= MANY_WAITING
    staying = connect("b")
    staying.receive(b"x")
    await until(lambda: staying.data == b"x")
    assert len(parsed) < 10


async def test_a_turn_to_write_comes_after_those_that_used_less(connect: Connect, reads: FairReads) -> None:
    writer, other = connect("b"), connect("c")
    writer.receive(b"x")
    await until(lambda: writer.data == b"x")
    other.receive(b"x")
    await until(lambda: other.data == b"x")
    writer.transport.charge(0.1)
    writing = asyncio.create_task(reads.turn(writer.transport.flow))
    await asyncio.sleep(0)
    other.receive(b"y")
    assert not writing.done()
    await until(lambda: other.data == b"xy")
    await writing


async def test_a_turn_to_write_that_is_not_wanted_any_more_is_passed_over(connect: Connect, reads: FairReads) -> None:
    parser = connect("a")
    writing = asyncio.create_task(reads.turn(parser.transport.flow))
    await asyncio.sleep(0)
    writing.cancel()
    parser.receive(b"x")
    await until(lambda: parser.data == b"x")
    assert writing.cancelled()


async def test_what_a_task_uses_counts_for_its_connection(connect: Connect, parsed: list[str]) -> None:
    busy, other, third = (connect(name, COSTLY_S) for name in "abc")
    for parser in (third, busy, other):
        parser.receive(DATA)
    busy.transport.charge(1.0)
    await until(lambda: other.data == third.data == DATA)
    others = [index for index, name in enumerate(parsed) if name != "a"]
    assert parsed[: others[-1]].count("a") <= 2
    await until(lambda: busy.data == DATA)


async def test_turns_come_although_tasks_use_all_time(connect: Connect) -> None:
    busy, parser = connect("a"), connect("b", COSTLY_S)
    parser.receive(DATA)
    while parser.data != DATA:
        busy.transport.charge(1.0)
        await asyncio.sleep(0.001)


async def test_a_pause_ends_the_turns(connect: Connect) -> None:
    parser = connect("a")
    parser.transport.pause_reading()
    parser.receive(b"x")
    assert parser.raw.is_paused
    await asyncio.sleep(0.01)
    assert parser.data == b""
    parser.transport.resume_reading()
    await until(lambda: parser.data == b"x")
    assert not parser.raw.is_paused


async def test_bytes_that_a_protocol_left_are_for_the_one_after_it(connect: Connect, parsed: list[str]) -> None:
    first, second = connect("a"), connect("a")
    first.transport.pause_reading()
    first.receive(b"c")
    first.transport.put_back(b"ab")
    first.raw.protocol = second
    first.transport.resume_reading()
    await until(lambda: second.data == b"abc")
    first.transport.wait_for_turn()
    await until(lambda: parsed[-1] == "a again")


async def test_the_rest_is_parsed_where_there_are_no_more_turns(connect: Connect) -> None:
    parser = connect("a", COSTLY_S)
    parser.transport.pause_reading()
    parser.receive(DATA)
    parser.transport.parse_rest()
    assert parser.data == DATA


async def test_an_error_ends_its_connection_only(connect: Connect) -> None:
    errors = list[dict[str, object]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    failing, other = connect("a"), connect("b")
    failing.data = 0  # type: ignore[assignment]
    failing.receive(b"x")
    other.receive(b"y")
    await until(lambda: other.data == b"y")
    assert (failing.raw.is_closed, other.raw.is_closed, other.data) == (True, False, b"y")
    assert [type(context["exception"]) for context in errors] == [TypeError]


async def test_nothing_is_written_once_the_connection_is_closing(connect: Connect) -> None:
    parser = connect("a")
    parser.transport.write(b"x")
    parser.transport.writelines([b"y", b"z"])
    parser.transport.abort()
    parser.transport.write(b"lost")
    parser.transport.writelines([b"lost"])
    assert parser.raw.written == [b"x", b"yz"]


async def test_the_steps_of_a_task_are_charged(cpu: Cpu) -> None:
    steps = list[float]()

    async def task() -> str:
        cpu.used_s += 1.0
        await asyncio.sleep(0)
        cpu.used_s += 2.0
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cpu.used_s += 3.0
            raise
        return "not cancelled"

    async def charging() -> None:
        await charged(task(), steps.append)

    running = asyncio.create_task(charging())
    for _ in range(3):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert steps == [1.0, 2.0, 3.0]


async def test_a_task_returns_and_raises_as_without_charges() -> None:
    async def returning() -> int:
        await asyncio.sleep(0)
        return 3

    async def raising() -> None:
        await asyncio.sleep(0)
        raise LookupError

    assert await charged(returning(), lambda _: None) == 3
    with pytest.raises(LookupError):
        await charged(raising(), lambda _: None)


async def test_what_an_address_has_used_is_forgotten_with_time(
    connect: Connect, reads: FairReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(FairReads, "_now_s", lambda reads: now_s)
    transport = connect("a").transport
    lately_s = reads._lately_s
    transport.charge(0.06)
    transport.charge(0.04)
    assert lately_s("a") == pytest.approx(0.1)
    now_s += 0.03 / ADDRESS_SHARE
    assert lately_s("a") == pytest.approx(0.07)
    now_s += 1.0 / ADDRESS_SHARE
    assert lately_s("a") == 0.0
    transport.charge(0.02)
    assert lately_s("a") == pytest.approx(0.02), "no credit for the time without use"
    assert lately_s(UNKNOWN) == pytest.approx(0.02), "unknown addresses count together"
    transport.open_websocket()
    transport.charge(0.05)
    assert lately_s("a") == pytest.approx(0.07)
    assert lately_s(UNKNOWN) == pytest.approx(0.02), "of new connections only"


async def test_of_many_addresses_the_latest_are_known(reads: FairReads) -> None:
    for number in range(MAX_ADDRESSES + 3):
        FairTransport(Transport(f"{number}"), reads).charge(0.001)
    accounts = [reads.flow(f"{number}", bool).account for number in (0, 3, 4, MAX_ADDRESSES + 2)]
    assert accounts == [UNKNOWN, UNKNOWN, "4", f"{MAX_ADDRESSES + 2}"]
