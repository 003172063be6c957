"""Processes of a cluster on this machine: started, found again, ended; and what is said where one is missing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.cluster import short_folder
from helpers.http_harness import eventually

from runtime.base.errors import ConfigError, TickError
from server.cluster.local_cluster import LocalCluster, program
from server.service.lease import Lease


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def cluster(folder: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster(folder)
    yield cluster
    cluster.stop()


def test_what_a_killed_launcher_has_left_is_found_and_ended(
    cluster: LocalCluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.cluster.local_cluster.STOP_S", 0.1)
    sleeper = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    parent = cluster.launch("sleeper", sys.executable, "-c", sleeper)
    eventually(lambda: len(cluster.members()) == 2)
    parent.kill()
    parent.wait()
    assert len(LocalCluster(folder).members()) == 1
    LocalCluster(folder).stop()
    assert cluster.members() == []


def test_a_process_that_ignores_sigterm_is_killed(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cluster.local_cluster.STOP_S", 0.1)
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True)"
    cluster.launch("stubborn", sys.executable, "-c", f"{ignoring}; time.sleep(600)")
    eventually(lambda: "on" in cluster.log_of("stubborn").read_text())
    cluster.stop()
    assert cluster.members() == []


def test_processes_of_another_cluster_are_left_alone(cluster: LocalCluster, folder: Path) -> None:
    with short_folder() as other:
        mine = cluster.launch("mine", sys.executable, "-c", "import time; time.sleep(600)")
        LocalCluster(other).stop()
        assert mine.poll() is None


def test_a_process_that_ends_while_it_is_waited_for_is_reported(cluster: LocalCluster) -> None:
    cluster.launch("failing", sys.executable, "-c", "raise SystemExit('no such device')")
    with pytest.raises(TickError, match="failing has ended with status 1: no such device"):
        cluster.wait_until(lambda: False, "nothing answers")


def test_a_wait_has_an_end(cluster: LocalCluster) -> None:
    with pytest.raises(TickError, match="nothing answers after 0 s"):
        cluster.wait_until(lambda: False, "nothing answers", timeout_s=0)


def test_a_folder_with_a_long_path_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="too long for Unix sockets"):
        LocalCluster(folder / ("x" * 90))


def test_a_missing_program_is_named() -> None:
    with pytest.raises(ConfigError, match="no-such-program is not installed"):
        program("no-such-program")


def test_replicas_are_ready_once_their_leases_say_so_and_the_edge_sends_them_sessions(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = ["ready", "full", "loading"]
    slots = [("sessions", "ready"), ("sessions", "maint"), ("generations", "ready")]
    monkeypatch.setattr(cluster, "leases", lambda: [Lease(each, "", "", each, 0, 1, 0.0) for each in states])  # type: ignore[arg-type]
    monkeypatch.setattr(cluster, "_admin", SimpleNamespace(ask=lambda question: question))
    monkeypatch.setattr(
        "server.cluster.local_cluster.parse_servers",
        lambda answer: [SimpleNamespace(backend=backend, state=state) for backend, state in slots],
    )
    assert [cluster._are_ready(count, False) for count in (2, 3)] == [True, False]
    assert [cluster._are_ready(count, True) for count in (1, 2)] == [True, False]
    slots[1] = ("sessions", "ready")
    assert [cluster._are_ready(count, True) for count in (2, 3)] == [True, False]

    def away() -> list[Lease]:
        raise OSError

    monkeypatch.setattr(cluster, "leases", away)
    assert not cluster._are_ready(0, False)
