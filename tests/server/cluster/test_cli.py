"""tickrt-cluster's answers: arguments that do not fit, where nothing runs, where something does."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace

import pytest
from helpers.cluster import APPLIED
from helpers.http_harness import eventually
from helpers.paths import DEMO
from typer.testing import CliRunner

from runtime.base.errors import ConfigError
from server.cluster import cli
from server.cluster.ray_cluster import RayCluster
from server.process import open_socket
from server.service.lease import Lease


@pytest.fixture
def cluster(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> RayCluster:
    """A cluster of which nothing runs yet. These tests need no Ray."""
    monkeypatch.setattr(cli, "need_packages", lambda *names, extra: None)
    return cluster


def run(cluster: RayCluster, *arguments: object) -> tuple[int, str]:
    words = [str(argument) for argument in (*arguments, "--folder", cluster.folder)]
    result = CliRunner().invoke(cli.app, words)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("text", "counts"), [("2", (2, 2)), ("1..4", (1, 4)), ("3..3", (3, 3)), ("12..100", (12, 100))]
)
def test_numbers_of_replicas(text: str, counts: tuple[int, int]) -> None:
    assert cli.replica_counts(text) == counts


@pytest.mark.parametrize("text", ["0", "-1", "4..1", "1..", "two", "1...4", ""])
def test_a_wrong_number_of_replicas_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected a number, or the fewest and the most"):
        cli.replica_counts(text)


def test_without_ray_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(cli.app, ["status"])
    assert result.exit_code == 3
    assert "pip install 'tickrt[scale]'" in result.output


def test_where_nothing_runs(cluster: RayCluster) -> None:
    for command in ("status", "reload"):
        code, text = run(cluster, command)
        assert code == 4
        assert f"no cluster runs in {cluster.folder}" in text
    assert run(cluster, "down") == (0, f"no cluster runs in {cluster.folder}\n")


def test_a_second_up_says_what_runs(cluster: RayCluster) -> None:
    cluster.launch("replica", sys.executable, "-c", "import time; time.sleep(600)")
    eventually(RayCluster(cluster.folder).members)  # a process that has just begun has no environment for a moment
    code, text = run(cluster, "up", DEMO)
    assert (code, "parts of a cluster run" in text) == (2, True)
    cluster._record(APPLIED)
    code, text = run(cluster, "up", DEMO)
    assert code == 2
    assert "a cluster of /configs/demo.toml runs on http://127.0.0.1:8000" in text
    assert "tickrt-cluster down" in text
    code, text = run(cluster, "status")
    assert code == 4
    assert "Redis is gone" in text
    assert run(cluster, "down") == (0, "ended 1 processes\n")
    assert cluster.applied is None


def test_a_port_in_use_and_too_few_cores_are_reported_before_anything_starts(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.cluster.local_cluster.find_program", lambda name: f"/usr/sbin/{name}")
    with open_socket("127.0.0.1", 0, 65536) as taken:
        port = taken.getsockname()[1]
        code, text = run(cluster, "up", DEMO, "--port", port)
    assert (code, f"port {port} on 127.0.0.1 is in use" in text) == (2, True)
    code, text = run(cluster, "up", DEMO, "--port", port, "--replicas", 999)
    assert (code, "999 replicas need a core each" in text) == (2, True)
    assert cluster.members() == []


def test_what_a_replica_cannot_start_with_is_reported_before_anything_starts(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.cluster.local_cluster.find_program", lambda name: None)
    code, text = run(cluster, "up", DEMO)
    assert (code, "redis-server is not installed" in text) == (2, True)
    assert "building" not in text
    monkeypatch.setenv("TICKRT_MAX_SESSIONS", "many")
    code, text = run(cluster, "up", DEMO)
    assert (code, "max_sessions: expected an integer" in text) == (2, True)
    assert cluster.members() == []


def test_port_0_is_a_free_one() -> None:
    host, _, port = cli.free_address(0).rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_the_table_of_replicas(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lease = Lease("tiny-1", "127.0.0.1:8001", "", "ready", 3, 64, 0.25)
    reached = replace(lease, name="tiny-2", url="http://a:2")
    monkeypatch.setattr(RayCluster, "leases", lambda cluster: [lease, reached])
    cli.print_status(cluster)
    row, other = (line for line in capsys.readouterr().out.splitlines() if "tiny-" in line)
    assert other.strip("│ ").split("│")[-1].strip() == "http://a:2", "where clients reach it themselves"
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "tiny-1",
        "ready",
        "3 of 64",
        "0.2",
        "127.0.0.1:8001",
    ]
