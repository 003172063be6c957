"""Session snapshots in Redis, for servers that share them; needs the extra `redis`.

Keys: `tickrt:format`, `tickrt:session:ID` (a hash: the epoch, the document and the pieces). Any server takes a session
at once, whose client has its token: nothing waits for the server that had it, which may have ended. A session that no
server holds is deleted by Redis after `keep_s`.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialBackoff
from redis.retry import Retry

from runtime.base.errors import ConfigError, EntryUnavailableError, StoreError, StoreUnavailableError
from runtime.base.threads import ServingThread, Watched
from runtime.live.storage.store import STORE_FORMAT, SessionStore

PREFIX = "tickrt"
RENEW_S = 2.0
KEEP_S = 60.0
TIMEOUT_S = 2.0
DOCUMENT_FIELD, PIECE_FIELD = b"document", b"piece:"
# KEYS[1]: the session. ARGV[1]: the epoch that this server holds, 0 for none; ARGV[2]: for how many ms it is kept.
# 0 where another server has taken the session.
CHECK = """
local held = tonumber(ARGV[1])
if tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0) > held then return 0 end
"""
# ARGV from 3 on: number of fields to delete, their names, then names and values to set. Returns the epoch.
WRITE = f"""{CHECK}
local epoch, first = math.max(held, 1), 4 + ARGV[3]
for i = 4, first - 1 do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = first, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'epoch', epoch)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return epoch
"""
DELETE = f"{CHECK} redis.call('DEL', KEYS[1]) return 1"
RENEW = f"{CHECK} redis.call('PEXPIRE', KEYS[1], ARGV[2]) return 1"
# Returns the epoch and all fields, or an empty list.
TAKE = """
if redis.call('HEXISTS', KEYS[1], 'document') == 0 then return {} end
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {epoch, redis.call('HGETALL', KEYS[1])}
"""
# Answers that are about the server. All others are about one key, such as one of another type.
SERVER_ERRORS = (
    redis.exceptions.ReadOnlyError,
    redis.exceptions.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.NoPermissionError,
)
SERVER_WORDS = re.compile(r"\b(MISCONF|READONLY|OOM|NOREPLICAS|LOADING|MASTERDOWN|CLUSTERDOWN|BUSY|NOAUTH|NOPERM)\b")
logger = logging.getLogger("tickrt.sessions")


def open_redis_store(url: str, *, renew_s: float = RENEW_S, keep_s: float = KEEP_S) -> SessionStore:
    """The store at `url` ("redis://host:6379/0").

    renew_s: how often sessions that are held are renewed, and losses noticed where nothing is saved. keep_s: how long a
    session is kept that no server holds. Raises ConfigError for a Redis that cannot be reached or holds a newer format.
    """
    return SessionStore(lambda: RedisBackend(url, renew_s, keep_s + 3 * renew_s))


class RedisBackend:
    """Sessions in Redis. All calls come from one thread; another one renews what is held."""

    def __init__(self, url: str, renew_s: float, expiry_s: float) -> None:
        self._client = connect(url)
        self._expiry_ms = round(1000 * expiry_s)
        self.on_lost: Callable[[str], None] = lambda session_id: None
        self._write = self._client.register_script(WRITE)
        self._delete = self._client.register_script(DELETE)
        self._renew = self._client.register_script(RENEW)
        self._take = self._client.register_script(TAKE)
        self._epochs: dict[str, int] = {}
        self._taking = threading.Lock()
        self._is_closing = threading.Event()
        self._renewing = ServingThread("session-claims", partial(self._renew_all, renew_s), is_prompt=False)
        self.threads: tuple[Watched, ...] = (self._renewing,)
        self._renewing.start()

    def ids(self) -> list[str]:
        """The sessions that this server holds: none at its start, when others may have its earlier ones."""
        return sorted(self._epochs)

    def names(self, session_id: str) -> set[str]:
        """The names of a session's stored pieces."""
        with storage_errors():
            return {_piece_name(field) for field in self._client.hkeys(_session_key(session_id)) if _is_piece(field)}

    def write(self, session_id: str, document: bytes, new: Mapping[str, bytes], unused: set[str]) -> None:
        """In one transaction: replace the document, add the pieces `new`, delete the pieces `unused`.

        Nothing is written where another server has taken the session by now; that is logged once.
        """
        pieces = [item for name, data in new.items() for item in (_piece_field(name), data)]
        deleted = [_piece_field(name) for name in unused]
        epoch = self._run(self._write, session_id, len(deleted), *deleted, DOCUMENT_FIELD, document, *pieces)
        if epoch:
            self._epochs[session_id] = epoch
        else:
            self._lose(session_id)

    def read(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """A session's document and pieces; None where there is no document."""
        with storage_errors():
            return _content(self._client.hgetall(_session_key(session_id)))

    def take(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """In one transaction: increment the session's epoch, which this server holds then, and read it."""
        with self._taking:
            taken = self._run(self._take, session_id)
            if not taken:
                return None
            self._epochs[session_id], fields = taken
        return _content(dict(zip(fields[::2], fields[1::2], strict=True)))

    def release(self, session_id: str) -> None:
        """The session is not this server's any more; Redis keeps it for `keep_s`."""
        self._epochs.pop(session_id, None)

    def set_aside(self, session_id: str) -> None:
        """As `release`: at its start a server holds none."""
        self.release(session_id)

    def delete(self, session_id: str) -> None:
        """Delete a session, except where another server has taken it."""
        self._run(self._delete, session_id)
        self._epochs.pop(session_id, None)

    def close(self) -> None:
        """Close the connections. What is held is kept for `keep_s`."""
        self._is_closing.set()
        self._renewing.join()
        self._client.close()

    def _run(self, script: Any, session_id: str, *values: Any) -> Any:
        held = (self._epochs.get(session_id, 0), self._expiry_ms)
        with storage_errors():
            return script(keys=[_session_key(session_id)], args=[*held, *values])

    def _lose(self, session_id: str) -> None:
        if self._epochs.pop(session_id, None) is not None:
            logger.warning("session %s was taken by another server; it ends here", session_id)
            self.on_lost(session_id)

    def _renew_all(self, every_s: float) -> None:
        while not self._is_closing.wait(every_s):
            try:
                for session_id in list(self._epochs):
                    self._renewing.heartbeat.beat()
                    self._renew_one(session_id)
            except StoreError as error:
                logger.debug("sessions are not renewed: %s", error)
            self._renewing.heartbeat.rest()

    def _renew_one(self, session_id: str) -> None:
        """Raises StoreError where none can be renewed; what fails of one alone leaves the others theirs."""
        try:
            with self._taking:
                if not self._run(self._renew, session_id):
                    self._lose(session_id)
        except EntryUnavailableError as error:
            logger.debug("session %s is not renewed: %s", session_id, error)
        except StoreError:
            raise
        except BaseException:  # The next time it is: without, all that are held would be deleted.
            logger.exception("sessions are not renewed")


def _content(fields: Mapping[bytes, bytes]) -> tuple[bytes, dict[str, bytes]] | None:
    """The document and the pieces of a hash."""
    if DOCUMENT_FIELD not in fields:
        return None
    return fields[DOCUMENT_FIELD], {_piece_name(name): data for name, data in fields.items() if _is_piece(name)}


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise StoreUnavailableError for errors of Redis, EntryUnavailableError for those of a key."""
    try:
        yield
    except redis.RedisError as error:
        if _is_of_a_key(error):
            raise EntryUnavailableError(f"Redis: {error}", fix="delete the key, which something else wrote") from error
        raise StoreUnavailableError(f"Redis: {error}", fix="see that it can be reached and has free memory") from error


def _is_of_a_key(error: redis.RedisError) -> bool:
    is_answer = isinstance(error, redis.ResponseError | redis.DataError)
    return is_answer and not isinstance(error, SERVER_ERRORS) and SERVER_WORDS.search(str(error)) is None


def connect(url: str) -> Any:
    """A client of the Redis at `url`. Raises ConfigError where it cannot be reached or holds a newer format."""
    try:
        client: Any = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(ExponentialBackoff(cap=1.0), 1)
        )
        client.set(f"{PREFIX}:format", STORE_FORMAT, nx=True)
        found = int(client.get(f"{PREFIX}:format"))
        if found < STORE_FORMAT:
            client.set(f"{PREFIX}:format", STORE_FORMAT)
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


def _piece_field(name: str) -> bytes:
    return PIECE_FIELD + name.encode()


def _piece_name(field: bytes) -> str:
    return field.removeprefix(PIECE_FIELD).decode(errors="replace")


def _is_piece(field: bytes) -> bool:
    return field.startswith(PIECE_FIELD)
