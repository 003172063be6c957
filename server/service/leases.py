"""Leases of the replicas that share a Redis: which are there, where, and which have room.

Keys: `tickrt:replicas` (a set of their names), `tickrt:lease:NAME` (JSON). A lease expires when its replica stops
renewing it.
"""

from __future__ import annotations

import logging
from typing import Any

from pydantic import TypeAdapter, ValidationError

from runtime.live.storage.redis_store import PREFIX, connect, storage_errors
from server.service.lease import LEASE_S, Lease

REPLICAS = f"{PREFIX}:replicas"
logger = logging.getLogger("tickrt.scale")


ADAPTER = TypeAdapter(Lease)


class Leases:
    """The leases in the Redis at `url`. Raises ConfigError where it cannot be reached; all methods raise StoreError."""

    def __init__(self, url: str) -> None:
        self._client: Any = connect(url)

    def renew(self, lease: Lease) -> None:
        """Write a replica's lease."""
        with storage_errors():
            self._client.set(_key(lease.name), ADAPTER.dump_json(lease), px=round(1000 * LEASE_S))
            self._client.sadd(REPLICAS, lease.name)

    def release(self, name: str) -> None:
        """Delete a replica's lease."""
        with storage_errors():
            self._client.delete(_key(name))
            self._client.srem(REPLICAS, name)

    def all(self) -> list[Lease]:
        """The leases that hold, by name, without those of another version. The names of the others are forgotten."""
        with storage_errors():
            names = sorted(name.decode() for name in self._client.smembers(REPLICAS))
            found = self._client.mget([_key(name) for name in names]) if names else []
            if ended := [name for name, lease in zip(names, found, strict=True) if lease is None]:
                self._client.srem(REPLICAS, *ended)
        return [lease for lease in map(_read, names, found) if lease is not None]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def _key(name: str) -> str:
    return f"{PREFIX}:lease:{name}"


def _read(name: str, data: bytes | None) -> Lease | None:
    """A lease; None where it has ended, or is not one of this version."""
    try:
        return None if data is None else ADAPTER.validate_json(data)
    except ValidationError:
        logger.warning("the lease of replica %s cannot be read: is it of another version of TickRT?", name)
        return None
