"""The bytes of sources in a folder and in a Redis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.lock_check import lock_checked
from helpers.redis_server import RedisServer, redis_server

from server.sources.folder import SourceFolder
from server.sources.source import SourceFiles


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One redis-server for all tests."""
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(params=["folder", "redis"])
def open_files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SourceFiles]]:
    """`open_files()`: the same files again, as another server has them or the same one after a restart."""
    if request.param == "folder":
        yield lambda: lock_checked(SourceFolder, "_sources")(tmp_path)
        return
    redis: RedisServer = request.getfixturevalue("redis")
    from server.sources.shared import SharedSources

    redis.client.flushdb()
    opened: list[SharedSources] = []

    def open_one() -> SharedSources:
        opened.append(SharedSources(redis.url))
        return opened[-1]

    yield open_one
    for files in opened:
        files.close()
