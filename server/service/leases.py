"""Leases of the replicas that share a Redis: which are there, where, and which have room.

Keys: `tickrt:replicas` (a set of their names), `tickrt:lease:NAME` (JSON). A lease expires when its replica stops
renewing it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from runtime.errors import StoreError
from runtime.sessions.storage.redis_store import PREFIX, connect, storage_errors
from server.service.lease import LEASE_S, Lease

RENEW_S = 1.0
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


class Membership:
    """A replica's own lease, and those of the others as they were when it was renewed last. Event loop's thread only.

    own: makes the lease. others: the replicas of the same model; where Redis is away they are unknown. One in another
    precision gets no work of this one: its music would be another.
    """

    _precision = ""  # as the own lease said it last

    def __init__(self, leases: Leases, own: Callable[[], Lease], renew_s: float = RENEW_S) -> None:
        self.others: list[Lease] = []
        self._leases, self._own, self._renew_s = leases, own, renew_s
        self._warned = set[str]()

    def with_room(self) -> Lease | None:
        """The other replica with the smallest share of its places taken that has a URL; None where all are full."""
        free = [lease for lease in self._alike if lease.has_room and lease.url]
        return min(free, key=lambda lease: (lease.sessions / lease.capacity, lease.name), default=None)

    def edge_finds_room(self) -> bool:
        """Whether another replica has room for a session that has no URL: an edge sends clients there."""
        return any(lease.has_room and not lease.url for lease in self.others)

    def edge_finds_another(self) -> bool:
        """Whether another replica that has no URL takes work: an edge sends clients there."""
        return any(lease.takes_work and not lease.url for lease in self.others)

    def with_shorter_queue(self, wait_s: float) -> Lease | None:
        """The other replica with a URL whose generations wait least; None where that is `wait_s` or longer."""
        able = [lease for lease in self._alike if lease.takes_work and lease.url]
        best = min(able, key=lambda lease: (lease.queue_wait_s, lease.name), default=None)
        return best if best is not None and best.queue_wait_s < wait_s else None

    def session_wait_s(self) -> float:
        """When a place for a session becomes free at the other replica where that is first; inf: there is none."""
        return min((lease.session_wait_s for lease in self.others if lease.takes_work), default=math.inf)

    def queue_wait_s(self) -> float:
        """The shortest wait of a generation at another replica; inf: there is none."""
        return min((lease.queue_wait_s for lease in self.others if lease.takes_work), default=math.inf)

    async def run(self) -> None:
        """Renew the lease until cancelled, and give it up then."""
        try:
            while True:
                await run_in_threadpool(self._renew, self._own())
                await asyncio.sleep(self._renew_s)
        finally:
            self._release(self._own().name)

    @property
    def _alike(self) -> list[Lease]:
        """The others in this one's precision."""
        return [lease for lease in self.others if lease.precision == self._precision]

    def _renew(self, lease: Lease) -> None:
        try:
            self._leases.renew(lease)
            others = (other for other in self._leases.all() if other.name != lease.name)
            self.others, self._precision = [other for other in others if other.model == lease.model], lease.precision
            self._warn_of({other.name: other.precision for other in self.others if other not in self._alike}, lease)
        except StoreError as error:
            self.others = []
            logger.debug("the lease is not renewed: %s", error)

    def _warn_of(self, precisions: Mapping[str, str], lease: Lease) -> None:
        """Say once of each replica that it runs the model in another precision; not while either is loading."""
        for name, precision in precisions.items():
            if precision and lease.precision and name not in self._warned:
                self._warned.add(name)
                logger.warning(
                    "replica %s runs %s in %s, this one in %s: they share no work, and a session that moves begins a "
                    'new canvas. Set one precision in [build] for both, "fp32" where a processor lacks 8-bit products',
                    *(name, lease.model, precision, lease.precision),
                )

    def _release(self, name: str) -> None:
        with suppress(StoreError):
            self._leases.release(name)
        self._leases.close()


def _key(name: str) -> str:
    return f"{PREFIX}:lease:{name}"


def _read(name: str, data: bytes | None) -> Lease | None:
    """A lease; None where it has ended, or is not one of this version."""
    try:
        return None if data is None else ADAPTER.validate_json(data)
    except ValidationError:
        logger.warning("the lease of replica %s cannot be read: is it of another version of TickRT?", name)
        return None
