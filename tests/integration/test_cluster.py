"""Two replicas behind the edge, with a Redis (make test-scale): one is killed, frozen or drained while a session plays,
the edge is reloaded, a session is taken by another replica, what one has is asked for through the edge.

The client plays in real time. What it hears is the uninterrupted session, sample by sample; the largest gap is printed.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.acestep_client import wav_file
from helpers.cluster import needs_programs, short_folder
from helpers.http_harness import eventually
from helpers.real_time import CHUNK, RATE_HZ, play
from websockets.sync.client import connect

import tickrt
from runtime.base.errors import TickError
from runtime.config.deployment import Deployment
from runtime.live.protocol.frames import decode_chunk
from runtime.live.protocol.messages import Ack, Close, Open
from runtime.live.protocol.server_messages import Ready, message_text, parse_server_message
from server.cluster import local_cluster
from server.cluster.edge import AdminSocket
from server.cluster.local_cluster import LocalCluster, free_port, plain_cluster

pytestmark = [pytest.mark.slow, needs_programs("haproxy", "redis-server")]
BEFORE_S, AFTER_S = 2.0, 6.0
LIMITS = {"TICKRT_MAX_REFRESH_S": "1e6"}


@dataclass
class Replica:
    """A server process, and its own address."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def is_connected(self) -> bool:
        """Whether it has a session with a client."""
        return "tickrt_live_connected" in (text := httpx.get(f"{self.url}/metrics").text) and any(
            line.startswith("tickrt_live_connected{") and line.endswith(" 1.0") for line in text.splitlines()
        )


@dataclass
class Cluster:
    """Replicas, their Redis, and the address of their edge."""

    replicas: list[Replica]
    running: LocalCluster
    url: str

    def owner(self) -> tuple[Replica, Replica]:
        """The replica that has the one session with a client, and the other one."""
        (owner,) = (replica for replica in self.replicas if replica.is_connected)
        (other,) = (replica for replica in self.replicas if replica is not owner)
        return owner, other


@contextmanager
def started(config: Path, **settings: str) -> Iterator[Cluster]:
    """Two replicas that are ready, behind HAProxy."""
    bind = f"127.0.0.1:{free_port()}"
    with short_folder() as folder, plain_cluster(config, folder, bind, **LIMITS, **settings) as running:
        addresses = {lease.name: f"http://{lease.address}" for lease in running.leases()}
        replicas = [Replica(running.launched[name], url) for name, url in addresses.items()]
        yield Cluster(replicas, running, f"http://{bind}")


@pytest.fixture
def cluster(built: Callable[..., Deployment]) -> Iterator[Cluster]:
    """A cluster of the tiny model for one test, which may end parts of it."""
    with started(built(depth=1, max_rows=16).path) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def lasting(built: Callable[..., Deployment]) -> Iterator[Cluster]:
    """A cluster for all tests that leave it as it is: two sessions at each replica."""
    with started(built(depth=1, max_rows=16).path, TICKRT_MAX_SESSIONS="2") as cluster:
        yield cluster


def uninterrupted(cluster: Cluster) -> np.ndarray:
    with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
        return live.read(round((BEFORE_S + AFTER_S) * RATE_HZ))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_session_is_heard_as_if_its_replica_had_not_ended(sent: signal.Signals, cluster: Cluster) -> None:
    expected = uninterrupted(cluster)
    with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
        before, _ = play(live, BEFORE_S)
        ended, other = cluster.owner()
        ended.process.send_signal(sent)
        after, late_s = play(live, AFTER_S)
        print(f"{sent.name}: the largest gap was {late_s:.2f} s")
        assert other.is_connected
        if sent == signal.SIGSTOP:
            # Both think that the session is theirs; the one that was frozen gives way, and what is stored stays.
            ended.process.send_signal(signal.SIGCONT)
            eventually(lambda: not ended.is_connected)
            live.read(RATE_HZ)
            assert live.state is not None
            assert live.state.stored
            assert other.is_connected
    np.testing.assert_allclose(np.concatenate([before, after]), expected, atol=1e-4)


def test_sessions_play_on_without_the_store(cluster: Cluster) -> None:
    expected = uninterrupted(cluster)
    with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
        before, _ = play(live, BEFORE_S)
        cluster.running.launched["redis"].kill()
        after, late_s = play(live, AFTER_S)
        print(f"store away: the largest gap was {late_s:.2f} s")
        assert live.state is not None
        assert not live.state.stored
        away = httpx.post(f"{cluster.url}/v1/sources", content=wav_file(1.0), timeout=30.0)
        assert (away.status_code, away.json()["code"]) == (503, "store_unavailable")
    np.testing.assert_allclose(np.concatenate([before, after]), expected, atol=1e-4)


