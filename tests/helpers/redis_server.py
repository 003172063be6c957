"""A redis-server of a test's own, on a socket in a folder."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

START_TIMEOUT_S = 60.0


@dataclass
class RedisServer:
    """A running redis-server, its URL, and a client."""

    process: subprocess.Popen[bytes]
    url: str
    client: Any


@contextmanager
def redis_server(folder: Path) -> Iterator[RedisServer]:
    """A redis-server until the end of the block; skips the test where redis-server or the package redis is missing."""
    redis = pytest.importorskip("redis", reason="needs the extra redis")
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("needs redis-server (apt-get install redis-server)")
    path = folder / "redis.sock"
    command = [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(path)
            with closing(redis.Redis(unix_socket_path=str(path))) as client:
                yield RedisServer(process, f"unix://{path}", client)
        finally:
            process.kill()


def wait_for(path: Path) -> None:
    until_s = time.monotonic() + START_TIMEOUT_S
    with socket.socket(socket.AF_UNIX) as probe:
        while probe.connect_ex(str(path)):
            assert time.monotonic() < until_s, "redis-server does not start"
            time.sleep(0.01)
