"""Session snapshots in Redis, for servers that share them; needs the extra `redis`.

Keys: `tickrt:format`, `tickrt:session:ID` (a hash: the document and the pieces), `tickrt:claim:ID` (the server that
owns the session). A claim expires when its server stops renewing it, so a session has one owner at a time. A session
whose owner is gone for `keep_s` is deleted by Redis.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from runtime.errors import ConfigError, StoreError
from runtime.sessions.store import STORE_FORMAT, SessionStore

PREFIX = "tickrt"
CLAIM_S = 6.0
KEEP_S = 60.0
TIMEOUT_S = 5.0
DOCUMENT_FIELD, PIECE_FIELD = b"document", b"piece:"
# Claim the session KEYS[2] for ARGV[1] for ARGV[2] ms, or renew the claim; keep the session for ARGV[3] ms.
# 0 where another server holds the claim.
CLAIM = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
"""
# ARGV from 4 on: number of fields to delete, their names, then names and values to set.
WRITE = f"""{CLAIM}
local first = 5 + ARGV[4]
for i = 5, first - 1 do redis.call('HDEL', KEYS[2], ARGV[i]) end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
"""
DELETE = f"{CLAIM} redis.call('DEL', KEYS[1], KEYS[2]) return 1"
RENEW = f"{CLAIM} return 1"
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1"
logger = logging.getLogger("tickrt.sessions")


def open_redis_store(url: str, *, owner: str = "", claim_s: float = CLAIM_S, keep_s: float = KEEP_S) -> SessionStore:
    """The store at `url` ("redis://host:6379/0").

    `owner` names this server; one that restarts under the same name has its sessions back at once, otherwise when its
    claims expire, after `claim_s`. keep_s: how long a session without an owner is kept. Raises ConfigError for a Redis
    that cannot be reached or holds a newer format.
    """
    return SessionStore(lambda: RedisBackend(url, owner or secrets.token_hex(8), claim_s, claim_s + keep_s))


class RedisBackend:
    """Sessions in Redis. All calls come from one thread; another one renews the claims."""

    def __init__(self, url: str, owner: str, claim_s: float, expiry_s: float) -> None:
        self._client = _connect(url)
        self._claim = (owner, round(1000 * claim_s), round(1000 * expiry_s))
        self._write = self._client.register_script(WRITE)
        self._delete = self._client.register_script(DELETE)
        self._renew = self._client.register_script(RENEW)
        self._release = self._client.register_script(RELEASE)
        self._owned: set[str] = set()
        self._is_closing = threading.Event()
        self._renewing = threading.Thread(target=self._renew_claims, args=(claim_s / 3,), name="session-claims")
        self._renewing.start()

    def ids(self) -> list[str]:
        """The stored sessions that are claimed under this server's name."""
        with _storage_errors():
            keys = [key.decode() for key in self._client.scan_iter(match=_claim_key("*"))]
            owned = [key for key in keys if self._client.get(key) == self._claim[0].encode()]
            return sorted(key.removeprefix(_claim_key("")) for key in owned)

    def names(self, session_id: str) -> set[str]:
        """The names of a session's stored pieces."""
        with _storage_errors():
            return {_piece_name(field) for field in self._client.hkeys(_session_key(session_id)) if _is_piece(field)}

    def write(self, session_id: str, document: bytes, new: Mapping[str, bytes], unused: set[str]) -> None:
        """In one transaction: replace the document, add the pieces `new`, delete the pieces `unused`.

        Nothing is written where another server owns the session by now; that is logged once.
        """
        pieces = [item for name, data in new.items() for item in (_piece_field(name), data)]
        deleted = [_piece_field(name) for name in unused]
        if self._run(self._write, session_id, len(deleted), *deleted, DOCUMENT_FIELD, document, *pieces):
            self._owned.add(session_id)
        elif session_id in self._owned:
            self._owned.remove(session_id)
            logger.warning("session %s is owned by another server; it is not stored here any more", session_id)

    def read(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """A session's document and pieces, after claiming it; None where there is no document.

        Raises StoreError where another server owns the session.
        """
        if not self._run(self._renew, session_id):
            raise StoreError(
                f"session {session_id} is in use by another server", fix="connect to that server, or retry"
            )
        self._owned.add(session_id)
        with _storage_errors():
            fields = self._client.hgetall(_session_key(session_id))
        if DOCUMENT_FIELD not in fields:
            self.delete(session_id)
            return None
        return fields[DOCUMENT_FIELD], {_piece_name(name): data for name, data in fields.items() if _is_piece(name)}

    def delete(self, session_id: str) -> None:
        """Delete a session and its claim, except where another server owns it."""
        self._run(self._delete, session_id)
        self._owned.discard(session_id)

    def close(self) -> None:
        """Give up all claims and close the connections."""
        self._is_closing.set()
        self._renewing.join()
        with suppress(StoreError):
            for session_id in self._owned:
                self._run(self._release, session_id)
        self._client.close()

    def _run(self, script: Any, session_id: str, *values: Any) -> bool:
        with _storage_errors():
            return bool(script(keys=[_claim_key(session_id), _session_key(session_id)], args=[*self._claim, *values]))

    def _renew_claims(self, every_s: float) -> None:
        while not self._is_closing.wait(every_s):
            try:
                for session_id in list(self._owned):
                    self._run(self._renew, session_id)
            except StoreError as error:
                logger.debug("claims are not renewed: %s", error)


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except redis.RedisError as error:
        raise StoreError(f"Redis: {error}", fix="see that it can be reached and has free memory") from error


def _connect(url: str) -> Any:
    """A client of the Redis at `url`. Raises ConfigError where it cannot be reached or holds a newer format."""
    try:
        client: Any = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(ExponentialBackoff(cap=1.0), 3)
        )
        client.set(f"{PREFIX}:format", STORE_FORMAT, nx=True)
        found = int(client.get(f"{PREFIX}:format"))
    except (redis.RedisError, ValueError) as error:
        raise ConfigError(f"Redis at {_host(url)} cannot be used: {error}", fix="start it, or name another") from None
    if found > STORE_FORMAT:
        client.close()
        raise ConfigError(
            f"Redis at {_host(url)} has session format {found}, this server reads formats up to {STORE_FORMAT}",
            fix="use the version of TickRT that wrote it, or another Redis database",
        )
    return client


def _host(url: str) -> str:
    """The part of a URL that has no password."""
    return urlsplit(url).netloc.rpartition("@")[2] or "(no host)"


def _session_key(session_id: str) -> str:
    return f"{PREFIX}:session:{session_id}"


def _claim_key(session_id: str) -> str:
    return f"{PREFIX}:claim:{session_id}"


def _piece_field(name: str) -> bytes:
    return PIECE_FIELD + name.encode()


def _piece_name(field: bytes) -> str:
    return field.removeprefix(PIECE_FIELD).decode()


def _is_piece(field: bytes) -> bool:
    return field.startswith(PIECE_FIELD)