def test_a_session_plays_through_a_reload_of_the_edge(
    built: Callable[..., Deployment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "haproxy.cfg"
    shutil.copy(local_cluster.HAPROXY_CONFIG, config)
    monkeypatch.setattr(local_cluster, "HAPROXY_CONFIG", config)
    with started(built(depth=1, max_rows=16).path) as cluster:
        admin = AdminSocket(cluster.running.folder / "haproxy.sock")
        expected, worker = uninterrupted(cluster), pid_of(admin)
        with tickrt.TickRT(cluster.url).live("a", mode="extend", seed=3) as live:
            before, _ = play(live, BEFORE_S)
            owner, _ = cluster.owner()
            config.write_text(config.read_text().replace("timeout http-request 10s", "timeout http-request 11s"))
            cluster.running.launched["haproxy"].send_signal(signal.SIGUSR2)
            after, late_s = play(live, AFTER_S)
            print(f"edge reloaded: the largest gap was {late_s:.2f} s")
            assert pid_of(admin) != worker
            assert cluster.owner()[0] is owner
            with tickrt.TickRT(cluster.url).live("a") as another:
                another.read(CHUNK)
        np.testing.assert_allclose(np.concatenate([before, after]), expected, atol=1e-4)


def pid_of(admin: AdminSocket) -> str:
    """The process id of the HAProxy that takes new connections."""
    return next(line for line in admin.ask("show info").splitlines() if line.startswith("Pid:"))


def test_a_session_that_two_replicas_claim_goes_on_at_the_one_that_took_it_last(lasting: Cluster) -> None:
    expected = uninterrupted(lasting)
    with tickrt.TickRT(lasting.url).live("a", mode="extend", seed=3) as live:
        before, _ = play(live, BEFORE_S)
        owner, other = lasting.owner()
        ready = live._sessions._ready  # type: ignore[attr-defined]
        with connect(f"{other.url.replace('http', 'ws')}/v1/live/{ready.session}") as second:
            second.send(message_text(Open(resume=ready.resume_token)))
            assert isinstance(parse_server_message(second.recv()), Ready)
            with pytest.raises(TickError, match="taken"):
                play(live, 30.0)
            assert not owner.is_connected
            end_sample = 0
            while end_sample < len(expected) - RATE_HZ:
                data = second.recv()
                if isinstance(data, bytes):
                    chunk = decode_chunk(data, RATE_HZ, expected.shape[1])
                    np.testing.assert_allclose(chunk.pcm, expected[chunk.start_sample : chunk.end_sample], atol=1e-4)
                    end_sample = chunk.end_sample
                    second.send(message_text(Ack(playhead_sample=end_sample)))
            assert other.is_connected
            second.send(message_text(Close()))
            eventually(lambda: not other.is_connected)
    np.testing.assert_allclose(before, expected[: len(before)], atol=1e-4)


def test_what_one_replica_has_is_found_through_the_edge(lasting: Cluster, tmp_path: Path) -> None:
    with httpx.Client(base_url=lasting.url, timeout=30.0) as edge:
        source = edge.post("/v1/sources", content=wav_file(1.0)).json()
        body = {"prompt": "a", "seconds": 0.64, "source_id": source["id"]}
        for replica in lasting.replicas:
            assert httpx.post(f"{replica.url}/v1/audio/generations", json=body).status_code == 200
        with tickrt.TickRT(lasting.url).live("a") as live:
            live.read(CHUNK)
            session = live._sessions._ready.session  # type: ignore[attr-defined]
            for _ in range(2 * len(lasting.replicas)):  # each of them is asked
                assert edge.get(f"/v1/sessions/{session}").json()["connected"]
                assert [card["id"] for card in edge.get("/v1/sessions").json()["data"]] == [session]
                assert edge.get("/%6detrics").status_code == 403
            for level in (0.1, 0.2, 0.4):  # uploaded to any replica
                (tmp_path / "source.wav").write_bytes(wav_file(1.0, level))
                live.source(tmp_path / "source.wav", 0.5)
                live.read(RATE_HZ)  # raises what was wrong with it
            assert len(edge.get("/v1/sources").json()["data"]) == 4
            assert edge.delete(f"/v1/sessions/{session}").status_code == 204
        task = edge.post("/release_task", json={"prompt": "a", "audio_duration": 1}).json()["data"]["task_id"]

        def state() -> int:
            (found,) = edge.post("/query_result", json={"task_id_list": [task]}).json()["data"]
            return int(found["status"])

        eventually(lambda: state() == 1)


def test_a_full_replica_sends_a_session_on_and_a_full_cluster_refuses_it(lasting: Cluster) -> None:
    with ExitStack() as playing:
        for _ in range(4):  # faster than the edge learns of it
            live = playing.enter_context(tickrt.TickRT(lasting.url).live("a"))
            live.read(CHUNK)
        # Until they know of each other that they are full, each one says that another one has room.
        eventually(lambda: "2 sessions are open, the limit" in refusal(lasting).what)
        assert refusal(lasting).status == 503


def refusal(cluster: Cluster) -> TickError:
    """Why the cluster opens no session."""
    with pytest.raises(TickError) as refused:
        tickrt.TickRT(cluster.url).live("a")
    return refused.value
