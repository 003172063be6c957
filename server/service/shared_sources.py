"""Sources in Redis, for servers that share them: what is uploaded to one, each of them has.

Keys: `tickrt:sources` (names and sizes, by the time of the last use), `tickrt:source:ID` (a source's bytes). Redis
deletes a source that was not used for KEEP_S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from runtime.live.storage.redis_store import PREFIX, connect, storage_errors
from server.service.sources import Source

KEEP_S = 24 * 3600
INDEX = f"{PREFIX}:sources"


class SharedSources:
    """Sources in the Redis at `url`. Raises ConfigError where it cannot be used; methods StoreUnavailableError."""

    def __init__(self, url: str) -> None:
        self._client: Any = connect(url)

    def all(self) -> list[Source]:
        """Every source, the one used last at the end."""
        with storage_errors():
            self._client.zremrangebyscore(INDEX, "-inf", self._now_s() - KEEP_S)
            found = map(_source, self._client.zrange(INDEX, 0, -1))
        return [source for source in found if source is not None]

    def find(self, source_id: str) -> Source | None:
        """One source, which counts as used now; None where there is none, or not any more."""
        with storage_errors():
            member = self._client.hget(_key(source_id), "member")
            if member is None:
                return None
            self._client.expire(_key(source_id), KEEP_S)
            self._client.zadd(INDEX, {member: self._now_s()}, xx=True)  # not where it has just been removed
        return _source(member)

    def read(self, source: Source) -> bytes:
        """The bytes of a source; b"" where it has expired."""
        with storage_errors():
            return self._client.hget(_key(source.id), "data") or b""

    def set_aside(self, source: Source) -> str:
        """Rename a damaged source's key, which expires as it would have; its new name, "" where it is not damaged."""
        kept = f"{_key(source.id)}:damaged"

        def rename(pipe: Any, member: bytes | None) -> str:
            data = pipe.hget(_key(source.id), "data") or b""
            pipe.multi()
            if source.has(data):
                return ""
            pipe.zrem(INDEX, _member(source), member or b"")
            if member is not None:
                pipe.rename(_key(source.id), kept)
            return kept if member is not None else ""

        return str(self._changed(source, rename))

    def add(self, source: Source, data: bytes) -> None:
        """Keep a source's bytes, in one transaction, in place of what another server has stored under its id."""
        with storage_errors():
            now_s = self._now_s()

        def write(pipe: Any, member: bytes | None) -> None:
            pipe.multi()
            pipe.zrem(INDEX, member or b"")
            pipe.hset(_key(source.id), mapping={"member": _member(source), "data": data})
            pipe.expire(_key(source.id), KEEP_S)
            pipe.zadd(INDEX, {_member(source): now_s})

        self._changed(source, write)

    def remove(self, source: Source) -> bool:
        """Delete a source, in one transaction; whether it was there."""

        def delete(pipe: Any, member: bytes | None) -> bool:
            pipe.multi()
            pipe.zrem(INDEX, _member(source), member or b"")
            pipe.delete(_key(source.id))
            return member is not None

        return bool(self._changed(source, delete))

    def close(self) -> None:
        """Close the connections; the sources stay."""
        self._client.close()

    def _changed(self, source: Source, change: Callable[[Any, bytes | None], object]) -> object:
        """Read and change a source in one transaction, again where another server changes it meanwhile.

        change: is given the pipeline and the member under which its id is listed; what it returns is returned.
        """

        def run(pipe: Any) -> object:
            return change(pipe, pipe.hget(_key(source.id), "member"))

        with storage_errors():
            return self._client.transaction(run, _key(source.id), value_from_callable=True)

    def _now_s(self) -> float:
        """The time by Redis's clock, which all servers share."""
        seconds, microseconds = self._client.time()
        return float(seconds + microseconds / 1e6)


def _key(source_id: str) -> str:
    return f"{PREFIX}:source:{source_id}"


def _member(source: Source) -> str:
    return f"{source.name}/{source.size_bytes}"


def _source(member: bytes) -> Source | None:
    """The source of a member; None where something else has been written in its place."""
    name, _, size_bytes = member.decode(errors="replace").partition("/")
    return Source.named(name, int(size_bytes)) if size_bytes.isdecimal() else None
