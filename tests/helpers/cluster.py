"""What tests of clusters need: programs that are installed, a folder with a short path, tickrt-cluster's commands."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
from helpers.paths import ROOT

from server.cluster.local_cluster import LocalCluster, find_program
from server.cluster.ray_cluster import AppliedConfig, RayCluster
from server.service.lease import Lease

APPLIED = AppliedConfig("/configs/demo.toml", "demo", "http://127.0.0.1:8000", "127.0.0.1:6379", (2, 2), 0)
COMMAND_TIMEOUT_S = 300.0


def needs_programs(*names: str) -> pytest.MarkDecorator:
    """Skips a test where one of these programs is not installed."""
    missing = [name for name in names if find_program(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)} (apt-get install)")


def needs_ray() -> pytest.MarkDecorator:
    """Skips a test where Ray is not installed."""
    is_missing = importlib.util.find_spec("ray") is None
    return pytest.mark.skipif(is_missing, reason="needs Ray (pip install 'tickrt[scale]'; make test-scale)")


@contextmanager
def short_folder() -> Iterator[Path]:
    """A temporary folder with a short path, for Unix sockets; deleted at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="t-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """A cluster of which nothing runs yet, in a folder of its own; what is started is ended after the test."""
    with short_folder() as folder:
        cluster = RayCluster(folder)
        yield cluster
        cluster.stop()


@dataclass
class FakeReplica:
    """An HTTP server that answers all in one way, and what was asked. is_full: 503, but for its health."""

    server: ThreadingHTTPServer
    lease: Lease
    asked: list[tuple[str, Message]]
    is_full: bool = False


@contextmanager
def fake_replica(name: str, status: int = 200, body: bytes = b"", missing_bytes: int = 0) -> Iterator[FakeReplica]:
    """Answers with its name, or with `body`. missing_bytes: so many more are announced."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append((self.path, self.headers))
            content = body or name.encode()
            self.send_response(503 if made.is_full and self.path != "/health/live" else status)
            self.send_header("Content-Length", str(len(content) + missing_bytes))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        made = FakeReplica(server, Lease(name, f"127.0.0.1:{server.server_port}", "", "ready", 3, 10, 0.5), [])
        try:
            yield made
        finally:
            server.shutdown()


def command(cluster: RayCluster, *words: object) -> list[str]:
    """The words that run tickrt-cluster for this cluster."""
    program = "from server.cluster.cli import main; main()"
    return [sys.executable, "-c", program, *(str(word) for word in words), "--folder", str(cluster.folder)]


def run_command(cluster: RayCluster, *words: object, **settings: str) -> str:
    """Run tickrt-cluster with further environment variables; its output."""
    done = subprocess.run(
        command(cluster, *words),
        env={**os.environ, **settings},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def process_of(cluster: LocalCluster, lease: Lease) -> psutil.Process:
    """The replica's process: the one that listens at its lease's address."""
    port = int(lease.address.rpartition(":")[2])
    (found,) = (
        process
        for process in cluster.members()
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    )
    return found
