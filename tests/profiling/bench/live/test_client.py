"""The client of the live bench, against a server that follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from helpers.live_clients import ready, scripted_server, silence

from profiling.bench.live import client as module
from profiling.bench.live.client import LiveClient, SessionRefusedError, live_client
from runtime.base.errors import TickError
from runtime.live.protocol.messages import Ack, ClientMessage, Close, Open, SetControls
from runtime.live.protocol.server_messages import Applied, Closed, Problem, ServerMessage, State

PROBLEM = Problem(
    urn="urn:tickrt:problem:full", title="Full", status=503, detail="all slots are taken", code="full", fix="wait"
)
STATE = State(
    playhead_sample=0, sent_until_sample=0, lead_s=0.2, generations_in_flight=0, generation_s=0.1, underruns=0,
    ticks=0, tick_ms=1.0, canvas_position_s=0.0, playing=True,
)  # fmt: skip


class Clock:
    """The client's clock: it moves by 50 ms with every report that the server gets, however busy the machine is."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "ACK_S", 0.005)
    return clock


class Script:
    """A server with 10 s of audio; it keeps what it is sent."""

    def __init__(self, clock: Clock) -> None:
        self.received: list[ClientMessage] = []
        self.sent_bytes = 0
        self._clock = clock

    def answer(self, message: ClientMessage) -> list[ServerMessage | bytes]:
        answers = self._answer(message)
        self.sent_bytes += sum(len(answer) for answer in answers if isinstance(answer, bytes))
        return answers

    def _answer(self, message: ClientMessage) -> list[ServerMessage | bytes]:
        self.received.append(message)
        match message:
            case Ack():
                self._clock.now_s += 0.05
            case Open():
                return [ready(), silence(0, 10_000), STATE]
            case SetControls():
                begin = self.playhead + 500
                applied = Applied(seq=message.seq, tick=1, first_sample=begin, full_sample=begin)
                return [silence(begin, 10_000, message.seq, message.seq), applied, PROBLEM]
            case Close():
                return [Closed(reason="closed by the client", resumable=False)]
        return []

    @property
    def playhead(self) -> int:
        return max((message.playhead_sample for message in self.received if isinstance(message, Ack)), default=0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30.0):
        while not condition():
            await asyncio.sleep(0.005)


async def play(script: Script) -> LiveClient:
    async with scripted_server(script.answer) as url, live_client(url, Open(seed=5)) as client:
        await until(lambda: script.playhead > 50)
        await client.send(SetControls(seq=1, values={"guidance": 2.0}))
        await until(lambda: client.log.full(1))
        await client.send(Close())
        await until(lambda: client.closed)
    return client


def test_a_client_plays_reports_and_logs(clock: Clock) -> None:
    script = Script(clock)
    client = asyncio.run(play(script))
    reports = [message.playhead_sample for message in script.received if isinstance(message, Ack)]
    assert (script.received[0], Close() in script.received) == (Open(seed=5), True)
    assert reports == sorted(reports)
    full, applied = client.log.full(1), client.applied[1][0]
    assert full is not None
    assert full.begin == applied.first_sample
    assert (client.log.underruns, client.log.late_samples) == (0, 0)
    assert (client.states, client.problems) == ([STATE], [PROBLEM])
    assert client.closed == Closed(reason="closed by the client", resumable=False)
    assert len(client.worst_leads_s) == len(reports)
    assert client.received_bytes == script.sent_bytes > 2 * 10_000


def test_a_refused_session_is_an_error_with_the_fix() -> None:
    async def refused() -> None:
        async with scripted_server(lambda message: [PROBLEM]) as url, live_client(url, Open()):
            pass

    with pytest.raises(SessionRefusedError, match="all slots are taken\n  fix: wait"):
        asyncio.run(refused())


def test_sending_to_a_closed_session_is_an_error_with_its_reason(clock: Clock) -> None:
    async def lost() -> None:
        async with scripted_server(Script(clock).answer) as url, live_client(url, Open()) as client:
            await client.send(Close())
            await until(lambda: client.closed)
            client.disconnect()
            while True:
                await client.send(SetControls(seq=1, values={}))
                await asyncio.sleep(0)

    with pytest.raises(TickError, match="session s1: closed by the client"):
        asyncio.run(lost())


def test_a_session_is_resumed_at_its_own_address() -> None:
    async def resume() -> int:
        def answer(message: ClientMessage) -> list[ServerMessage | bytes]:
            return [ready(next_sample=7000, resumed=True)] if message == Open(resume="t1") else []

        async with scripted_server(answer) as url, live_client(url, Open(resume="t1"), session="s1") as client:
            return client.log.playhead(0.0)

    assert asyncio.run(resume()) == 7000
