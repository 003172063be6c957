"""Live sessions on servers: they sound the same where the server changes in between."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Built
from helpers.http_harness import Served, eventually, serving
from helpers.redis_server import RedisServer, redis_server

import tickrt
from runtime.config.deployment import Deployment
from runtime.errors import DrainingError, RequestError, TickError

RATE_HZ = 8000
KEY = "the-key"


@pytest.fixture(scope="module")
def deployment(built: Built) -> Deployment:
    return built(max_rows=16)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def second(deployment: Deployment, redis: RedisServer) -> Iterator[Served]:
    with serving(deployment, redis=redis.url, api_key=KEY) as served:
        yield served


@pytest.fixture(scope="module")
def uninterrupted(second: Served) -> np.ndarray:
    """6 s of a session on one server."""
    with tickrt.TickRT(second.url, key=KEY).live("a", mode="extend", seed=3) as live:
        return live.read(6 * RATE_HZ)


def drain(served: Served, live: tickrt.Live) -> None:
    served.server.drain()


def lose_connection(served: Served, live: tickrt.Live) -> None:
    live._sessions._socket.socket.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]


@pytest.mark.parametrize("interrupt", [drain, lose_connection])
def test_a_session_goes_on_at_the_address_that_its_server_named_without_a_gap(
    interrupt: Callable[[Served, tickrt.Live], None],
    deployment: Deployment,
    redis: RedisServer,
    second: Served,
    uninterrupted: np.ndarray,
) -> None:
    with serving(deployment, redis=redis.url, api_key=KEY, edges=(second.url,)) as first:
        client = tickrt.TickRT(first.url, key=KEY)
        with client.live("a", mode="extend", seed=3) as live:
            played = [live.read(2 * RATE_HZ)]
            interrupt(first, live)
            played.append(live.read(4 * RATE_HZ))
            assert second.service.host is not None
            assert second.service.host.stats().connected == 1
            assert live.state is not None
            assert live.state.stored
    np.testing.assert_allclose(np.concatenate(played), uninterrupted, atol=1e-4)


def test_a_change_is_heard_and_a_wrong_one_raised_by_the_next_read(second: Served, tmp_path: Path) -> None:
    with tickrt.TickRT(second.url, key=KEY).live("a", seed=3) as live:
        before = live.record(2.0)
        live.set(velocity_scale=0.3)
        assert before.sample_rate_hz == RATE_HZ
        assert before.prompt_words.understood == ("a",)
        eventually(lambda: live.read(800) is not None and not live._receiver._pending_seq)
        assert np.abs(live.read(2 * RATE_HZ) - before.pcm).max() > 1e-3
        live.write(np.ones((800, 2)), 0.1)
        with pytest.raises(RequestError, match="nofile"):
            live.source(tmp_path / "nofile")
        live.set(guidance=-3.0)
        with pytest.raises(RequestError, match="guidance"):
            live.read(600 * RATE_HZ)


def test_who_cannot_open_a_session_is_told_why(second: Served) -> None:
    with pytest.raises(RequestError, match="urls"):
        tickrt.TickRT([])
    with pytest.raises(RequestError, match="401"):
        tickrt.TickRT(second.url).live("a")
    with pytest.raises(DrainingError, match=r"127\.0\.0\.1:1 does not answer"):
        tickrt.TickRT("http://127.0.0.1:1").live("a")
    with pytest.raises(RequestError, match="guidance"):
        tickrt.TickRT(["http://127.0.0.1:1", second.url], key=KEY).live("a", guidance=-3.0)


def test_a_session_that_was_ended_is_not_resumed(second: Served) -> None:
    with tickrt.TickRT(second.url, key=KEY).live("a", seed=3) as live:
        live.read(800)
        assert second.service.host is not None
        second.service.host.end(live._id, "deleted")
        with pytest.raises(TickError, match="deleted"):
            live.read(600 * RATE_HZ)
    eventually(lambda: not second.service.host.stats().open)  # type: ignore[union-attr]
