"""Live sessions over a restart of the server: list, resume, end, expiry, wrong clocks, a full disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest
from helpers.http_harness import Served, eventually, problem, serving
from helpers.live_player import Player, is_audio, player
from helpers.redis_server import redis_server

from runtime.config.deployment import Deployment
from runtime.live.protocol.server_messages import Closed, Problem, Ready, State
from runtime.live.storage.redis_store import open_redis_store
from runtime.live.storage.store import SessionSnapshot, SessionStore

ADMIN_KEY = "only-for-admins"
Start = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def start(tiny: Callable[..., Deployment], state: Path) -> Start:
    """`with start() as served`: a server that keeps its state; it stops at the end of the block."""
    return partial(serving, tiny(), state=state)


def is_changed_audio(item: object) -> bool:
    """Audio that is made with the change; what was sent before it may be heard first."""
    return is_audio(item) and item.full_seq == 1


@contextmanager
def played(served: Served) -> Iterator[Ready]:
    """A session that has played, with one change; the connection is open in the block."""
    with player(served) as client:
        ready = client.open(prompts=[{"text": "a"}], seed=3)
        client.send(type="set", seq=1, values={"guidance": 2.5})
        client.receive_until(is_changed_audio)
        yield ready


def wait_until_stored(url: str, ready: Ready) -> None:
    """A change is stored on a thread of the store's own; it may be heard before."""
    with open_redis_store(url) as store:
        eventually(lambda: (stored := store.load(ready.session)) and stored.meta["controls"]["seqs"][0] == 1)


def resuming(served: Served, ready: Ready) -> AbstractContextManager[Player]:
    return player(served, f"/v1/live/{ready.session}")


def test_a_session_is_there_after_a_restart_and_goes_on_where_it_was(start: Start) -> None:
    with start() as served, played(served) as ready:
        pass
    with start() as served:
        listed = served.get("/v1/sessions").json()["data"]
        assert [(card["id"], card["connected"]) for card in listed] == [(ready.session, False)]
        with resuming(served, ready) as client:
            again = client.open(resume=ready.resume_token)
            assert (again.session, again.resumed, again.resume_token) == (ready.session, True, ready.resume_token)
            assert again.controls.values["guidance"] == 2.5
            assert again.next_sample >= ready.next_sample
            client.receive_until(is_changed_audio)


def test_a_session_in_redis_moves_to_another_server_and_outlives_redis(
    tiny: Callable[..., Deployment], tmp_path: Path
) -> None:
    with redis_server(tmp_path) as redis, serving(tiny(), redis=redis.url) as other:
        with serving(tiny(), redis=redis.url) as served, player(served) as first:
            ready = first.open(prompts=[{"text": "a"}], seed=3)
            first.send(type="set", seq=1, values={"guidance": 2.5})
            first.receive_until(is_changed_audio)
            wait_until_stored(redis.url, ready)
            with resuming(other, ready) as client:
                client.send(type="open", resume="wrong")
                assert isinstance(client.receive(), Problem)
            assert served.metrics()["tickrt_live_connected"] == 1
            with resuming(other, ready) as client:
                assert client.open(resume=ready.resume_token).controls.values["guidance"] == 2.5
                client.receive_until(is_changed_audio)
                assert first.receive_end() == (Closed(reason="taken", resumable=False), 4409)
        with resuming(other, ready) as client:
            assert client.open(resume=ready.resume_token).controls.values["guidance"] == 2.5
            redis.process.kill()
            redis.process.wait()
            client.send(type="set", seq=2, values={"guidance": 3.5})
            client.receive_until(lambda item: isinstance(item, State) and not item.stored)
            client.receive_until(lambda item: is_audio(item) and item.full_seq == 2)
            assert other.metrics()["tickrt_session_store_failed"] == 1
        with player(other, "/v1/live/unknown") as client:
            client.send(type="open", resume="token")
            refused = client.receive()
            assert isinstance(refused, Problem)
            assert (refused.status, refused.code, refused.retry_after_s) == (503, "store_unavailable", 5.0)
            assert client.receive_end() == (Closed(reason="unavailable", resumable=False), 1013)


def test_a_drained_server_hands_its_sessions_over(tiny: Callable[..., Deployment], tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as redis,
        serving(tiny(), redis=redis.url, admin_key=ADMIN_KEY) as served,
        serving(tiny(), redis=redis.url) as other,
        served.client(headers={"x-admin-key": ADMIN_KEY}) as http,
        player(served) as first,
    ):
        ready = first.open(prompts=[{"text": "a"}], seed=3, mode="extend")
        first.send(type="set", seq=1, values={"guidance": 2.5})
        first.receive_until(is_changed_audio)
        drained = http.post("/admin/drain")
        assert (drained.status_code, drained.json()) == (202, {"status": "draining", "live_sessions": 1})
        assert first.receive_end() == (Closed(reason="moved", resumable=True), 4307)
        with open_redis_store(redis.url) as store:
            stored = store.load(ready.session)
        with resuming(other, ready) as client:
            again = client.open(resume=ready.resume_token)
            assert again.next_sample == stored.meta["playhead"]["position"] > ready.next_sample
            assert again.controls.values["guidance"] == 2.5
            client.receive_until(is_changed_audio)
        eventually(lambda: served.service.pipeline is None)


def test_a_server_is_ready_once_its_sessions_are_restored(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    with start() as served, played(served) as ready:
        pass
    take = SessionStore.take

    def take_slowly(store: SessionStore, session_id: str) -> SessionSnapshot | None:
        time.sleep(0.5)
        return take(store, session_id)

    monkeypatch.setattr(SessionStore, "take", take_slowly)
    with start() as served, served.client() as http:
        assert http.get("/health/ready").json()["live_sessions"] == 1
        assert http.get(f"/v1/sessions/{ready.session}").status_code == 200


def test_a_stored_session_can_be_ended(start: Start) -> None:
    with start() as served, played(served) as ready:
        pass
    path = f"/v1/sessions/{ready.session}"
    with start() as served, served.client() as http:
        assert http.delete(path).status_code == 204
        eventually(lambda: http.get(path).status_code == 404)
    with start() as served, served.client() as http:
        problem(http.get(path), 404, "unknown_session")


@pytest.mark.parametrize("date_s", [0, 4_000_000_000])
def test_how_long_a_session_is_kept_does_not_depend_on_dates(start: Start, state: Path, date_s: int) -> None:
    with start() as served, played(served) as ready:
        pass
    for path in [state, *state.rglob("*")]:
        os.utime(path, (date_s, date_s))
    path = f"/v1/sessions/{ready.session}"
    with start(session_keep_s=600.0) as served, served.client() as http:
        assert http.get(path).status_code == 200
    with start(session_keep_s=0.01) as served, served.client() as http:
        eventually(lambda: http.get(path).status_code == 404)


def test_a_full_disk_ends_persistence_and_not_the_music(
    start: Start, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(state), start() as served, player(served) as client:
        client.open(prompts=[{"text": "a"}], mode="extend")
        for seq in range(1, 1000):
            client.send(type="set", seq=seq, values={"guidance": 1.0 + seq % 7})
            client.receive_until(lambda item, seq=seq: is_audio(item) and item.full_seq == seq)
            if "no longer stored" in caplog.text:
                break
        client.send(type="set", seq=1000, values={"guidance": 2.0})
        client.receive_until(lambda item: is_audio(item) and item.full_seq == 1000)
        assert served.metrics()["tickrt_session_store_failed"] == 1
    assert caplog.text.count("no longer stored") == 1


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 256 KiB; skips the test where it may not be mounted."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)
