"""The server in a thread: it serves, reports its load, reloads its engines, and ends; what fails is raised."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from helpers.factories import tiny_deployment
from helpers.http_harness import eventually
from helpers.redis_server import RedisServer, redis_server

from runtime.base.errors import TickError
from runtime.config.deployment import Deployment
from server.asgi.problems import draining
from server.cluster.autoscaling import Load
from server.cluster.replica import ReplicaServer
from server.service import service
from server.service.leases import Leases
from server.service.source_folder import SourceFolder


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


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas do without the Redis that they share."""
    monkeypatch.setattr(service, "open_leases", lambda settings: None)
    monkeypatch.setattr(service, "open_session_store", lambda settings: None)
    monkeypatch.setattr(service, "open_source_files", lambda settings: SourceFolder(tmp_path))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("has_edge", "limits"), [(True, (0, 0)), (False, (4, None))])
def test_a_server_answers_until_it_has_ended(
    has_edge: bool, limits: tuple[int, int | None], built: Callable[..., Deployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ReplicaServer(built(max_rows=16).path, "tiny-1", "redis://absent", "127.0.0.1", has_edge=has_edge)
    try:
        server.wait_ready()
        settings, lease = server._service.settings, server._service.lease()
        assert (settings.client_sessions, settings.client_in_flight) == limits, "behind an edge all have its address"
        assert (lease.name, lease.url) == ("tiny-1", "" if has_edge else f"http://{lease.address}")
        assert lease.address == f"127.0.0.1:{settings.port}"
        assert httpx.get(f"http://{lease.address}/health/ready").status_code == 200
        asyncio.run(server.check())
        assert asyncio.run(server.load()) == Load(0, 64, 0.0)
        reloaded = server._service.metrics.engine_info._metrics.copy()
        asyncio.run(server.reload())
        assert server._service.metrics.engine_info._metrics.keys() == reloaded.keys()
        with monkeypatch.context() as patched:
            patched.setattr("server.cluster.replica.not_live", lambda service: draining())
            with pytest.raises(TickError, match="shutting down"):
                asyncio.run(server.check())
    finally:
        asyncio.run(server.drain())
    assert "server" not in {thread.name for thread in threading.enumerate()}
    for ended in (server.check, server.load, server.reload):
        with pytest.raises(TickError, match="has ended with status 0"):
            asyncio.run(ended())
    asyncio.run(server.drain())


@pytest.mark.usefixtures("alone")
def test_engines_that_cannot_be_opened_are_the_reason_of_the_end(tmp_path: Path) -> None:
    server = ReplicaServer(tiny_deployment(tmp_path), "tiny-2", "redis://absent", "127.0.0.1")
    with pytest.raises(TickError, match="tickrt-build"):
        server.wait_ready()
    asyncio.run(server.drain())
