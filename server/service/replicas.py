"""A replica among others: its own lease, what it knows of theirs, and what it asks them.

An edge cannot know which replica has a live session: it is the one that opened it, or that resumed it last. So one that
is asked for what it does not have asks the others, which answer for themselves only.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import starlette.requests
from starlette.concurrency import run_in_threadpool

from runtime.base.errors import StoreError
from server.asgi.access_control import KEY_HEADERS
from server.asgi.problems import REQUEST_ID_HEADER, ProblemError, request_id_of, unavailable
from server.service.lease import LEASE_S, RENEW_S, Lease

if TYPE_CHECKING:
    from server.service.leases import Leases
# Says that another replica asks; one that is asked asks no further.
FORWARDED_HEADER = "X-TickRT-Forwarded"
PASSED_HEADERS = ("Authorization", *KEY_HEADERS)
TIMEOUT_S = 2.0
NOT_FOUND = 404
# Not through a proxy that the environment names.
OPENER = build_opener(ProxyHandler({}))
logger = logging.getLogger("tickrt.scale")


async def ask_all(request: starlette.requests.Request, others: Sequence[Lease]) -> list[bytes]:
    """What the other replicas answer to the same request; nothing where another replica has passed it on.

    Raises ProblemError 503 where one does not answer: what it has is not known until its lease ends.
    """
    answers = await _answers(request, others)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, bytes)]


async def ask_owner(
    request: starlette.requests.Request, others: Sequence[Lease], timeout_s: float = TIMEOUT_S
) -> bytes | None:
    """What the one replica answers that has what the request asks for; None where none has it.

    timeout_s: until one that is silent does not answer. Raises ProblemError 503 where one does not answer that may have
    it.
    """
    answers = await _answers(request, others, timeout_s)
    found = next((answer for answer in answers if isinstance(answer, bytes)), None)
    for answer in answers:
        if found is None and isinstance(answer, BaseException):
            raise answer
    return found


async def _answers(
    request: starlette.requests.Request, others: Sequence[Lease], timeout_s: float = TIMEOUT_S
) -> list[bytes | BaseException | None]:
    """What each replica answers, all asked at once."""
    if FORWARDED_HEADER in request.headers:
        return []
    headers = {name: request.headers[name] for name in PASSED_HEADERS if name in request.headers}
    headers |= {FORWARDED_HEADER: "1", REQUEST_ID_HEADER: request_id_of(request)}
    path = quote(request.url.path)
    asked = [run_in_threadpool(ask_replica, other, request.method, path, headers, timeout_s) for other in others]
    return await asyncio.gather(*asked, return_exceptions=True)


def ask_replica(
    other: Lease, method: str, path: str, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S
) -> bytes | None:
    """What another replica answers; None where it has not what is asked for. Raises ProblemError 503."""
    url = (other.url or f"http://{other.address}").rstrip("/")
    try:
        with OPENER.open(Request(f"{url}{path}", headers=dict(headers), method=method), timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except HTTPError as error:
        error.close()
        if error.code == NOT_FOUND:
            return None
        raise _silent(other, error) from None
    except (OSError, HTTPException) as error:
        raise _silent(other, error) from None


def _silent(other: Lease, error: Exception) -> ProblemError:
    what = f"replica {other.name} may have what is asked for and does not answer: {error}"
    return unavailable("replica_silent", what, retry_after_s=LEASE_S)


class Membership:
    """A replica's own lease, and those of the others as they were when it was renewed last. Event loop's thread only.

    leases: None where it is no replica. own: makes the lease. others: the replicas of the same model; where Redis is
    away they are unknown. One in another precision gets no work of this one: its music would be another.
    """

    _precision = ""  # as the own lease said it last

    def __init__(self, leases: Leases | None, own: Callable[[], Lease], renew_s: float = RENEW_S) -> None:
        self.others: list[Lease] = []
        self._leases, self._own, self._renew_s = leases, own, renew_s
        self._warned = set[str]()

    def room_url(self) -> str | None:
        """Of the other replica with the smallest share of its places taken that has a URL; None where all are full."""
        free = [lease for lease in self._alike if lease.has_room and lease.url]
        best = min(free, key=lambda lease: (lease.sessions / lease.capacity, lease.name), default=None)
        return None if best is None else best.url

    def edge_finds_room(self) -> bool:
        """Whether another replica has room for a session that has no URL: an edge sends clients there."""
        return any(lease.has_room and not lease.url for lease in self.others)

    def edge_finds_another(self) -> bool:
        """Whether another replica that has no URL takes work: an edge sends clients there."""
        return any(lease.takes_work and not lease.url for lease in self.others)

    def queue_url(self, wait_s: float) -> str | None:
        """Of the other replica with a URL whose generations wait least; None where that is `wait_s` or longer."""
        able = [lease for lease in self._alike if lease.takes_work and lease.url]
        best = min(able, key=lambda lease: (lease.queue_wait_s, lease.name), default=None)
        return best.url if best is not None and best.queue_wait_s < wait_s else None

    def session_wait_s(self) -> float:
        """When a place for a session becomes free at the other replica where that is first; inf: there is none."""
        return min((lease.session_wait_s for lease in self.others if lease.takes_work), default=math.inf)

    def queue_wait_s(self) -> float:
        """The shortest wait of a generation at another replica; inf: there is none."""
        return min((lease.queue_wait_s for lease in self.others if lease.takes_work), default=math.inf)

    async def run(self) -> None:
        """Renew the lease, where there is one, until cancelled, and give it up then."""
        try:
            while self._leases is not None:
                await run_in_threadpool(self.renew, self._own())
                await asyncio.sleep(self._renew_s)
        finally:
            self.close()

    def close(self) -> None:
        """Give the lease up."""
        if self._leases is not None:
            with suppress(StoreError):
                self._leases.release(self._own().name)
            self._leases.close()

    def renew(self, lease: Lease) -> None:
        """Renew the lease, and read those of the others; blocks."""
        assert self._leases is not None
        try:
            self._leases.renew(lease)
            others = (other for other in self._leases.all() if other.name != lease.name)
            self.others, self._precision = [other for other in others if other.model == lease.model], lease.precision
            self._warn_of({other.name: other.precision for other in self.others if other not in self._alike}, lease)
        except StoreError as error:
            self.others = []
            logger.debug("the lease is not renewed: %s", error)

    @property
    def _alike(self) -> list[Lease]:
        """The others in this one's precision."""
        return [lease for lease in self.others if lease.precision == self._precision]

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
