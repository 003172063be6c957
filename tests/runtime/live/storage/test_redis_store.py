"""The Redis store against a real redis-server: the contract of stores, epochs of sessions, failures of the server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

pytest.importorskip("redis", reason="needs the extra redis")

import redis
from helpers.http_harness import eventually
from helpers.redis_server import RedisServer, redis_server
from helpers.store_contract import *  # noqa: F403  (tests that every session store passes)
from helpers.store_contract import Opened, assert_same, assert_taken_from, snapshot

from runtime.base.errors import ConfigError, EntryUnavailableError, StoreUnavailableError
from runtime.live.storage.redis_store import open_redis_store, storage_errors
from runtime.live.storage.store import STORE_FORMAT

SOON_S = 0.05
TIMEOUT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def opened(server: RedisServer) -> Opened:
    return lambda: open_redis_store(server.url)


def test_a_session_is_taken_from_a_server_that_has_it(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    with opened() as old, opened() as new:
        assert_taken_from(old, new)
    assert caplog.text.count("session a was taken by another server") == 1


def test_reading_a_session_does_not_take_it(opened: Opened) -> None:
    with opened() as one, opened() as other:
        one.save("a", snapshot(1))
        one.flush()
        assert_same(other.load("a"), snapshot(1))
        one.save("a", snapshot(2))
        one.flush()
        assert_same(other.load("a"), snapshot(2))


def test_a_defect_while_sessions_are_renewed_ends_no_renewing(
    server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    lost: SimpleQueue[str] = SimpleQueue()

    def fail(session_id: str) -> None:
        lost.put(session_id)
        raise ZeroDivisionError

    with open_redis_store(server.url, renew_s=SOON_S) as old, opened() as new:
        old.on_lost(fail)
        for name in ("a", "b"):
            old.save(name, snapshot(1))
        old.flush()
        for name in ("a", "b"):
            new.take(name)
        assert {lost.get(timeout=TIMEOUT_S) for _ in range(2)} == {"a", "b"}
    assert "sessions are not renewed" in caplog.text


@pytest.mark.parametrize("poison", [("set", "another type"), ("hset", "epoch", "no number"), ("hset", "epoch", "nan")])
def test_a_poisoned_key_stops_no_other_session(
    poison: tuple[str, ...], server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    call, *values = poison
    with open_redis_store(server.url, renew_s=SOON_S) as store:
        for name in ("bad", "good"):
            store.save(name, snapshot(1))
        store.flush()
        getattr(server.client, call)("tickrt:session:bad", *values)
        server.client.pexpire("tickrt:session:good", 30_000)
        for number in range(3):
            for name in ("bad", "good"):
                store.save(name, snapshot(number))
            store.flush()
            assert_same(store.load("good"), snapshot(number))
        assert store.failure is None
        server.client.pexpire("tickrt:session:good", 30_000)
        eventually(lambda: server.client.pttl("tickrt:session:good") > 30_000)
    assert caplog.text.count("session bad cannot be stored") <= 1


@pytest.mark.parametrize("text", ["MISCONF errors writing to the AOF", "NOREPLICAS Not enough", "x: -OOM command not"])
def test_an_answer_about_the_server_is_no_error_of_a_key(text: str) -> None:
    with pytest.raises(StoreUnavailableError) as error, storage_errors():
        raise redis.ResponseError(text)
    assert not isinstance(error.value, EntryUnavailableError)


def test_a_process_that_fails_with_an_open_store_ends(server: RedisServer) -> None:
    script = f"from runtime.live.storage.redis_store import open_redis_store\nopen_redis_store({server.url!r})\n1 / 0"
    ended = subprocess.run([sys.executable, "-c", script], timeout=TIMEOUT_S, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, b"ZeroDivisionError: division by zero")


def test_a_session_is_kept_while_a_server_holds_it_and_for_keep_s_afterwards(server: RedisServer) -> None:
    with open_redis_store(server.url, renew_s=SOON_S, keep_s=60.0) as store:
        store.save("a", snapshot(1))
        store.flush()
        server.client.pexpire("tickrt:session:a", 30_000)
        eventually(lambda: server.client.pttl("tickrt:session:a") > 30_000)
        assert store.ids() == ["a"]
        store.release("a", lambda is_stored: None)
        store.flush()
        assert store.ids() == []
    assert 30_000 < server.client.pttl("tickrt:session:a") <= 61_000


def test_a_session_that_redis_has_lost_is_stored_again(server: RedisServer, opened: Opened) -> None:
    with opened() as old, opened() as new:
        old.save("a", snapshot(1))
        old.flush()
        new.take("a")
        server.client.delete("tickrt:session:a")
        new.save("a", snapshot(2, canvas=1.0))
        new.flush()
        old.save("a", snapshot(3))
        old.flush()
        assert_same(new.load("a"), snapshot(2, canvas=1.0))


def test_sessions_of_format_1_are_taken(server: RedisServer, opened: Opened) -> None:
    with opened() as store:
        store.save("a", snapshot(1, canvas=1.0))
    server.client.hdel("tickrt:session:a", "epoch")
    server.client.set("tickrt:format", 1)
    with opened() as store:
        assert_same(store.take("a"), snapshot(1, canvas=1.0))
        store.save("a", snapshot(2))
        assert_same(store.load("a"), snapshot(2))
    assert int(server.client.get("tickrt:format")) == STORE_FORMAT


def test_a_newer_format_is_refused_and_kept(server: RedisServer, opened: Opened) -> None:
    server.client.set("tickrt:format", STORE_FORMAT + 1)
    with pytest.raises(ConfigError, match=f"format {STORE_FORMAT + 1}, this server reads formats up to {STORE_FORMAT}"):
        opened()
    assert server.client.dbsize() == 1


def test_full_memory_ends_persistence_and_what_was_stored_is_kept(
    server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as store:
        store.save("a", snapshot(1))
        store.flush()
        server.client.config_set("maxmemory", 1)
        store.save("a", snapshot(2))
        store.flush()
        server.client.config_set("maxmemory", 0)
        assert store.failure is not None
        assert "maxmemory" in store.failure
        assert_same(store.load("a"), snapshot(1))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_server_that_ends_ends_persistence_and_closing_still_works(
    server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as store:
        store.save("a", snapshot(1))
        store.flush()
        server.process.kill()
        server.process.wait()
        store.save("a", snapshot(2))
        store.flush()
        assert store.failure is not None
        with pytest.raises(StoreUnavailableError) as refused:
            store.load("a")
        assert refused.value.status == 503
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_server_that_cannot_be_reached_is_refused_without_naming_the_password() -> None:
    with pytest.raises(ConfigError, match=r"Redis at 127\.0\.0\.1:1 cannot be used") as refused:
        open_redis_store("redis://:secret@127.0.0.1:1/0")
    assert "secret" not in str(refused.value)
