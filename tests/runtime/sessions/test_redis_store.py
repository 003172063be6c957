"""The Redis store against a real redis-server: the contract of stores, claims of sessions, failures of the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("redis", reason="needs the extra redis")

from helpers.redis_server import RedisServer, redis_server
from helpers.store_contract import *  # noqa: F403  (tests that every session store passes)
from helpers.store_contract import Opened, assert_same, snapshot

from runtime.errors import ConfigError, StoreError
from runtime.sessions.redis_store import open_redis_store
from runtime.sessions.store import STORE_FORMAT

SOON_S = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
def opened(server: RedisServer) -> Opened:
    return lambda: open_redis_store(server.url)


def test_a_session_in_use_by_another_server_is_neither_read_nor_written_nor_deleted(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as one, opened() as other:
        one.save("a", snapshot(1))
        one.flush()
        with pytest.raises(StoreError, match="in use by another server"):
            other.load("a")
        other.save("a", snapshot(2))
        other.delete("a")
        other.flush()
        assert_same(one.load("a"), snapshot(1))
        assert other.failure is None


def test_a_closed_store_gives_its_sessions_to_the_next_server(opened: Opened) -> None:
    with opened() as other:
        with opened() as one:
            one.save("a", snapshot(1))
        assert_same(other.load("a"), snapshot(1))


def test_a_server_that_restarts_under_its_name_has_its_sessions_at_once(server: RedisServer) -> None:
    with (
        open_redis_store(server.url, owner="replica-1") as killed,
        open_redis_store(server.url, owner="replica-1") as one,
    ):
        killed.save("a", snapshot(1))
        killed.flush()
        assert one.ids() == ["a"]
        assert_same(one.load("a"), snapshot(1))


def test_claims_are_renewed_while_the_store_is_open(server: RedisServer, opened: Opened) -> None:
    with open_redis_store(server.url, claim_s=SOON_S) as one, opened() as other:
        one.save("a", snapshot(1))
        one.flush()
        time.sleep(3 * SOON_S)
        server.client.pexpire("tickrt:claim:a", 60_000)
        with pytest.raises(StoreError, match="in use by another server"):
            other.load("a")


def test_a_session_whose_claim_expired_is_taken_over_and_not_written_by_its_old_server(
    server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as old, opened() as new:
        old.save("a", snapshot(1))
        old.flush()
        server.client.delete("tickrt:claim:a")
        assert_same(new.load("a"), snapshot(1))
        for number in (2, 3):
            old.save("a", snapshot(number))
            old.flush()
        old.save("b", snapshot(4))
        old.flush()
        assert_same(new.load("a"), snapshot(1))
        assert server.client.get("tickrt:claim:b") is not None
    assert caplog.text.count("session a is owned by another server") == 1


def test_a_session_is_deleted_once_it_had_no_owner_for_keep_s(server: RedisServer) -> None:
    with open_redis_store(server.url, claim_s=6.0, keep_s=60.0) as store:
        store.save("a", snapshot(1))
        store.flush()
        assert 0 < server.client.pttl("tickrt:claim:a") <= 6000
    assert not server.client.exists("tickrt:claim:a")
    assert 6000 < server.client.pttl("tickrt:session:a") <= 66_000


def test_a_newer_format_is_refused_and_kept(server: RedisServer, opened: Opened) -> None:
    server.client.set("tickrt:format", STORE_FORMAT + 1)
    with pytest.raises(ConfigError, match=f"format {STORE_FORMAT + 1}, this server reads formats up to {STORE_FORMAT}"):
        opened()
    assert server.client.dbsize() == 1


def test_a_damaged_session_is_reported_and_does_not_harm_the_others(
    server: RedisServer, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with opened() as store:
        store.save("a", snapshot(1, canvas=1.0))
        store.save("b", snapshot(2, canvas=2.0))
        store.flush()
        server.client.hset("tickrt:session:a", "piece:canvas", b"damaged")
        assert store.load("a") is None
        assert_same(store.load("b"), snapshot(2, canvas=2.0))
    assert "session a cannot be resumed: piece/canvas is damaged" in caplog.text


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
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_server_that_cannot_be_reached_is_refused_without_naming_the_password() -> None:
    with pytest.raises(ConfigError, match=r"Redis at 127\.0\.0\.1:1 cannot be used") as refused:
        open_redis_store("redis://:secret@127.0.0.1:1/0")
    assert "secret" not in str(refused.value)
