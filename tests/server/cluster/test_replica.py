"""The server in a thread: it serves, reports its load, reloads its engines, and ends; what fails is raised."""

from __future__ import annotations

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
from server.service.sources import SourceFolder

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


async def test_a_server_has_a_lease_until_it_has_ended(built: Callable[..., Deployment], redis: RedisServer) -> None:
    server = ReplicaServer(built(max_rows=16).path, "tiny-1", redis.url, "127.0.0.1", has_edge=False)
    leases = Leases(redis.url)
    server.wait_ready()
    eventually(lambda: [lease.state for lease in leases.all()] == ["ready"])
    (lease,) = leases.all()
    assert (lease.name, lease.model, lease.url) == ("tiny-1", "tiny", f"http://{lease.address}")
    await server.drain()
    assert leases.all() == []
    leases.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{lease.url}/health/ready")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas do without the Redis that they share."""
    monkeypatch.setattr(service, "open_leases", lambda settings: None)
    monkeypatch.setattr(service, "open_session_store", lambda settings: None)
    monkeypatch.setattr(service, "open_source_files", lambda settings: SourceFolder(tmp_path))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(("has_edge", "limits"), [(True, (0, 0)), (False, (4, None))])
async def test_a_server_answers_until_it_has_ended(
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
        await server.check()
        assert await server.load() == Load(0, 64, 0.0)
        reloaded = server._service.metrics.engine_info._metrics.copy()
        await server.reload()
        assert server._service.metrics.engine_info._metrics.keys() == reloaded.keys()
        with monkeypatch.context() as patched:
            patched.setattr("server.cluster.replica.not_live", lambda service: draining())
            with pytest.raises(TickError, match="shutting down"):
                await server.check()
    finally:
        await server.drain()
    assert "server" not in {thread.name for thread in threading.enumerate()}
    for ended in (server.check, server.load, server.reload):
        with pytest.raises(TickError, match="has ended with status 0"):
            await ended()
    await server.drain()


@pytest.mark.usefixtures("alone")
async def test_engines_that_cannot_be_opened_are_the_reason_of_the_end(tmp_path: Path) -> None:
    server = ReplicaServer(tiny_deployment(tmp_path), "tiny-2", "redis://absent", "127.0.0.1")
    with pytest.raises(TickError, match="tickrt-build"):
        server.wait_ready()
    await server.drain()
