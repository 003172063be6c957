"""The bytes of sources in a folder and in a Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from helpers.lock_check import lock_checked
from helpers.memory_redis import MemoryRedis
from helpers.redis_server import RedisServer, redis_server

from server.service.sources import SourceFiles, SourceFolder


@pytest.fixture(scope="session")
def real_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One redis-server for all tests."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["server", "memory"])
def redis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """A redis-server, and what is used of one."""
    if request.param == "memory":
        return in_memory(monkeypatch)
    real: RedisServer = request.getfixturevalue("real_redis")
    return real


def in_memory(monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """What is used of a redis-server, in this process."""
    pytest.importorskip("redis", reason="needs the extra redis")
    memory = MemoryRedis()
    for module in ("shared_sources", "leases"):
        monkeypatch.setattr(f"server.service.{module}.connect", lambda url: memory)
    return RedisServer(cast(Any, None), "memory", memory)


@pytest.fixture(params=["folder", "redis", "memory"])
def open_files(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], SourceFiles]]:
    """`open_files()`: the same files again, as another server has them or the same one after a restart."""
    if request.param == "folder":
        yield lambda: lock_checked(SourceFolder, "_sources")(tmp_path)
        return
    redis = in_memory(monkeypatch) if request.param == "memory" else request.getfixturevalue("real_redis")
    from server.service.shared_sources import SharedSources

    redis.client.flushdb()
    opened: list[SharedSources] = []

    def open_one() -> SharedSources:
        opened.append(SharedSources(redis.url))
        return opened[-1]

    yield open_one
    for files in opened:
        files.close()
