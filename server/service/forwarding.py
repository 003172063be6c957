"""A request about what one replica has, at another one: it asks the others, which answer for themselves only.

An edge cannot know which replica has a live session: it is the one that opened it, or that resumed it last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import ProxyHandler, Request, build_opener

import starlette.requests
from starlette.concurrency import run_in_threadpool

from server.asgi.access_control import KEY_HEADERS
from server.asgi.problems import REQUEST_ID_HEADER, ProblemError, request_id_of, unavailable
from server.service.lease import LEASE_S, Lease

# Says that another replica asks; one that is asked asks no further.
FORWARDED_HEADER = "X-TickRT-Forwarded"
PASSED_HEADERS = ("Authorization", *KEY_HEADERS)
TIMEOUT_S = 2.0
NOT_FOUND = 404
# Not through a proxy that the environment names.
OPENER = build_opener(ProxyHandler({}))


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
    asked = [run_in_threadpool(ask, other, request.method, path, headers, timeout_s) for other in others]
    return await asyncio.gather(*asked, return_exceptions=True)


def ask(other: Lease, method: str, path: str, headers: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> bytes | None:
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
