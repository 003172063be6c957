"""The server in a thread: it serves, reports its load, reloads its engines, and ends; what fails is raised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from helpers.factories import tiny_deployment
from helpers.http_harness import eventually
from helpers.redis_server import RedisServer, redis_server

from runtime.config.deployment import Deployment
from runtime.errors import TickError
from server.cluster.autoscaling import Load
from server.cluster.replica import ReplicaServer
from server.replicas.leases import Leases


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


def test_a_server_in_a_thread(built: Callable[..., Deployment], redis: RedisServer) -> None:
    server = ReplicaServer(built(max_rows=16).path, "tiny-1", redis.url, "127.0.0.1", has_edge=False)
    leases = Leases(redis.url)
    try:
        server.wait_ready()
        eventually(lambda: [lease.state for lease in leases.all()] == ["ready"])
        (lease,) = leases.all()
        assert (lease.name, lease.model, lease.url) == ("tiny-1", "tiny", f"http://{lease.address}")
        assert httpx.get(f"{lease.url}/health/ready").status_code == 200
        asyncio.run(server.check())
        assert asyncio.run(server.load()) == Load(0, 64, 0.0)
        asyncio.run(server.reload())
    finally:
        asyncio.run(server.drain())
    assert leases.all() == []
    leases.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{lease.url}/health/ready")
    for ended in (server.check, server.load, server.reload):
        with pytest.raises(TickError, match="has ended with status 0"):
            asyncio.run(ended())


def test_engines_that_are_not_built_are_reported(tmp_path: Path, redis: RedisServer) -> None:
    server = ReplicaServer(tiny_deployment(tmp_path), "tiny-2", redis.url, "127.0.0.1")
    with pytest.raises(TickError, match="tickrt-build"):
        server.wait_ready()
    asyncio.run(server.drain())
