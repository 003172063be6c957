"""What tests of clusters need: programs that are installed, a folder with a short path, tickrt-cluster's commands."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
