"""Leases in a redis-server, and in memory: who is there, who has room, and what ends with its replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
import starlette.requests
from helpers.cluster import fake_replica
from helpers.redis_server import RedisServer

from runtime.base.errors import StoreError
from server.asgi.problems import ProblemError
from server.service.lease import LEASE_S, RENEW_S, Lease
from server.service.leases import Leases
from server.service.replicas import FORWARDED_HEADER, Membership, ask_all, ask_owner

pytestmark = pytest.mark.anyio
LEASE = Lease("one", "127.0.0.1:8001", "", "ready", 3, 10, 0.5)
KEY = (b"x-api-key", b"secret")
ONE = Lease("one", "127.0.0.1:8001", "http://one", "ready", 3, 10, 0.5)
TWO = Lease("two", "127.0.0.1:8002", "http://two", "ready", 1, 10, 2.0)


@pytest.mark.parametrize(
    ("lease", "takes_work", "has_room"),
    [
        (LEASE, True, True),
        (replace(LEASE, sessions=9), True, True),
        (replace(LEASE, sessions=10), True, False),
        (replace(LEASE, state="full"), True, False),
        (replace(LEASE, state="draining"), False, False),
        (replace(LEASE, state="loading"), False, False),
    ],
)
def test_work_and_room(lease: Lease, takes_work: bool, has_room: bool) -> None:
    assert (lease.takes_work, lease.has_room) == (takes_work, has_room)


def request(*headers: tuple[bytes, bytes]) -> starlette.requests.Request:
    return starlette.requests.Request(
        {
            "type": "http",
            "method": "GET",
            "path": "/v1/sessions/a b",
            "query_string": b"key=secret",
            "headers": [(b"host", b"edge"), (b"origin", b"http://edge"), *headers],
        }
    )


GONE = Lease("gone", "127.0.0.1:1", "", "ready", 0, 1, 0.0)


async def test_the_one_that_has_it_answers_also_while_another_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with fake_replica("one", 404) as one, fake_replica("two", 200, b"it") as two:
        assert await ask_owner(request(KEY), [one.lease, GONE, two.lease]) == b"it"
        ((path, headers),) = two.asked
    assert path == "/v1/sessions/a%20b"
    assert (headers["x-api-key"], headers[FORWARDED_HEADER], headers["origin"]) == ("secret", "1", None)


async def test_what_is_passed_on_is_not_passed_on_again() -> None:
    passed_on = request((FORWARDED_HEADER.lower().encode(), b"1"))
    assert await ask_owner(passed_on, [GONE]) is None
    assert await ask_all(passed_on, [GONE]) == []


async def test_one_that_does_not_answer_or_fails_is_named() -> None:
    with fake_replica("one", 404) as first, fake_replica("two", 500) as two, fake_replica("cut", 200, b"{", 9) as cut:
        assert await ask_owner(request(), [first.lease]) is None
        for silent in (GONE, two.lease, cut.lease):
            for ask in (ask_owner, ask_all):
                with pytest.raises(ProblemError, match=f"replica {silent.name}") as error:
                    await ask(request(), [first.lease, silent])
                assert (error.value.status, error.value.headers["Retry-After"]) == (503, "3")


async def test_a_list_has_what_every_replica_has() -> None:
    with fake_replica("one", 200, b"1") as one, fake_replica("two", 200, b"2") as two:
        assert await ask_all(request(), [one.lease, two.lease]) == [b"1", b"2"]


@pytest.fixture
def leases(redis: RedisServer) -> Iterator[Leases]:
    redis.client.flushdb()
    leases = Leases(redis.url)
    yield leases
    leases.close()


def known(*others: Lease) -> Membership:
    membership = Membership(None, lambda: ONE)
    membership.others = list(others)
    return membership


def test_a_lease_is_there_until_it_is_released_or_expires(leases: Leases, redis: RedisServer) -> None:
    leases.renew(TWO)
    leases.renew(ONE)
    leases.renew(replace(ONE, state="full"))
    assert leases.all() == [replace(ONE, state="full"), TWO]
    assert 1e3 * RENEW_S < 1e3 * LEASE_S - 1000 < redis.client.pttl("tickrt:lease:one"), "one may be late"
    assert 0 < redis.client.pttl("tickrt:lease:two") <= 3000
    redis.client.delete("tickrt:lease:two")
    assert [lease.name for lease in leases.all()] == ["one"]
    assert redis.client.smembers("tickrt:replicas") == {b"one"}
    leases.release("one")
    assert leases.all() == []


def test_a_lease_of_another_version_is_left_out(
    leases: Leases, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    leases.renew(ONE)
    leases.renew(TWO)
    redis.client.set("tickrt:lease:one", b'{"name": "one", "addr": "127.0.0.1:8001"}')
    assert leases.all() == [TWO]
    assert "the lease of replica one cannot be read" in caplog.text
    assert redis.client.smembers("tickrt:replicas") == {b"one", b"two"}


def test_where_a_session_and_a_generation_go() -> None:
    """A session goes where the smallest share of the places is taken, a generation where it waits least."""
    large, loading = replace(ONE, sessions=9, capacity=100), replace(ONE, state="loading")
    draining, through_edge = replace(TWO, state="draining"), replace(TWO, url="")
    assert known(ONE, TWO).room_url() == TWO.url
    assert known(TWO, large).room_url() == large.url
    for other in (replace(TWO, state="full"), through_edge):
        assert known(ONE, other).room_url() == ONE.url
    assert known(replace(ONE, sessions=10), draining).room_url() is None
    assert known(ONE, TWO).queue_url(3.0) == ONE.url
    assert known(ONE, TWO).queue_url(0.5) is None
    assert known(loading, TWO).queue_url(3.0) == TWO.url
    full = replace(ONE, state="full", session_wait_s=30.0)
    others = known(full, replace(full, queue_wait_s=0.25), replace(draining, queue_wait_s=0.0))
    assert (others.session_wait_s(), others.queue_wait_s()) == (30.0, 0.25)
    assert (known().session_wait_s(), known().queue_wait_s()) == (float("inf"), float("inf"))


@pytest.mark.parametrize(
    ("others", "finds_room", "finds_another"),
    [
        ((replace(ONE, url=""),), True, True),
        ((TWO, replace(ONE, url="", state="full")), False, True),
        ((TWO, replace(ONE, url="", state="draining")), False, False),
    ],
)
def test_what_an_edge_finds_has_no_url(others: tuple[Lease, ...], finds_room: bool, finds_another: bool) -> None:
    assert (known(*others).edge_finds_room(), known(*others).edge_finds_another()) == (finds_room, finds_another)


async def test_a_member_renews_its_lease_knows_the_others_and_gives_it_up(redis: RedisServer, leases: Leases) -> None:
    leases.renew(TWO)
    member = Membership(Leases(redis.url), lambda: ONE, renew_s=0.01)
    running = asyncio.create_task(member.run())
    async with asyncio.timeout(30.0):
        while member.others != [TWO]:
            await asyncio.sleep(0.01)
    assert leases.all() == [ONE, TWO]
    running.cancel()
    await asyncio.wait([running])
    assert leases.all() == [TWO]


def test_replicas_of_another_model_are_no_others(leases: Leases, redis: RedisServer) -> None:
    member = Membership(Leases(redis.url), lambda: ONE)
    leases.renew(TWO)
    leases.renew(replace(TWO, name="three", model="another"))
    member.renew(ONE)
    assert member.others == [TWO]
    member.close()


def test_replicas_in_another_precision_get_no_work_and_are_told_of_once(
    leases: Leases, redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    own = replace(ONE, model="demo", precision="fp32+int8")
    same = replace(own, name="same", sessions=9, queue_wait_s=1.0)
    other = replace(own, name="other", precision="fp32", sessions=0, queue_wait_s=0.0)
    loading = replace(other, name="loading", precision="", state="loading")
    member = Membership(Leases(redis.url), lambda: own)
    for lease in (same, other, loading):
        leases.renew(lease)
    member.renew(own)
    member.renew(own)
    assert {lease.name for lease in member.others} == {"same", "other", "loading"}
    assert (member.room_url(), member.queue_url(3.0)) == (same.url, same.url)
    (said,) = [record.getMessage() for record in caplog.records if "precision" in record.getMessage()]
    assert said.startswith("replica other runs demo in fp32, this one in fp32+int8")
    member.renew(replace(own, precision=""))
    assert len([record for record in caplog.records if "precision" in record.getMessage()]) == 1
    member.close()


def test_without_redis_the_others_are_unknown(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(redis.url)
    member = Membership(leases, lambda: ONE)
    member.others = [TWO]

    def fail(lease: Lease) -> None:
        raise StoreError("Redis is away")

    monkeypatch.setattr(leases, "renew", fail)
    member.renew(ONE)
    assert member.others == []
    leases.close()
