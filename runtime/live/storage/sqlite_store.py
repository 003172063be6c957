"""Session snapshots in a folder: one SQLite database in WAL mode, locked by the server that uses it.

A snapshot is safe from the end of the process once its transaction is committed; a loss of power may cost the last
transactions, never the database (`synchronous = NORMAL`).
"""

from __future__ import annotations

import logging
import sqlite3
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import filelock

from runtime.base.errors import ConfigError, EntryUnavailableError, StoreUnavailableError
from runtime.base.files import set_aside
from runtime.base.threads import Watched
from runtime.live.storage.store import STORE_FORMAT, SessionStore

DATABASE = "sessions.sqlite"
LOCK = "sessions.lock"
# Marks a database as ours: "TkRT".
APPLICATION_ID = 0x546B5254
SCHEMA = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, document BLOB NOT NULL, epoch INTEGER NOT NULL DEFAULT 1) STRICT;
CREATE TABLE pieces (session TEXT, name TEXT, data BLOB NOT NULL, PRIMARY KEY (session, name)) STRICT;
"""
# Sessions that could not be restored. No part of the format: a store without it has none.
ASIDE = "CREATE TABLE IF NOT EXISTS aside (id TEXT PRIMARY KEY) STRICT"
# Format 1 had no epochs.
UPGRADE = "ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 1"
# The epoch that this server holds, 0 where it holds none, is enough to write a session that is new or not newer.
WRITE = """
INSERT INTO sessions (id, document, epoch) VALUES (:id, :document, max(:epoch, 1))
ON CONFLICT (id) DO UPDATE SET document = :document, epoch = :epoch WHERE epoch <= :epoch RETURNING epoch
"""
READ_BYTES = 2**20
# What SQLite says of content that it has read. Everything else says that it could not read or write.
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
logger = logging.getLogger("tickrt.sessions")


def open_sqlite_store(folder: Path) -> SessionStore:
    """The store of a folder, which is made where it is missing.

    A database that is damaged or of another program is renamed and a new one begun. Raises ConfigError for a folder
    that cannot be written or is in use by another server, and for a database of a newer format.
    """
    return SessionStore(lambda: SqliteBackend(folder))


class SqliteBackend:
    """Sessions in a SQLite database. All calls come from the thread that made it."""

    def __init__(self, folder: Path) -> None:
        self._lock = lock_folder(folder)
        self._epochs: dict[str, int] = {}
        self.threads: tuple[Watched, ...] = ()
        self.on_lost: Callable[[str], None] = lambda session_id: None
        try:
            self._connection = _open_database(folder / DATABASE)
        except BaseException:
            self._lock.release()
            raise

    def ids(self) -> list[str]:
        """All stored sessions but those set aside: the lock makes them this server's."""
        found = self._query("SELECT id FROM sessions WHERE id NOT IN (SELECT id FROM aside) ORDER BY id")
        return [row[0] for row in found]

    def names(self, session_id: str) -> set[str]:
        """The names of a session's stored pieces."""
        return {row[0] for row in self._query("SELECT name FROM pieces WHERE session = ?", session_id)}

    def write(self, session_id: str, document: bytes, new: Mapping[str, bytes], unused: set[str]) -> None:
        """In one transaction: replace the document, add the pieces `new`, delete the pieces `unused`."""
        with self._transaction() as execute:
            values = {"id": session_id, "document": document, "epoch": self._epochs.get(session_id, 0)}
            written = execute(WRITE, values).fetchall()
            if not written:
                self._lose(session_id)
                return
            self._epochs[session_id] = written[0][0]
            execute("DELETE FROM aside WHERE id = ?", (session_id,))
            for name in unused:
                execute("DELETE FROM pieces WHERE session = ? AND name = ?", (session_id, name))
            for name, data in new.items():
                execute("INSERT INTO pieces VALUES (?, ?, ?)", (session_id, name, data))

    def read(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """A session's document and pieces; None where there is no document."""
        documents = self._query("SELECT document FROM sessions WHERE id = ?", session_id)
        pieces = self._query("SELECT name, data FROM pieces WHERE session = ?", session_id)
        return (documents[0][0], dict(pieces)) if documents else None

    def take(self, session_id: str) -> tuple[bytes, dict[str, bytes]] | None:
        """In one transaction: increment the session's epoch, which this server holds then, and read it."""
        with self._transaction() as execute:
            taken = execute("UPDATE sessions SET epoch = epoch + 1 WHERE id = ? RETURNING epoch", (session_id,))
            for (epoch,) in taken.fetchall():
                self._epochs[session_id] = epoch
            return self.read(session_id)

    def release(self, session_id: str) -> None:
        """The session is not this server's any more."""
        self._epochs.pop(session_id, None)

    def set_aside(self, session_id: str) -> None:
        """Keep a session out of `ids`, until it is written again."""
        self.release(session_id)
        self._query("INSERT OR IGNORE INTO aside VALUES (?)", session_id)

    def delete(self, session_id: str) -> None:
        """Delete a session's document and pieces, if there are any and no other server has taken it."""
        with self._transaction() as execute:
            held = self._epochs.get(session_id, 0)
            execute("DELETE FROM sessions WHERE id = ? AND epoch <= ?", (session_id, held))
            execute("DELETE FROM aside WHERE id = ? AND id NOT IN (SELECT id FROM sessions)", (session_id,))
            execute("DELETE FROM pieces WHERE session NOT IN (SELECT id FROM sessions) AND session = ?", (session_id,))
        self._epochs.pop(session_id, None)

    def close(self) -> None:
        """Close the database and unlock the folder."""
        self._connection.close()
        self._lock.release()

    def _lose(self, session_id: str) -> None:
        if self._epochs.pop(session_id, None) is not None:
            logger.warning("session %s was taken by another server; it ends here", session_id)
            self.on_lost(session_id)

    def _query(self, sql: str, *values: str) -> list[Any]:
        with _storage_errors():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        with _storage_errors(), self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield self._connection.execute


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # Values that cannot be stored, or pages that are damaged: other sessions have others.
        is_entry = not isinstance(error, sqlite3.DatabaseError) or _is_damage(error)
        is_entry |= isinstance(error, sqlite3.DataError | sqlite3.IntegrityError | sqlite3.ProgrammingError)
        kind = EntryUnavailableError if is_entry else StoreUnavailableError
        raise kind(f"{DATABASE}: {error}", fix="see that its folder is writable and has free space") from error


def lock_folder(folder: Path) -> filelock.BaseFileLock:
    """The folder's lock; releasing it, or the end of the process, unlocks. Raises ConfigError."""
    lock = filelock.FileLock(folder / LOCK, timeout=0, mode=0o600, thread_local=False)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
        make_private(*folder.glob("sessions.*"))
    except filelock.Timeout:
        raise ConfigError(
            f"state folder {folder} is in use by another server", fix="give each server its own [server] state"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"state folder {folder} cannot be written: {error.strerror}", fix="name a writable folder as [server] state"
        ) from None
    return lock


def make_private(*paths: Path) -> None:
    """Let only their owner read files and folders, which may be those of a backup or of an older version."""
    for path in paths:
        if path.exists() and path.stat().st_mode & 0o077:
            try:
                path.chmod(0o700 if path.is_dir() else 0o600)
            except PermissionError:
                logger.warning("%s can be read by other users: it is not this user's", path)


def _open_database(path: Path) -> sqlite3.Connection:
    """The database at `path`, new where there is none or the one found cannot be used. Raises ConfigError."""
    try:
        path.touch(mode=0o600)  # files beside a database have its mode
        if reason := unusable_because(path):
            kept = set_aside(path, ("-wal", "-shm", ""), "unusable")
            logger.error("%s %s; it is kept as %s and a new one is begun", path, reason, kept.name)
        return _connect(path)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"{path} cannot be written: {error}", fix="name a writable folder with free space as [server] state"
        ) from None


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")  # else one name hides all sessions
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("BEGIN IMMEDIATE")
        if not _pragma(connection, "application_id"):
            for statement in SCHEMA.strip().splitlines():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif _pragma(connection, "user_version") < STORE_FORMAT:
            connection.execute(UPGRADE)
        connection.execute(ASIDE)
        connection.execute(f"PRAGMA user_version = {STORE_FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        connection.close()
        raise
    return connection


def unusable_because(path: Path) -> str:
    """Why a file is not a sound database of ours; "" where it is one, or an empty one.

    Raises ConfigError for a newer format, sqlite3.DatabaseError and OSError for a file that cannot be read now.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        return "is not a file"
    if reason := _content_reason(path):
        # SQLite's check reports pages that the disk refused like damaged ones: all is read, and checked once more.
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError), path.with_name(path.name + suffix).open("rb") as file:
                while file.read(READ_BYTES):
                    pass
        reason = _content_reason(path)
    return reason


def _content_reason(path: Path) -> str:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return _content_error(connection, path)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        return f"is damaged: {error}"
    finally:
        connection.close()


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED


def _content_error(connection: sqlite3.Connection, path: Path) -> str:
    is_empty = not connection.execute("SELECT 1 FROM sqlite_master").fetchall()
    if _pragma(connection, "application_id") != APPLICATION_ID:
        return "" if is_empty else "is not a store of live sessions"
    if (version := _pragma(connection, "user_version")) > STORE_FORMAT:
        raise ConfigError(
            f"{path} has format {version}, this server reads formats up to {STORE_FORMAT}",
            fix="use the version of TickRT that wrote it, or another [server] state",
        )
    found = _pragma(connection, "quick_check")
    return "" if found == "ok" else f"is damaged: {found}"


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]
