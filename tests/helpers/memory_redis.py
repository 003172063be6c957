"""What the server's stores use of Redis, in memory: their tests also run where there is no redis-server."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, Self, cast


class MemoryRedis:
    """A client and its data; a key ends by the clock, `now_s`, which only tests move."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self._values: dict[str, Any] = {}
        self._ends_s: dict[str, float] = {}

    def _find(self, key: str) -> Any:
        if self._ends_s.get(key, math.inf) <= self.now_s:
            self.delete(key)
        return self._values.get(key)

    def _of(self, key: str, make: Callable[[], Any]) -> Any:
        found = self._find(key)
        return found if found is not None else self._values.setdefault(key, make())

    def set(self, key: str, value: Any, px: int | None = None) -> None:
        self._values[key] = _bytes(value)
        self._ends_s[key] = math.inf if px is None else self.now_s + px / 1e3

    def mget(self, keys: list[str]) -> list[bytes | None]:
        return [self._find(key) for key in keys]

    def delete(self, key: str) -> int:
        self._ends_s.pop(key, None)
        return int(self._values.pop(key, None) is not None)

    def rename(self, key: str, name: str) -> None:
        self._values[name], self._ends_s[name] = self._find(key), self._ends_s.get(key, math.inf)
        self.delete(key)

    def flushdb(self) -> None:
        self._values.clear()
        self._ends_s.clear()

    def sadd(self, key: str, *members: str) -> None:
        self._of(key, set).update(map(_bytes, members))

    def srem(self, key: str, *members: str) -> None:
        self._of(key, set).difference_update(map(_bytes, members))

    def smembers(self, key: str) -> set[bytes]:
        return set(self._of(key, set))

    def hset(self, key: str, mapping: Mapping[str, Any]) -> None:
        self._of(key, dict).update({name: _bytes(value) for name, value in mapping.items()})

    def hget(self, key: str, name: str) -> bytes | None:
        found: bytes | None = (self._find(key) or {}).get(name)
        return found

    def expire(self, key: str, seconds: float) -> None:
        if self._find(key) is not None:
            self._ends_s[key] = self.now_s + seconds

    def pexpire(self, key: str, ms: float) -> None:
        self.expire(key, ms / 1e3)

    def ttl(self, key: str) -> float:
        return self._ends_s[key] - self.now_s if self._find(key) is not None else -2.0

    def pttl(self, key: str) -> float:
        return 1e3 * self.ttl(key)

    def zadd(self, key: str, mapping: Mapping[Any, float], xx: bool = False) -> None:
        scores = self._of(key, dict)
        scores.update({_bytes(one): score for one, score in mapping.items() if not xx or _bytes(one) in scores})

    def zrem(self, key: str, *members: Any) -> None:
        for member in members:
            self._of(key, dict).pop(_bytes(member), None)

    def zrange(self, key: str, first: int, last: int, withscores: bool = False) -> list[Any]:
        assert (first, last) == (0, -1), "all of them"
        found = sorted(self._of(key, dict).items(), key=lambda item: (item[1], item[0]))
        return found if withscores else [member for member, _ in found]

    def zremrangebyscore(self, key: str, low: str, high: float) -> None:
        assert low == "-inf"
        for member, score in list(self._of(key, dict).items()):
            if score <= high:
                self.zrem(key, member)

    def time(self) -> tuple[int, int]:
        """Every call is later than the one before."""
        self.now_s += 1e-3
        return int(self.now_s), round(self.now_s % 1 * 1e6)

    def pipeline(self) -> Pipeline:
        return Pipeline(self)

    def transaction(self, call: Callable[[Pipeline], Any], key: str, *, value_from_callable: bool) -> Any:
        """As redis.Redis.transaction: again where the key has changed before it is executed."""
        assert value_from_callable
        while True:
            pipeline, before = Pipeline(self, is_queued=False), copy.copy(self._find(key))
            value = call(pipeline)
            if before == self._find(key):
                pipeline.execute()
                return value

    def close(self) -> None:
        """The data stay."""


class Pipeline:
    """Calls that are made together. is_queued: all of them; else from multi() on."""

    def __init__(self, client: MemoryRedis, *, is_queued: bool = True) -> None:
        self._client, self._calls, self._is_queued = client, list[Callable[[], Any]](), is_queued

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """What was not executed is not done."""

    def multi(self) -> None:
        self._is_queued = True

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)
        if not self._is_queued:
            return cast(Callable[..., Any], method)
        return lambda *arguments, **options: self._calls.append(lambda: method(*arguments, **options))

    def execute(self) -> list[Any]:
        return [call() for call in self._calls]


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
