"""One connection from its `open` to its close, with a host that the test speaks for; what it receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI, WebSocket
from fastapi.testclient import TestClient
from helpers.fake_live_host import CHANNELS, RATE_HZ, FakeHost, chunk
from prometheus_client import CollectorRegistry
from starlette.testclient import WebSocketTestSession
from starlette.websockets import WebSocketDisconnect

from runtime.base.errors import EngineDeadError, RequestError, SessionsFullError
from runtime.live.protocol.frames import decode_chunk
from runtime.live.protocol.messages import MAX_MESSAGE_BYTES, WriteAudio
from runtime.live.protocol.server_messages import (
    Applied,
    Closed,
    Problem,
    Ready,
    ServerMessage,
    parse_server_message,
    problem_of,
)
from server.asgi.problems import draining
from server.asgi.shares import RateLimit
from server.config import ServerSettings
from server.live import connection
from server.live.connection import LiveConnection, refuse
from server.live.incoming import Incoming, ViolationError, WriteError, num_counted
from server.service.metrics import LiveMetrics
from server.service.replicas import Membership


@dataclass
class Stage:
    """An app with one route, its host, and what the test may set."""

    host: FakeHost = field(default_factory=FakeHost)
    settings: ServerSettings = field(default_factory=ServerSettings)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    session: str | None = None
    draining: asyncio.Event | None = None
    membership: Any = field(default_factory=lambda: Membership(None, pytest.fail))
    client: TestClient = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = LiveMetrics(self.registry)
        app = FastAPI()

        @app.websocket("/")
        async def endpoint(websocket: WebSocket) -> None:
            self.event_loop, self.draining = asyncio.get_running_loop(), asyncio.Event()
            await websocket.accept()
            live = LiveConnection(websocket, self.host, self.settings, self.metrics, self.membership)  # type: ignore[arg-type]
            await live.run(self.session, self.draining)

        @app.websocket("/refused")
        async def refused(websocket: WebSocket) -> None:
            await websocket.accept()
            await refuse(websocket, draining())

        self.client = TestClient(app)

    @contextmanager
    def opened(self, **members: Any) -> Iterator[WebSocketTestSession]:
        """A connection whose session is open."""
        with self.client.websocket_connect("/") as websocket:
            websocket.send_json({"type": "open", **members})
            assert isinstance(received(websocket), Ready)
            yield websocket

    @property
    def listener(self) -> Any:
        return self.host.listeners[-1]

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"tickrt_{name}", labels) or 0.0


@pytest.fixture
def stage() -> Stage:
    return Stage()


def received(websocket: WebSocketTestSession) -> ServerMessage:
    return parse_server_message(websocket.receive_text())


def received_end(websocket: WebSocketTestSession) -> tuple[Problem | None, Closed, int]:
    """The last messages of a connection and its close code."""
    messages = [received(websocket)]
    while not isinstance(messages[-1], Closed):
        messages.append(received(websocket))
    with pytest.raises(WebSocketDisconnect) as disconnect:
        websocket.receive_text()
    problems = [message for message in messages if isinstance(message, Problem)]
    return problems[-1] if problems else None, messages[-1], disconnect.value.code


def test_open_messages_audio_and_close(stage: Stage) -> None:
    with stage.opened(prompts=[{"text": "calm"}]) as websocket:
        opened, client = stage.host.opened[0]
        assert (opened.prompts[0].text, client) == ("calm", "testclient")
        websocket.send_json({"type": "set", "seq": 1, "values": {"guidance": 2}})
        stage.listener.on_message(Applied(seq=1, tick=4, first_sample=960, full_sample=None))
        assert received(websocket) == Applied(seq=1, tick=4, first_sample=960)
        stage.listener.on_audio(chunk(960, 480, first_seq=1))
        heard = decode_chunk(websocket.receive_bytes(), RATE_HZ, CHANNELS)
        assert (heard.start_sample, heard.first_seq, heard.pcm.shape) == (960, 1, (480, 2))
        websocket.send_json({"type": "close"})
        stage.listener.on_message(Closed(reason="closed", resumable=False))
        problem, closed, code = received_end(websocket)
    assert (problem, closed.reason, code) == (None, "closed", 1000)
    assert [message.type for message, _ in stage.host.posted] == ["set", "close"]
    assert stage.host.detached == [("one", stage.listener)]


def test_opus_audio_is_encoded(stage: Stage) -> None:
    with stage.opened(format="opus") as websocket:
        stage.listener.on_audio(chunk(0, 9600))
        assert decode_chunk(websocket.receive_bytes(), RATE_HZ, CHANNELS).pcm.shape == (9600, 2)


@pytest.mark.parametrize(
    ("first", "status", "problem_code"),
    [
        ("{}", 422, "invalid_request"),
        ('{"type": "play"}', 422, "invalid_request"),
        ("no json", 400, "malformed_json"),
        ('{"type": "open", "slots": 9}', 422, "invalid_request"),
    ],
)
def test_a_first_message_that_is_no_open_ends_the_connection(
    stage: Stage, first: str, status: int, problem_code: str
) -> None:
    with stage.client.websocket_connect("/") as websocket:
        websocket.send_text(first)
        problem, closed, code = received_end(websocket)
    assert (problem.status, closed.reason, closed.resumable, code) == (status, "refused", False, 1008)
    assert not stage.host.listeners
    assert stage.value("live_refused_total", code=problem_code) == 1


def test_without_an_open_message_the_connection_ends(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OPEN_TIMEOUT_S", 0.01)
    with stage.client.websocket_connect("/") as websocket:
        problem, _, code = received_end(websocket)
    assert (problem.detail, code) == ("no open message within 0.01 s", 1008)


@pytest.mark.parametrize(
    ("refusal", "others", "wait_s", "end"),
    [
        pytest.param({}, None, 4.0, ("unavailable", None, 1013), id="alone"),
        pytest.param({}, (None, 1.5), 1.5, ("unavailable", None, 1013), id="another has room sooner"),
        pytest.param({}, (None, 9.0), 4.0, ("unavailable", None, 1013), id="another has room later"),
        pytest.param({}, ("ws://b", 9.0), 4.0, ("moved", "ws://b", 4307), id="another has room"),
        pytest.param({"is_of_client": True}, ("ws://b", 9.0), 4.0, ("unavailable", None, 1013), id="of the client"),
    ],
)
def test_a_full_server_names_another_one_or_says_when_to_try_again(
    stage: Stage, refusal: dict[str, Any], others: tuple[str | None, float] | None, wait_s: float, end: Any
) -> None:
    stage.host.refusal = SessionsFullError("64 sessions are open", retry_after_s=4.0, **refusal)
    if others is not None:
        stage.membership = SimpleNamespace(room_url=lambda: others[0], session_wait_s=lambda: others[1])
    with stage.client.websocket_connect("/") as websocket:
        websocket.send_json({"type": "open"})
        problem, closed, code = received_end(websocket)
    assert (closed.reason, closed.url, code, closed.resumable) == (*end, False)
    assert problem is not None
    assert (problem.status, problem.code, problem.retry_after_s) == (503, "sessions_full", wait_s)
    assert stage.value("live_refused_total", code="sessions_full") == 1


def test_a_server_that_shuts_down_refuses_with_a_problem(stage: Stage) -> None:
    with stage.client.websocket_connect("/refused") as websocket:
        problem, closed, code = received_end(websocket)
    assert (problem.code, problem.retry_after_s, closed.reason, code) == ("draining", 10.0, "unavailable", 1013)


def test_resume_without_a_session_in_the_path_is_refused(stage: Stage) -> None:
    with stage.client.websocket_connect("/") as websocket:
        websocket.send_json({"type": "open", "resume": "token"})
        problem, _, _ = received_end(websocket)
    assert problem.field == "resume"


def test_a_wrong_message_gets_a_problem_and_the_connection_stays(stage: Stage) -> None:
    stage.host.wrong = RequestError("too big", field="values.guidance")
    with stage.opened() as websocket:
        websocket.send_json({"type": "set", "seq": 7, "values": {"guidance": 99}})
        problem = received(websocket)
        assert isinstance(problem, Problem)
        assert (problem.field, problem.seq, problem.status) == ("values.guidance", 7, 422)
        websocket.send_json({"type": "set", "seq": 8})
        problem = received(websocket)
        assert isinstance(problem, Problem)
        assert (problem.field, problem.seq) == ("values", 8)
        websocket.send_json({"type": "pause"})
        stage.listener.on_message(Applied(seq=1))
        assert isinstance(received(websocket), Applied)
    assert [message.type for message, _ in stage.host.posted] == ["pause"]


def test_a_write_without_its_audio_gets_a_problem_with_its_own_seq(stage: Stage) -> None:
    with stage.opened() as websocket:
        websocket.send_json({"type": "write", "seq": 4, "at_s": 0, "samples": 8})
        websocket.send_json({"type": "set", "seq": 5, "values": {}})
        problem = received(websocket)
        assert isinstance(problem, Problem)
        assert problem.seq == 4
    assert [message.seq for message, _ in stage.host.posted] == [5]


def test_too_many_problems_end_the_connection_and_the_session_is_kept(stage: Stage) -> None:
    with stage.opened() as websocket:
        for _ in range(connection.MAX_PROBLEMS + 1):
            websocket.send_text("{}")
        problem, closed, code = received_end(websocket)
    assert (problem.code, closed.reason, closed.resumable, code) == ("protocol_violation", "violation", True, 1008)


def test_failed_generations_do_not_count_as_problems_of_the_client(stage: Stage) -> None:
    with stage.opened() as websocket:
        for _ in range(connection.MAX_PROBLEMS + 5):
            stage.listener.on_message(problem_of(EngineDeadError("lost")))
            assert isinstance(received(websocket), Problem)


def test_a_message_that_is_too_large_ends_the_connection(stage: Stage) -> None:
    with stage.opened() as websocket:
        websocket.send_text(" " * 2**20 + "{}")
        _, closed, code = received_end(websocket)
    assert (closed.reason, code) == ("too_large", 1009)


@pytest.mark.parametrize(
    ("settings", "is_open", "reason", "is_resumable", "code"),
    [
        ({}, True, "shutdown", False, 1001),
        ({"state": "/nowhere"}, True, "shutdown", True, 1001),
        ({"redis": "redis://nowhere"}, True, "moved", True, 4307),  # others share the store
        ({"redis": "redis://nowhere"}, False, "shutdown", False, 1001),
    ],
)
def test_a_server_that_drains_closes_its_connections_or_hands_them_over(
    settings: dict[str, Any], is_open: bool, reason: str, is_resumable: bool, code: int
) -> None:
    stage = Stage(settings=ServerSettings(**settings))
    with stage.opened() if is_open else stage.client.websocket_connect("/") as websocket:
        stage.event_loop.call_soon_threadsafe(stage.draining.set)
        _, closed, found = received_end(websocket)
    assert (closed.reason, closed.resumable, found) == (reason, is_resumable, code)


def test_many_messages_a_second_are_all_posted_in_order(stage: Stage) -> None:
    with stage.opened() as websocket:
        for seq in range(1, 301):
            websocket.send_text(json.dumps({"type": "set", "seq": seq, "values": {}}))
        websocket.send_json({"type": "seek"})
        assert isinstance(received(websocket), Problem)
    assert [message.seq for message, _ in stage.host.posted] == list(range(1, 301))


def test_messages_are_read_no_further_while_the_session_has_no_room(stage: Stage) -> None:
    with stage.opened() as websocket:
        stage.host.waiting = room = Future()
        for seq in (1, 2, 3):
            websocket.send_json({"type": "set", "seq": seq, "values": {}})
        for seq in (1, 2, 3):
            stage.listener.on_message(Applied(seq=seq))
            received(websocket)
        assert len(stage.host.posted) <= 1
        stage.host.waiting = None
        room.set_result(None)
        websocket.send_json({"type": "seek"})
        assert isinstance(received(websocket), Problem)
    assert [message.seq for message, _ in stage.host.posted] == [1, 2, 3]


WRITE = {"type": "write", "seq": 3, "at_s": 0.5, "samples": 4, "format": "s16"}


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def incoming(host: FakeHost) -> Incoming:
    return Incoming(host, "one", RATE_HZ, CHANNELS)  # type: ignore[arg-type]


def text(**members: Any) -> str:
    return json.dumps(members)


def test_a_write_is_posted_with_its_audio(host: FakeHost, incoming: Incoming) -> None:
    incoming.take(text(**WRITE))
    incoming.take(text(type="ack", playhead_sample=5))
    assert [message.type for message, _ in host.posted] == ["ack"]
    incoming.take(np.arange(8, dtype="<i2").tobytes())
    message, pcm = host.posted[-1]
    assert isinstance(message, WriteAudio)
    assert pcm.shape == (4, CHANNELS)
    assert pcm[3, 1] == pytest.approx(7 / 32767)


@pytest.mark.parametrize(
    ("before", "refused", "kind", "error", "posted"),
    [
        ([text(**WRITE)], bytes(15), WriteError, "15 bytes of audio, expected 16", []),
        ([text(**WRITE)], text(type="set", seq=4, values={}), WriteError, "seq 3 did not follow", ["set"]),
        ([], text(**{**WRITE, "samples": 480_001}), RequestError, "at most 480000", []),
        ([], bytes(4), RequestError, "a binary message without a write", []),
        ([bytes(4)], bytes(4), ViolationError, "a binary message without a write", []),
        ([], " " * (MAX_MESSAGE_BYTES + 1), ViolationError, "larger than", []),
        ([], text(type="set", seq=1, **dict.fromkeys(map(str, range(1000)), 1)), RequestError, "than 1000 members", []),
        ([], text(type="open"), RequestError, "the session is open", []),
    ],
)
def test_what_is_refused(
    before: list[str | bytes],
    refused: str | bytes,
    kind: type[RequestError],
    error: str,
    posted: list[str],
    host: FakeHost,
    incoming: Incoming,
) -> None:
    for data in before:
        with suppress(RequestError):
            incoming.take(data)
    with pytest.raises(kind, match=error) as found:
        incoming.take(refused)
    assert isinstance(found.value, ViolationError | WriteError) == (kind is not RequestError)
    assert getattr(found.value, "seq", 3) == 3
    is_large = len(refused) > MAX_MESSAGE_BYTES
    assert getattr(found.value, "reason", "violation") == ("too_large" if is_large else "violation")
    assert [message.type for message, _ in host.posted] == posted


def test_a_long_text_counts_more_than_a_short_one_and_than_audio() -> None:
    assert [num_counted(data) for data in ("{}", " " * 2048, b"")] == [1, 3, 1]


def test_a_rate_limit_spreads_what_exceeds_it() -> None:
    now_s = 0.0
    limit = RateLimit(3, 1.0, lambda: now_s)
    assert [limit.wait_s() for _ in range(5)] == [0.0, 0.0, 0.0, 1.0, 1.0]
    now_s = 5.0
    assert limit.wait_s() == 0.0
    assert limit.wait_s(3) == 1.0
    now_s = 10.0
    assert limit.wait_s(7) == 2.0
