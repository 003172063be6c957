"""Sources in a real Redis: two servers have the same ones, which expire; a Redis that is away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.redis_server import RedisServer, redis_server
from helpers.sources import read, store_of

from runtime.base.errors import SourceNotFoundError, StoreUnavailableError
from server.service.shared_sources import KEEP_S, SharedSources
from server.service.source import Source, owner_of


def test_what_one_server_is_given_the_other_one_has_until_it_is_deleted(redis: RedisServer) -> None:
    redis.client.flushdb()
    one, two = (store_of(SharedSources(redis.url)) for _ in range(2))
    source, _ = one.add(b"abcd" * 10)
    assert two.add(b"abcd" * 10) == (source, False)
    assert np.array_equal(two.latents(source.id), read(b"abcd" * 10))
    one.remove(source.id)
    for sources in (one, two):  # also where the latents are in memory
        with pytest.raises(SourceNotFoundError):
            sources.latents(source.id)
        sources.close()


def test_a_use_keeps_a_source_and_one_that_expires_is_gone_from_the_list(redis: RedisServer) -> None:
    redis.client.flushdb()
    sources = store_of(SharedSources(redis.url))
    used, unused = (sources.add(data * 8)[0] for data in (b"a", b"b"))
    for source in (used, unused):
        redis.client.pexpire(f"tickrt:source:{source.id}", 1000)
    for member, used_s in redis.client.zrange("tickrt:sources", 0, -1, withscores=True):
        redis.client.zadd("tickrt:sources", {member: used_s - KEEP_S})
    sources.get(used.id)
    assert redis.client.ttl(f"tickrt:source:{used.id}") > KEEP_S - 60
    assert redis.client.pttl(f"tickrt:source:{unused.id}") <= 1000
    assert sources.all() == [used]
    sources.close()


def test_a_redis_that_is_away_is_unavailable_for_now(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        sources = store_of(SharedSources(server.url))
        source, _ = sources.add(b"abcd")
    for call in (sources.all, lambda: sources.latents(source.id), lambda: sources.add(b"efgh")):
        with pytest.raises(StoreUnavailableError, match="Redis"):
            call()
    sources.close()


def test_a_damaged_source_is_renamed_and_may_be_uploaded_again(redis: RedisServer) -> None:
    redis.client.flushdb()
    sources = store_of(SharedSources(redis.url))
    source, _ = store_of(SharedSources(redis.url)).add(b"abcd" * 10)
    redis.client.hset(f"tickrt:source:{source.id}", mapping={"data": b"other bytes"})
    with pytest.raises(SourceNotFoundError, match="damaged"):
        sources.latents(source.id)
    assert sources.all() == []
    assert redis.client.hget(f"tickrt:source:{source.id}:damaged", "data") == b"other bytes"
    assert sources.add(b"abcd" * 10)[1]
    sources.close()


def test_two_servers_that_are_given_the_same_bytes_at_once_have_one_source(redis: RedisServer) -> None:
    """Each has looked before the other one has written; they name different owners."""
    redis.client.flushdb()
    one, two = SharedSources(redis.url), SharedSources(redis.url)
    source = store_of(one).add(b"abcd" * 10, "a client")[0]
    other = replace(source, owner=owner_of("another client"))
    two.add(other, b"abcd" * 10)
    assert one.all() == two.all() == [other]
    assert one.remove(source)
    assert two.all() == []
    assert not two.remove(other)
    one.close()
    two.close()


@dataclass(frozen=True)
class Replaced(Source):
    """A source whose right bytes another server brings while the damaged ones are judged."""

    bring: Callable[[], None] = field(default=lambda: None, compare=False)

    def has(self, data: bytes) -> bool:
        is_right = super().has(data)
        if not is_right:
            self.bring()
        return is_right


def test_a_source_that_is_brought_again_meanwhile_is_not_set_aside(redis: RedisServer) -> None:
    redis.client.flushdb()
    one, two = SharedSources(redis.url), SharedSources(redis.url)
    source = store_of(one).add(b"abcd" * 10)[0]
    redis.client.hset(f"tickrt:source:{source.id}", mapping={"data": b"other bytes"})
    judged = Replaced(*astuple(source), bring=lambda: two.add(source, b"abcd" * 10))
    assert one.set_aside(judged) == ""
    assert two.read(source) == b"abcd" * 10
    assert one.all() == [source]
    assert one.set_aside(replace(source, id="0" * 64)) == ""
    one.close()
    two.close()


def test_what_something_else_has_written_hides_no_source(redis: RedisServer) -> None:
    redis.client.flushdb()
    sources = store_of(SharedSources(redis.url))
    source, _ = sources.add(b"abcd" * 10)
    redis.client.zadd("tickrt:sources", {b"\xff": 1e12, b"song.wav/12": 1e12, source.name: 1e12})
    assert sources.all() == [source]
    sources.close()
